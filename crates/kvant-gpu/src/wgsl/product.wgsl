// What kernels of products share: y[t, o] = keep · y[t, o] + cap(scale · (Σ_k W[o, k] · x[t, k] + bias[o])), or with GATED
// act(gate_scale · W[o] x) · (W[outputs + o] x).
//
// Every sum has one order. Lane l of 32 has the groups l, l + 32, … of 32 weights, whose products go into one chain of fused
// multiplications; the lanes are added one after another. So a token's sums are the same bits in every kernel, whatever is
// beside it.
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
    // Of experts: rows of y to one of x, and rows of one expert's matrix.
    visits: u32,
    expert_rows: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> weights4: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// `bias_at` is where the output's bias is.
fn store(token: u32, o: u32, bias_at: u32, sum: f32) {
    let at = token * a.y_stride + a.y_at + o;
    var v = sum;
    if BIAS {
        v += bias[bias_at];
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

// Four numbers of a row of x; zeros behind its end.
fn input(token: u32, four: u32) -> vec4<f32> {
    if four >= 8u * a.groups || (RAGGED && 4u * four >= INPUTS) {
        return vec4<f32>(0.0);
    }
    var row = visit(min(token, a.tokens - 1u));
    if VISITS {
        row /= a.visits;
    }
    let v = x[a.x_at + row * a.x_stride + four];
    if RAGGED {
        let c = vec4<u32>(4u * four) + vec4<u32>(0u, 1u, 2u, 3u);
        return select(vec4<f32>(0.0), v, c < vec4<u32>(INPUTS));
    }
    return v;
}
