// y[t, o] = keep · y[t, o] + cap(scale · (Σ_k W[o, k] · x[t, k] + bias[o])), for TOKENS tokens to a workgroup.
//
// 16 lanes share a row: lane l takes the groups l, l + 16, … of 32 weights, in four chains of fused products; the chains, then the
// lanes, are added in one order. So a token's sums do not depend on how many tokens there are beside it.
struct Arguments {
    groups: u32,
    inputs: u32,
    x_stride: u32,
    x_at: u32,
    outputs: u32,
    y_stride: u32,
    y_at: u32,
    bias_at: u32,
    tokens: u32,
    row_words: u32,
    keep: f32,
    scale: f32,
    cap: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<private> w: array<vec4<f32>, 8>;
var<workgroup> sums: array<f32, 64 * TOKENS>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let lane = thread % 16u;
    let output = 4u * (id.x + id.y * count.x) + thread / 16u;
    let first = TOKENS * id.z;
    let row = min(output, a.outputs - 1u) * a.row_words;
    var total: array<vec4<f32>, TOKENS>;
    for (var group = lane; group < a.groups; group += 16u) {
        load_group(row, group);
        for (var t = 0u; t < TOKENS; t++) {
            let at = a.x_at + min(first + t, a.tokens - 1u) * a.x_stride + 8u * group;
            var sum = total[t];
            if RAGGED && 32u * group + 32u > a.inputs {
                for (var i = 0u; i < 8u; i++) {
                    let k = vec4<u32>(32u * group + 4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
                    sum = fma(w[i], select(vec4<f32>(0.0), x[at + i], k < vec4<u32>(a.inputs)), sum);
                }
            } else {
                for (var i = 0u; i < 8u; i++) {
                    sum = fma(w[i], x[at + i], sum);
                }
            }
            total[t] = sum;
        }
    }
    for (var t = 0u; t < TOKENS; t++) {
        sums[64u * t + thread] = (total[t].x + total[t].y) + (total[t].z + total[t].w);
    }
    for (var step = 8u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            for (var t = 0u; t < TOKENS; t++) {
                sums[64u * t + thread] += sums[64u * t + thread + step];
            }
        }
    }
    workgroupBarrier();
    // 4 rows times TOKENS sums, a thread to each.
    let t = thread / 4u;
    let o = 4u * (id.x + id.y * count.x) + thread % 4u;
    if t < TOKENS && first + t < a.tokens && o < a.outputs {
        var v = sums[64u * t + 16u * (thread % 4u)];
        if BIAS {
            v += bias[a.bias_at + o];
        }
        v *= a.scale;
        if a.cap > 0.0 {
            v = a.cap * tanh(clamp(v / a.cap, -15.0, 15.0));
        }
        let at = (first + t) * a.y_stride + a.y_at + o;
        if ADD {
            v = fma(a.keep, y[at], v);
        }
        y[at] = v;
    }
}
