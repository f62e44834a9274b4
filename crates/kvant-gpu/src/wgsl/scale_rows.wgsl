// y[t, c] *= factor[t]: rows times numbers of the plan. A thread to a number.
struct Arguments {
    width: u32,
    rows: u32,
    y_stride: u32,
    y_at: u32,
    factors_at: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    if row >= a.rows {
        return;
    }
    y[row * a.y_stride + a.y_at + number % a.width] *= bitcast<f32>(plan[a.factors_at + row]);
}
