// Gates become max(scale · gate − cut, 0), where cut is the mean of the row and so many of its deviations. A workgroup to a row.
struct Arguments {
    width: u32,
    rows: u32,
    y_stride: u32,
    y_at: u32,
    deviations: f32,
    scale: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

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
    let at = row * a.y_stride + a.y_at;
    var sum = 0.0;
    for (var c = thread; c < a.width; c += 128u) {
        sum += a.scale * y[at + c];
    }
    let mean = added(thread, sum) / f32(a.width);
    var square = 0.0;
    for (var c = thread; c < a.width; c += 128u) {
        let v = a.scale * y[at + c] - mean;
        square = fma(v, v, square);
    }
    let cut = mean + a.deviations * sqrt(added(thread, square) / f32(a.width));
    for (var c = thread; c < a.width; c += 128u) {
        y[at + c] = max(a.scale * y[at + c] - cut, 0.0);
    }
}
