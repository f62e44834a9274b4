// 32 signed bytes in 8 words; after all codes of a row its scales, two halves to a word.
fn load_group(row: u32, group: u32) {
    let at = row + 8u * group;
    let scale = half_at(row + 8u * a.groups, group);
    for (var i = 0u; i < 8u; i++) {
        w[i] = vec4<f32>(unpack4xI8(weights[at + i])) * scale;
    }
}
