
// Queries as kernels before this one have left them: in the model's basis, and with PREPARED in that of coded keys.
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
    q_stride: u32,
    q_head: u32,
    p_stride: u32,
    p_head: u32,
    // Rows before those of queries as they meet the sinks of a streaming window.
    sinks_row: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> prepared: array<f32>;
@group(0) @binding(3) var<storage, read_write> partials: array<f32>;

fn begin(thread: u32, task: Task) {
    let is_coded = task.key_form == 0u;
    let first = task.row + select(0u, a.sinks_row, task.key_form == 2u);
    for (var i = thread; i < COLS * Q4; i += 128u) {
        let column = task.column + i / Q4;
        let c = 4u * (i % Q4);
        var four = vec4<f32>(0.0);
        if column < task.tokens * a.group {
            let row = first + column / a.group;
            let head = task.head * a.group + column % a.group;
            //@ j 4
            if c + $ju < KEY_DIM {
                if PREPARED && is_coded {
                    four[$j] = prepared[row * a.p_stride + head * a.p_head + c + $ju];
                } else {
                    four[$j] = q[row * a.q_stride + head * a.q_head + c + $ju];
                }
            }
            //@
        }
        queries[i] = four;
    }
    let column = task.column + thread;
    if PREPARED && is_coded && thread < COLS && column < task.tokens * a.group {
        let row = task.row + column / a.group;
        let head = task.head * a.group + column % a.group;
        offsets[thread] = prepared[row * a.p_stride + head * a.p_head + KEY_DIM];
    }
}

fn key4_or_own(task: Task, position: u32, page: u32, token: u32, four: u32, tokens: u32) -> vec4<f32> {
    return key4_exact(page, token, four, tokens);
}

fn value4_or_own(task: Task, position: u32, page: u32, c: u32, token: u32, tokens: u32) -> vec4<f32> {
    return value4_exact(page, c, token, tokens);
}
