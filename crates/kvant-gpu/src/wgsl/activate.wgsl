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
    if GATED {
        v = inner_value(x[at], x[at + a.up_at], a.gate_scale, a.limit, a.alpha);
    } else {
        v = act(x[at]);
    }
    y[row * a.y_stride + c] = v;
}
