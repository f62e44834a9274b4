// Blocks of 44 words for 256 values: d and dmin, scales in 3 words, high bits in 8, codes in 32. As Q4_K; the high bit of value l of
// group g is bit g of high byte l.
fn load_group(row: u32, group: u32) {
    let at = row + 44u * (group / 8u);
    let g = group % 8u;
    let s = scale_and_minimum(at, g);
    let codes = at + 12u + 8u * (g / 2u);
    let shift = 4u * (g % 2u);
    for (var i = 0u; i < 8u; i++) {
        let high = ((weights[at + 4u + i] >> g) & 0x01010101u) << 4u;
        w[i] = vec4<f32>(unpack4xU8(((weights[codes + i] >> shift) & 0x0f0f0f0fu) | high)) * s.x - s.y;
    }
}
