// Queries in the basis of the keys' codec, or the part that meets latents in that of the values', and what the mean of these adds to their
// scores. A workgroup to a head.
struct Arguments {
    rows: u32,
    heads: u32,
    q_stride: u32,
    y_stride: u32,
    y_head: u32,
    group: u32,
    // Where the part begins, from one head to the next, and where it goes.
    q_at: u32,
    q_head: u32,
    y_at: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> q: array<f32>;
// Of every kv head (channels of the model, channels of the codec), of latents the transpose, then the mean.
@group(0) @binding(1) var<storage, read> basis: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let row = number / a.heads;
    let head = number % a.heads;
    if row >= a.rows {
        return;
    }
    let base = row * a.q_stride + a.q_at + head * a.q_head;
    let to = row * a.y_stride + a.y_at + head * a.y_head;
    for (var c = thread; c <= DIM; c += 64u) {
        // The column after the last channel is the mean.
        let step = select(DIM, 1u, c == DIM || LATENT);
        let first = head / a.group * BASIS_STEP + select(select(c, c * DIM, LATENT), DIM * DIM, c == DIM);
        var sum = 0.0;
        for (var j = 0u; j < DIM; j++) {
            sum = fma(basis[first + j * step], q[base + j], sum);
        }
        y[to + c] = sum;
    }
}
