// Some channels of every head, each times a number: y[t, h, c] = factor[c] · x[t, h, channel[c]]. A thread to a number.
struct Arguments {
    rows: u32,
    heads: u32,
    width: u32,
    x_stride: u32,
    x_at: u32,
    x_head: u32,
    y_stride: u32,
    y_at: u32,
}

var<immediate> a: Arguments;
// (width): channel and factor.
@group(0) @binding(0) var<storage, read> channels: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / (a.heads * a.width);
    if row >= a.rows {
        return;
    }
    let head = number / a.width % a.heads;
    let c = number % a.width;
    let v = x[row * a.x_stride + a.x_at + head * a.x_head + channels[2u * c]];
    y[row * a.y_stride + a.y_at + head * a.width + c] = bitcast<f32>(channels[2u * c + 1u]) * v;
}
