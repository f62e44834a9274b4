
// Queries of this pass's projection, of one token of each sequence, normed and rotated here. The workgroup that has the token's own
// position writes its key and value before it reads them; no other workgroup looks at them.
struct Arguments {
    tasks_at: u32,
    tasks: u32,
    // Where entries of coded pages, and of the others, are counted from.
    coded_at: u32,
    table_at: u32,
    group: u32,
    window: u32,
    // The window that sinks are seen in.
    sinks_window: u32,
    scale: f32,
    cap: f32,
    sinks: u32,
    mark: u32,
    turns_at: u32,
    k_records_at: u32,
    v_records_at: u32,
    kv_heads: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> partials: array<f32>;
@group(0) @binding(4) var<storage, read> q_weight: array<f32>;
@group(0) @binding(5) var<storage, read> k_weight: array<f32>;

fn begin(thread: u32, task: Task) {
    if task.position + 1u == task.end {
        let record = 6u * (task.row * a.kv_heads + task.head);
        write_key(thread, a.k_records_at + record);
        write_value(thread, a.v_records_at + record);
        storageBarrier();
        workgroupBarrier();
    }
    load(thread, HEADS, task.row * X_STRIDE + Q_AT + task.head * HEADS * Q_STEP, Q_STEP);
    turn_queries(thread, HEADS, task.row);
    workgroupBarrier();
    for (var i = thread; i < COLS * Q4; i += 128u) {
        let column = i / Q4;
        let c = 4u * (i % Q4);
        var four = vec4<f32>(0.0);
        if column < HEADS {
            //@ j 4
            if c + $ju < KEY_DIM {
                four[$j] = h[column * DIM + c + $ju];
            }
            //@
        }
        queries[i] = four;
    }
}
