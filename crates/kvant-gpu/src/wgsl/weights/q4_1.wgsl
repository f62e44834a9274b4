// Nibbles as in Q4_0; after all codes of a row a word for each group: scale and minimum as halves.
fn load_group(row: u32, group: u32) {
    let at = row + 4u * group;
    let s = unpack2x16float(weights[row + 4u * a.groups + group]);
    for (var i = 0u; i < 4u; i++) {
        let word = weights[at + i];
        w[i] = vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)) * s.x + s.y;
        w[i + 4u] = vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)) * s.x + s.y;
    }
}
