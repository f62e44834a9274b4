// y[t, o] = keep · y[t, o] + cap(scale · (Σ_k W[o, k] · x[t, k] + bias[o])), for TOKENS tokens to a workgroup. With NORMED the rows
// of x are normed on their way; with GATED the outputs are act(gate_scale · W[o] x) · (W[outputs + o] x).
//
// 16 lanes share a row, or R rows: lane l takes the groups l, l + 16, … of 32 weights, in four chains of fused products; the chains,
// then the lanes, are added in one order. So a token's sums do not depend on how many tokens there are beside it. Numbers of x go
// through workgroup memory, STAGE groups at a time, where lanes find theirs side by side.
struct Arguments {
    groups: u32,
    x_stride: u32,
    x_at: u32,
    outputs: u32,
    y_stride: u32,
    y_at: u32,
    bias_at: u32,
    tokens: u32,
    row_words: u32,
    // Of gated outputs: the gate's scale, limit and alpha.
    keep: f32,
    scale: f32,
    cap: f32,
    eps: f32,
    norm_scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> norm_bias: array<vec4<f32>>;

const STAGED = 17u * STAGE / 2u;

var<private> w: array<vec4<f32>, 8>;
// Four number i of group 16 · s + l of a token lies at 17 · (8 · s + i) + l.
var<workgroup> staged: array<vec4<f32>, TOKENS * STAGED>;
var<workgroup> sums: array<f32, 128 * R * TOKENS>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let lane = thread % 16u;
    let place = id.x + id.y * count.x;
    let unit = 8u * place + thread / 16u;
    let first = TOKENS * id.z;
    var rows: array<u32, R>;
    for (var r = 0u; r < R; r++) {
        if GATED {
            rows[r] = (min(unit, a.outputs - 1u) + r * a.outputs) * a.row_words;
        } else {
            rows[r] = min(R * unit + r, a.outputs - 1u) * a.row_words;
        }
    }
    var mean = 0.0;
    var inverse = 0.0;
    if NORMED {
        if LAYER {
            var sum = 0.0;
            for (var c = thread; c < INPUTS; c += 128u) {
                sum += x[a.x_at + c / 4u][c % 4u];
            }
            mean = added(thread, sum) / f32(INPUTS);
        }
        var square = 0.0;
        for (var c = thread; c < INPUTS; c += 128u) {
            let v = x[a.x_at + c / 4u][c % 4u] - mean;
            square = fma(v, v, square);
        }
        inverse = a.norm_scale / sqrt(added(thread, square) / f32(INPUTS) + a.eps);
    }
    var total: array<vec4<f32>, R * TOKENS>;
    for (var base = 0u; base < GROUPS; base += STAGE) {
        workgroupBarrier();
        for (var e = thread; e < TOKENS * STAGE * 8u; e += 128u) {
            let t = e / (STAGE * 8u);
            let k = e % (STAGE * 8u);
            let four = 8u * base + k;
            var v = vec4<f32>(0.0);
            if 4u * four < INPUTS {
                v = x[a.x_at + min(first + t, a.tokens - 1u) * a.x_stride + four];
                if NORMED {
                    v = (v - mean) * inverse;
                    if NORM_WEIGHT {
                        v *= norm_weight[four];
                    }
                    if NORM_BIAS {
                        v += a.norm_scale * norm_bias[four];
                    }
                }
                if RAGGED {
                    let c = vec4<u32>(4u * four) + vec4<u32>(0u, 1u, 2u, 3u);
                    v = select(vec4<f32>(0.0), v, c < vec4<u32>(INPUTS));
                }
            }
            staged[t * STAGED + 17u * (8u * (k / 128u) + k % 8u) + (k / 8u) % 16u] = v;
        }
        workgroupBarrier();
        for (var s = 0u; s < STAGE / 16u; s++) {
            let group = base + 16u * s + lane;
            if group < GROUPS {
                for (var r = 0u; r < R; r++) {
                    load_group(rows[r], group);
                    for (var t = 0u; t < TOKENS; t++) {
                        var sum = total[TOKENS * r + t];
                        for (var i = 0u; i < 8u; i++) {
                            sum = fma(w[i], staged[t * STAGED + 17u * (8u * s + i) + lane], sum);
                        }
                        total[TOKENS * r + t] = sum;
                    }
                }
            }
        }
    }
    workgroupBarrier();
    for (var n = 0u; n < R * TOKENS; n++) {
        sums[128u * n + thread] = (total[n].x + total[n].y) + (total[n].z + total[n].w);
    }
    for (var step = 8u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            for (var n = 0u; n < R * TOKENS; n++) {
                sums[128u * n + thread] += sums[128u * n + thread + step];
            }
        }
    }
    workgroupBarrier();
    // A thread to each output of the workgroup.
    let t = thread / OUTPUTS;
    let own = thread % OUTPUTS;
    let o = OUTPUTS * place + own;
    if t < TOKENS && first + t < a.tokens && o < a.outputs {
        let at = (first + t) * a.y_stride + a.y_at + o;
        if GATED {
            var gate = sums[128u * t + 16u * own];
            var up = sums[128u * ((R - 1u) * TOKENS + t) + 16u * own];
            if BIAS {
                gate += bias[a.bias_at + o];
                up += bias[a.bias_at + a.outputs + o];
            }
            y[at] = inner_value(gate, up, a.keep, a.scale, a.cap);
        } else {
            var v = sums[128u * (TOKENS * (own % R) + t) + 16u * (own / R)];
            if BIAS {
                v += bias[a.bias_at + o];
            }
            v *= a.scale;
            if a.cap > 0.0 {
                v = a.cap * tanh(clamp(v / a.cap, -15.0, 15.0));
            }
            if ADD {
                v = fma(a.keep, y[at], v);
            }
            y[at] = v;
        }
    }
}

// The sum over all threads, in the order of the norm that is a kernel of its own.
fn added(thread: u32, v: f32) -> f32 {
    workgroupBarrier();
    sums[thread] = v;
    for (var step = 64u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if thread < step {
            sums[thread] += sums[thread + step];
        }
    }
    workgroupBarrier();
    return sums[0];
}
