// predicted[t, to] = stream[t, to] + Σ by[t, to, from] · stream[t, from], and the active one of them is x. A thread to a channel.
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
@group(0) @binding(1) var<storage, read> streams: array<f32>;
@group(0) @binding(2) var<storage, read_write> predicted: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let row = number / a.width;
    let c = number % a.width;
    if row >= a.rows {
        return;
    }
    let at = row * a.stride + c;
    for (var to = 0u; to < STREAMS; to++) {
        var v = streams[at + to * a.stream];
        for (var other = 0u; other < STREAMS; other++) {
            v = fma(by[row * a.c_stride + to * STREAMS + other], streams[at + other * a.stream], v);
        }
        predicted[at + to * a.stream] = v;
        if to == ACTIVE {
            x[row * a.x_stride + c] = v;
        }
    }
}
