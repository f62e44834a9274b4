// 32 numbers, as they are.
fn load_group(row: u32, group: u32) {
    let at = row + 32u * group;
    for (var i = 0u; i < 8u; i++) {
        let p = at + 4u * i;
        w[i] = bitcast<vec4<f32>>(vec4<u32>(weights[p], weights[p + 1u], weights[p + 2u], weights[p + 3u]));
    }
}
