// y[t, s, c] *= act(scale · g[t, s, c]): rows of stretches, which may lie apart. A thread to a number.
struct Arguments {
    width: u32,
    segments: u32,
    rows: u32,
    g_stride: u32,
    g_at: u32,
    g_segment: u32,
    y_stride: u32,
    y_at: u32,
    y_segment: u32,
    scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> g: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / (a.segments * a.width);
    if row >= a.rows {
        return;
    }
    let segment = number / a.width % a.segments;
    let c = number % a.width;
    let v = a.scale * g[row * a.g_stride + a.g_at + segment * a.g_segment + c];
    var by = sigmoid(v);
    if !SIGMOID {
        by = act(v);
    }
    y[row * a.y_stride + a.y_at + segment * a.y_segment + c] *= by;
}
