
// Heads between projection and attention: queries normed and rotated, keys normed, rotated and written to their exact pages, values
// written to theirs. Numbers are those of the norm, the rotation and the append that are kernels of their own.

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

// The key of a record: page, whether it is not the sinks', token of the page, row, 1, kv head.
fn write_key(thread: u32, at: u32) {
    let row = plan[at + 3u];
    load(thread, 1u, row * X_STRIDE + K_AT + plan[at + 5u] * K_STEP, 0u);
    if K_NORM && BEFORE {
        norm(thread, 1u, bitcast<f32>(KEY_SCALE), bitcast<f32>(K_EPS), false);
        rotate(thread, 1u, row, 1.0);
    } else {
        rotate(thread, 1u, row, bitcast<f32>(KEY_SCALE));
    }
    if K_NORM && !BEFORE {
        norm(thread, 1u, 1.0, bitcast<f32>(K_EPS), false);
    }
    let tokens = select(PAGE_TOKENS, 32u, plan[at + 1u] == 0u);
    for (var c = thread; c < DIM; c += 128u) {
        let e = c * tokens + plan[at + 2u];
        if KEY_WIDE {
            set_page_word(plan[at], e, key_bits(h[c]));
        } else {
            // Words of a page of keys have tokens beside each other, and this pass has one of them.
            let shift = 16u * (e % 2u);
            let others = page_word(plan[at], e / 2u) & ~(0xffffu << shift);
            set_page_word(plan[at], e / 2u, others | (key_bits(h[c]) << shift));
        }
    }
}

// The value of a record.
fn write_value(thread: u32, at: u32) {
    let base = plan[at + 3u] * X_STRIDE + V_AT + plan[at + 5u] * V_STEP;
    let to = plan[at + 2u] * VALUE_DIM;
    if VALUE_WIDE {
        for (var c = thread; c < VALUE_DIM; c += 128u) {
            set_page_word(plan[at], to + c, value_bits(x[base + c]));
        }
    } else {
        for (var c = 2u * thread; c < VALUE_DIM; c += 256u) {
            let word = value_bits(x[base + c]) | (value_bits(x[base + c + 1u]) << 16u);
            set_page_word(plan[at], (to + c) / 2u, word);
        }
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

fn noted(v: f32, largest: f32) -> f32 {
    // By its bits: Metal compares as if no number were NaN.
    if (bitcast<u32>(v) & 0x7fffffffu) > bitcast<u32>(largest) {
        atomicMax(&status[0], a.mark);
    }
    return v;
}

fn key_bits(v: f32) -> u32 {
    let y = noted(v, bitcast<f32>(KEY_LARGEST));
    if KEY_WIDE {
        return bitcast<u32>(y);
    }
    if KEY_BRAIN {
        return brain_bits(y);
    }
    return half_bits(y);
}

fn value_bits(v: f32) -> u32 {
    let y = noted(v, bitcast<f32>(VALUE_LARGEST));
    if VALUE_WIDE {
        return bitcast<u32>(y);
    }
    if VALUE_BRAIN {
        return brain_bits(y);
    }
    return half_bits(y);
}
