// Every stream but the first grows by what the layer's own input gave, and the first is x again. A thread to a channel.
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
@group(0) @binding(0) var<storage, read> own: array<f32>;
@group(0) @binding(1) var<storage, read_write> streams: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    let c = number % a.width;
    if row >= a.rows {
        return;
    }
    let at = row * a.stride + c;
    for (var i = 1u; i < STREAMS; i++) {
        streams[at + i * a.stream] += own[row * a.x_stride + c];
    }
    x[row * a.x_stride + c] = streams[at];
}
