
// Queries of this pass's projection, of one token of each sequence, normed and rotated here. The workgroup that has the token's own
// position makes its key and value too, as the page will hold them; they get there by the kernel that puts splits together, because
// pages that are only read are read faster.
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> q_weight: array<f32>;
@group(0) @binding(3) var<storage, read> k_weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> partials: array<f32>;

var<workgroup> own_key: array<vec4<f32>, Q4>;
var<workgroup> own_value: array<f32, VALUE_DIM>;

fn begin(thread: u32, task: Task) {
    if task.position + 1u == task.end {
        turn_key(thread, task.row, task.head);
        workgroupBarrier();
        for (var four = thread; four < Q4; four += 128u) {
            var y = vec4<f32>(0.0);
            //@ j 4
            if 4u * four + $ju < KEY_DIM {
                y[$j] = held_key(h[4u * four + $ju]);
            }
            //@
            own_key[four] = y;
        }
        for (var c = thread; c < VALUE_DIM; c += 128u) {
            own_value[c] = held_value(x[task.row * X_STRIDE + V_AT + task.head * V_STEP + c]);
        }
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

fn key4_or_own(task: Task, position: u32, page: u32, token: u32, four: u32, tokens: u32) -> vec4<f32> {
    let held = key4_exact(page, token, four, tokens);
    return select(held, own_key[four], position == task.position);
}

fn value4_or_own(task: Task, position: u32, page: u32, c: u32, token: u32, tokens: u32) -> vec4<f32> {
    let held = value4_exact(page, c, token, tokens);
    if task.position + 1u != task.end || position + 3u < task.position {
        return held;
    }
    let positions = vec4<u32>(position) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(held, vec4<f32>(own_value[c]), positions == vec4<u32>(task.position));
}
