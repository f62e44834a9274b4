
// The token's own key and value, which are not in their pages yet.
fn has_own(task: Task) -> bool {
    return task.position + 1u == task.end;
}

// Its score by half of the channels, from one on.
fn own_score(begin_at: u32) -> vec4<f32> {
    var s = vec4<f32>(0.0);
    for (var c = begin_at; c < begin_at + KEY_DIM / 2u; c++) {
        s = fma(vec4<f32>(own_key[c / 4u][c % 4u]), kept(CHANNELS_AT + c), s);
    }
    return s;
}

fn own_four(four: u32) -> vec4<f32> {
    return vec4<f32>(own_value[4u * four], own_value[4u * four + 1u], own_value[4u * four + 2u], own_value[4u * four + 3u]);
}
