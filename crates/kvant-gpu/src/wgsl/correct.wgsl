// stream[t, i] = predicted[t, i] + (x[t] − predicted[t, active]) · (1 + by[t, i]); the active one times its scale is y. A thread to a
// channel.
struct Arguments {
    width: u32,
    rows: u32,
    // From one row of streams to the next, and from one stream to the next.
    stride: u32,
    stream: u32,
    c_stride: u32,
    x_stride: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> by: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> predicted: array<f32>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> streams: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    let c = number % a.width;
    if row >= a.rows {
        return;
    }
    let at = row * a.stride + c;
    let change = x[row * a.x_stride + c] - predicted[at + ACTIVE * a.stream];
    for (var i = 0u; i < STREAMS; i++) {
        var v = fma(1.0 + by[row * a.c_stride + i], change, predicted[at + i * a.stream]);
        streams[at + i * a.stream] = v;
        if i == ACTIVE {
            if SCALE {
                v *= scale[c];
            }
            y[row * a.x_stride + c] = v;
        }
    }
}
