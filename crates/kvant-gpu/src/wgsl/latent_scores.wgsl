
// Latents: values that scores meet too. Queries have a second part, `latents`, of VALUE_DIM channels behind that of keys; four threads
// share four positions, each with every fourth channel, and add up one after another.
var<workgroup> latents: array<f32, COLS * VALUE_DIM>;

fn begin_latents(thread: u32, task: Task) {
    let is_moved = VALUE_PREPARED && task.value_form == 0u;
    let latents_at = KV_HEADS * a.group * (KEY_DIM + 1u);
    let first = task.row + select(0u, a.sinks_row, task.key_form == 2u);
    for (var i = thread; i < COLS * VALUE_DIM; i += 128u) {
        let column = task.column + i / VALUE_DIM;
        let c = i % VALUE_DIM;
        var v = 0.0;
        if column < task.tokens * a.group {
            let head = task.head * a.group + column % a.group;
            if is_moved {
                v = prepared[(task.row + column / a.group) * a.p_stride + latents_at + head * (VALUE_DIM + 1u) + c];
            } else {
                v = q[(first + column / a.group) * a.q_stride + head * a.q_head + KEY_DIM + c];
            }
        }
        latents[i] = v;
    }
    let column = task.column + thread;
    if is_moved && thread < COLS && column < task.tokens * a.group {
        let head = task.head * a.group + column % a.group;
        let at = (task.row + column / a.group) * a.p_stride + latents_at + head * (VALUE_DIM + 1u);
        offsets[thread] += prepared[at + VALUE_DIM];
    }
}

fn ready_scores(thread: u32, task: Task, first: u32) {
    workgroupBarrier();
    let four = thread / 4u;
    let part = thread % 4u;
    let end = min(128u, task.end - first);
    //@ k COLS
    var dot$k = vec4<f32>(0.0);
    //@
    if 4u * four < end {
        let place = value_place(task, first, 4u * four);
        let tokens = select(VALUE_TOKENS, 32u, task.value_form == 2u);
        for (var c = part; c < VALUE_DIM; c += 4u) {
            var v = vec4<f32>(0.0);
            if task.value_form == 0u {
                v = value4_coded(place.x, c, place.y / 4u);
            } else {
                v = there(value4_exact(place.x, c, place.y, tokens), 4u * four, end);
            }
            //@ k COLS
            dot$k = fma(v, vec4<f32>(latents[VALUE_DIM * $ku + c]), dot$k);
            //@
        }
    }
    for (var turn = 0u; turn < 4u; turn++) {
        if part == turn {
            //@ k COLS
            if turn == 0u {
                weights[32u * $ku + four] = dot$k;
            } else {
                weights[32u * $ku + four] += dot$k;
            }
            //@
        }
        workgroupBarrier();
    }
}
