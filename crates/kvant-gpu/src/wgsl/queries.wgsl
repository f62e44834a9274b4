
// Queries as kernels before this one have left them: in the model's basis, and with PREPARED in that of coded keys.
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
