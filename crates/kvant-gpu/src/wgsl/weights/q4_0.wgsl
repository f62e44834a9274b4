// 32 nibbles in 4 words: value i < 16 is the low half of byte i, value i + 16 its high half; after all codes of a row its
// scales, two halves to a word.
fn load_group(row: u32, group: u32) {
    let at = row + 4u * group;
    let scale = half_at(row + 4u * a.groups, group);
    for (var i = 0u; i < 4u; i++) {
        let word = weights[at + i];
        w[i] = (vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)) - 8.0) * scale;
        w[i + 4u] = (vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)) - 8.0) * scale;
    }
}
