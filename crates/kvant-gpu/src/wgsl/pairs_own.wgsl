
// The token's own key and value, which are not in their pages yet.
fn has_own(task: Task) -> bool {
    return task.position + 1u == task.end;
}

fn own_score() -> vec4<f32> {
    var s = vec4<f32>(0.0);
    for (var c = 0u; c < KEY_DIM / 4u; c++) {
        let y = own_key[c];
        //@ j 4
        s = fma(vec4<f32>(y[$j]), by_channel[4u * c + $ju], s);
        //@
    }
    return s;
}

fn own_pair(pair: u32) -> vec2<f32> {
    return vec2<f32>(own_value[2u * pair], own_value[2u * pair + 1u]);
}
