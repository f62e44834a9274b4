// What lies between projection and attention of passes with one token of each sequence (`head_rows.wgsl`): a workgroup to a head of
// queries, keys or values of a row.
struct Arguments {
    heads: u32,
    mark: u32,
    rows: u32,
    y_stride: u32,
    turns_at: u32,
    k_records_at: u32,
    v_records_at: u32,
    records: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> q_weight: array<f32>;
@group(0) @binding(4) var<storage, read> k_weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let queries = a.rows * a.heads;
    if number < queries {
        let row = number / a.heads;
        let head = number % a.heads;
        load(thread, 1u, row * X_STRIDE + Q_AT + head * Q_STEP, 0u);
        turn_queries(thread, 1u, row);
        for (var c = thread; c < DIM; c += 128u) {
            y[row * a.y_stride + head * DIM + c] = h[c];
        }
        return;
    }
    if number < queries + a.records {
        write_key(thread, a.k_records_at + 6u * (number - queries));
        return;
    }
    if number < queries + 2u * a.records {
        write_value(thread, a.v_records_at + 6u * (number - queries - a.records));
    }
}
