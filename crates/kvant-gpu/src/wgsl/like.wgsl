// y[t] = keep · y[t] + scale · x[t], with x rescaled to the root mean square of another row. A workgroup to a row.
struct Arguments {
    width: u32,
    rows: u32,
    x_stride: u32,
    x_at: u32,
    to_stride: u32,
    to_at: u32,
    y_stride: u32,
    y_at: u32,
    keep: f32,
    scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> to: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let row = id.x + id.y * count.x;
    if row >= a.rows {
        return;
    }
    let x_at = row * a.x_stride + a.x_at;
    let to_at = row * a.to_stride + a.to_at;
    let y_at = row * a.y_stride + a.y_at;
    var own = 0.0;
    var other = 0.0;
    for (var c = thread; c < a.width; c += 128u) {
        own = fma(x[x_at + c], x[x_at + c], own);
        other = fma(to[to_at + c], to[to_at + c], other);
    }
    let width = f32(a.width);
    let mean_square = max(added(thread, own) / width, LEAST);
    let by = a.scale * sqrt(added(thread, other) / width) / sqrt(mean_square);
    for (var c = thread; c < a.width; c += 128u) {
        var v = by * x[x_at + c];
        if a.keep != 0.0 {
            v = fma(a.keep, y[y_at + c], v);
        }
        y[y_at + c] = v;
    }
}
