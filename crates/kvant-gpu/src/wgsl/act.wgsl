// The inner values of MLPs.
fn sigmoid(v: f32) -> f32 {
    return 1.0 / (1.0 + exp(-v));
}

// Abramowitz and Stegun 7.1.26 is not good enough: this is erf by its series below 2 and by its continued fraction above, to 1e-7.
fn erf(v: f32) -> f32 {
    let t = abs(v);
    if t < 2.0 {
        var term = t;
        var sum = t;
        for (var n = 1u; n < 24u; n++) {
            term *= -t * t / f32(n);
            sum += term / f32(2u * n + 1u);
        }
        return sign(v) * sum * 1.1283791670955126;
    }
    if t > 4.0 {
        return sign(v);
    }
    var fraction = 0.0;
    for (var n = 24u; n > 0u; n--) {
        fraction = 0.5 * f32(n) / (t + fraction);
    }
    return sign(v) * (1.0 - exp(-t * t) * 0.5641895835477563 / (t + fraction));
}

fn act(v: f32) -> f32 {
    switch ACTIVATION {
        case 0u: { return v * sigmoid(v); }
        case 1u: { return 0.5 * v * (1.0 + erf(v * 0.7071067811865476)); }
        case 2u: { return 0.5 * v * (1.0 + tanh(clamp(0.7978845608028654 * (v + 0.044715 * v * v * v), -15.0, 15.0))); }
        case 3u: { return max(v, 0.0); }
        default: { return max(v, 0.0) * max(v, 0.0); }
    }
}

fn inner_value(gate: f32, up: f32, gate_scale: f32, limit: f32, alpha: f32) -> f32 {
    if CLAMPED {
        let limited = min(gate_scale * gate, limit);
        return limited * sigmoid(alpha * limited) * (clamp(up, -limit, limit) + 1.0);
    }
    return act(gate_scale * gate) * up;
}
