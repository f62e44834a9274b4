// 32 halves in 16 words.
fn load_group(row: u32, group: u32) {
    let at = row + 16u * group;
    for (var i = 0u; i < 8u; i++) {
        w[i] = vec4<f32>(unpack2x16float(weights[at + 2u * i]), unpack2x16float(weights[at + 2u * i + 1u]));
    }
}
