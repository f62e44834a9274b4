// 32 upper halves of singles in 16 words.
fn pair(word: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(word << 16u, word & 0xffff0000u));
}

fn load_group(row: u32, group: u32) {
    let at = row + 16u * group;
    for (var i = 0u; i < 8u; i++) {
        w[i] = vec4<f32>(pair(weights[at + 2u * i]), pair(weights[at + 2u * i + 1u]));
    }
}
