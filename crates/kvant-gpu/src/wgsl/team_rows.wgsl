
// What kernels whose teams share rows of weights have in common: norms, experts, and which rows and biases are a team's.
@group(0) @binding(5) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> norm_bias: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> routes: array<u32>;

var<private> expert: u32;

// Row r of a team: R outputs side by side, or R / 2 gates, each with its up.
fn row_of(unit: u32, r: u32) -> u32 {
    let first = expert * a.expert_rows;
    if GATED {
        return first + min((R / 2u) * unit + r / 2u, a.outputs - 1u) + (r % 2u) * a.outputs;
    }
    return first + min(R * unit + r, a.outputs - 1u);
}

fn bias_of(o: u32) -> u32 {
    return a.bias_at + expert * a.expert_rows + o;
}
