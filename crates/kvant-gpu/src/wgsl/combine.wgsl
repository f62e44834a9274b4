// What the experts of a token gave, one after another under their weights, and what every token's expert gave under its gate:
// y[t] = keep · y[t] + scale · (Σ_i weight_i · experts[t, i] + sigmoid(gate[t]) · shared[t]).
struct Arguments {
    width: u32,
    rows: u32,
    x_stride: u32,
    shared_stride: u32,
    gate_stride: u32,
    y_stride: u32,
    expert_scale: f32,
    keep: f32,
    scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> routes: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> shared_out: array<f32>;
@group(0) @binding(3) var<storage, read> gate: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    let c = number % a.width;
    if row >= a.rows {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < CHOSEN; i++) {
        let pair = row * CHOSEN + i;
        sum = fma(a.expert_scale * bitcast<f32>(routes[2u * pair + 1u]), x[pair * a.x_stride + c], sum);
    }
    if SHARED {
        var share = 1.0;
        if GATE {
            share = 1.0 / (1.0 + exp(-gate[row * a.gate_stride]));
        }
        sum = fma(share, shared_out[row * a.shared_stride + c], sum);
    }
    let at = row * a.y_stride + c;
    var v = a.scale * sum;
    if a.keep != 0.0 {
        v = fma(a.keep, y[at], v);
    }
    y[at] = v;
}
