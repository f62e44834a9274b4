// What lies between projection and attention of passes with one token of each sequence: queries normed and rotated; keys normed,
// rotated and written to their exact pages; values written to theirs. A workgroup to a head of a row. Numbers are those of the norm,
// the rotation and the append that are kernels of their own.
struct Arguments {
    x_stride: u32,
    q_at: u32,
    q_step: u32,
    k_at: u32,
    k_step: u32,
    v_at: u32,
    v_step: u32,
    heads: u32,
    mark: u32,
    rows: u32,
    y_stride: u32,
    turns_at: u32,
    k_records_at: u32,
    v_records_at: u32,
    records: u32,
    key_scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> q_weight: array<f32>;
@group(0) @binding(4) var<storage, read> k_weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> h: array<f32, MOST>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let queries = a.rows * a.heads;
    if number < queries {
        let row = number / a.heads;
        let head = number % a.heads;
        load(thread, row * a.x_stride + a.q_at + head * a.q_step, DIM);
        if Q_NORM && BEFORE {
            norm(thread, 1.0, bitcast<f32>(Q_EPS), true);
        }
        rotate(thread, row, 1.0);
        if Q_NORM && !BEFORE {
            norm(thread, 1.0, bitcast<f32>(Q_EPS), true);
        }
        for (var c = thread; c < DIM; c += 128u) {
            y[row * a.y_stride + head * DIM + c] = h[c];
        }
        return;
    }
    if number < queries + a.records {
        let at = a.k_records_at + 6u * (number - queries);
        let row = plan[at + 3u];
        load(thread, row * a.x_stride + a.k_at + plan[at + 5u] * a.k_step, DIM);
        if K_NORM && BEFORE {
            norm(thread, a.key_scale, bitcast<f32>(K_EPS), false);
            rotate(thread, row, 1.0);
        } else {
            rotate(thread, row, a.key_scale);
        }
        if K_NORM && !BEFORE {
            norm(thread, 1.0, bitcast<f32>(K_EPS), false);
        }
        let tokens = select(KEY_TOKENS, 32u, plan[at + 1u] == 0u);
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
        return;
    }
    if number < queries + 2u * a.records {
        let at = a.v_records_at + 6u * (number - queries - a.records);
        let base = plan[at + 3u] * a.x_stride + a.v_at + plan[at + 5u] * a.v_step;
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
}

fn load(thread: u32, at: u32, dim: u32) {
    for (var c = thread; c < dim; c += 128u) {
        h[c] = x[at + c];
    }
}

fn norm(thread: u32, factor: f32, eps: f32, is_query: bool) {
    workgroupBarrier();
    var square = 0.0;
    for (var c = 4u * thread; c < DIM; c += 512u) {
        for (var j = c; j < min(c + 4u, DIM); j++) {
            let v = factor * h[j];
            square = fma(v, v, square);
        }
    }
    let inverse = factor / sqrt(added(thread, square) / f32(DIM) + eps);
    for (var c = thread; c < DIM; c += 128u) {
        var v = h[c] * inverse;
        if is_query && Q_WEIGHT {
            v *= q_weight[c];
        }
        if !is_query && K_WEIGHT {
            v *= k_weight[c];
        }
        h[c] = v;
    }
}

// Turns the first channels, and multiplies all; a thread has whole pairs.
fn rotate(thread: u32, row: u32, scale: f32) {
    workgroupBarrier();
    for (var i = thread; i < (DIM + 1u) / 2u; i += 128u) {
        if i < PAIRS {
            var first = i;
            var second = i + PAIRS;
            if NEIGHBOURS {
                first = 2u * i;
                second = 2u * i + 1u;
            }
            let at = a.turns_at + 2u * (row * PAIRS + i);
            let turn = bitcast<f32>(AMPLITUDE) * vec2<f32>(bitcast<f32>(plan[at]), bitcast<f32>(plan[at + 1u]));
            let turned_pair = turned(scale * h[first], scale * h[second], turn);
            h[first] = turned_pair.x;
            h[second] = turned_pair.y;
        } else {
            for (var c = 2u * i; c < min(2u * i + 2u, DIM); c++) {
                h[c] = scale * h[c];
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
    let x = noted(v, bitcast<f32>(KEY_LARGEST));
    if KEY_WIDE {
        return bitcast<u32>(x);
    }
    if KEY_BRAIN {
        return brain_bits(x);
    }
    return half_bits(x);
}

fn value_bits(v: f32) -> u32 {
    let x = noted(v, bitcast<f32>(VALUE_LARGEST));
    if VALUE_WIDE {
        return bitcast<u32>(x);
    }
    if VALUE_BRAIN {
        return brain_bits(x);
    }
    return half_bits(x);
}
