// y = keep · y + scale · x, row by row; what a factor of zero multiplies is not looked at.
struct Arguments {
    width: u32,
    rows: u32,
    x_stride: u32,
    y_stride: u32,
    keep: f32,
    scale: f32,
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
    let at = row * a.y_stride + c;
    var v = 0.0;
    if a.keep != 0.0 {
        v = a.keep * y[at];
    }
    if a.scale != 0.0 {
        v = fma(a.scale, x[row * a.x_stride + c], v);
    }
    y[at] = v;
}
