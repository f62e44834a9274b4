
// Heads between projection and attention, normed and rotated. Numbers are those of the norm, the rotation and the append that are
// kernels of their own.

// (heads, channels).
var<workgroup> h: array<f32, HEADS * DIM>;

// Heads whose channels lie `step` apart.
fn load(thread: u32, heads: u32, at: u32, step: u32) {
    for (var i = thread; i < heads * DIM; i += 128u) {
        h[i / DIM * DIM + i % DIM] = x[at + i / DIM * step + i % DIM];
    }
}

fn turn_queries(thread: u32, heads: u32, row: u32) {
    if Q_NORM && BEFORE {
        norm(thread, heads, 1.0, bitcast<f32>(Q_EPS), true);
    }
    rotate(thread, heads, row, 1.0);
    if Q_NORM && !BEFORE {
        norm(thread, heads, 1.0, bitcast<f32>(Q_EPS), true);
    }
}

// The key of a kv head of a row.
fn turn_key(thread: u32, row: u32, head: u32) {
    load(thread, 1u, row * X_STRIDE + K_AT + head * K_STEP, 0u);
    if K_NORM && BEFORE {
        norm(thread, 1u, bitcast<f32>(KEY_SCALE), bitcast<f32>(K_EPS), false);
        rotate(thread, 1u, row, 1.0);
    } else {
        rotate(thread, 1u, row, bitcast<f32>(KEY_SCALE));
    }
    if K_NORM && !BEFORE {
        norm(thread, 1u, 1.0, bitcast<f32>(K_EPS), false);
    }
}

fn norm(thread: u32, heads: u32, factor: f32, eps: f32, is_query: bool) {
    workgroupBarrier();
    for (var head = 0u; head < heads; head++) {
        let at = head * DIM;
        var square = 0.0;
        for (var c = 4u * thread; c < DIM; c += 512u) {
            for (var j = c; j < min(c + 4u, DIM); j++) {
                let v = factor * h[at + j];
                square = fma(v, v, square);
            }
        }
        let inverse = factor / sqrt(added(thread, square) / f32(DIM) + eps);
        for (var c = thread; c < DIM; c += 128u) {
            var v = h[at + c] * inverse;
            if is_query && Q_WEIGHT {
                v *= q_weight[c];
            }
            if !is_query && K_WEIGHT {
                v *= k_weight[c];
            }
            h[at + c] = v;
        }
    }
}

// Turns the first channels, and multiplies all; a thread has whole pairs.
fn rotate(thread: u32, heads: u32, row: u32, scale: f32) {
    const COUNT = (DIM + 1u) / 2u;
    workgroupBarrier();
    for (var n = thread; n < heads * COUNT; n += 128u) {
        let at = n / COUNT * DIM;
        let i = n % COUNT;
        if i < PAIRS {
            var first = at + i;
            var second = at + i + PAIRS;
            if NEIGHBOURS {
                first = at + 2u * i;
                second = at + 2u * i + 1u;
            }
            let turn_at = a.turns_at + 2u * (row * PAIRS + i);
            let turn = bitcast<f32>(AMPLITUDE) * vec2<f32>(bitcast<f32>(plan[turn_at]), bitcast<f32>(plan[turn_at + 1u]));
            let turned_pair = turned(scale * h[first], scale * h[second], turn);
            h[first] = turned_pair.x;
            h[second] = turned_pair.y;
        } else {
            for (var c = 2u * i; c < min(2u * i + 2u, DIM); c++) {
                h[at + c] = scale * h[at + c];
            }
        }
    }
    workgroupBarrier();
}

// Numbers as pages hold them: as bits, and read again.
fn key_bits(v: f32) -> u32 {
    if KEY_WIDE {
        return bitcast<u32>(v);
    }
    if KEY_BRAIN {
        return brain_bits(v);
    }
    return half_bits(v);
}

fn value_bits(v: f32) -> u32 {
    if VALUE_WIDE {
        return bitcast<u32>(v);
    }
    if VALUE_BRAIN {
        return brain_bits(v);
    }
    return half_bits(v);
}

fn held_key(v: f32) -> f32 {
    if KEY_WIDE {
        return v;
    }
    if KEY_BRAIN {
        return bitcast<f32>(brain_bits(v) << 16u);
    }
    return half_value(half_bits(v));
}

fn held_value(v: f32) -> f32 {
    if VALUE_WIDE {
        return v;
    }
    if VALUE_BRAIN {
        return bitcast<f32>(brain_bits(v) << 16u);
    }
    return half_value(half_bits(v));
}
