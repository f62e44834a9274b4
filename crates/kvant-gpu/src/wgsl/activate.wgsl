// inner[t, c] = act(gate_scale · gate[t, c]) · up[t, c], or act(up[t, c]).
struct Arguments {
    width: u32,
    rows: u32,
    x_stride: u32,
    up_at: u32,
    y_stride: u32,
    gate_scale: f32,
    limit: f32,
    alpha: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

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

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    let c = number % a.width;
    if row >= a.rows {
        return;
    }
    let at = row * a.x_stride + c;
    var v = 0.0;
    if CLAMPED {
        let gate = min(a.gate_scale * x[at], a.limit);
        let up = clamp(x[at + a.up_at], -a.limit, a.limit);
        v = gate * sigmoid(a.alpha * gate) * (up + 1.0);
    } else if GATED {
        v = act(a.gate_scale * x[at]) * x[at + a.up_at];
    } else {
        v = act(x[at]);
    }
    y[row * a.y_stride + c] = v;
}
