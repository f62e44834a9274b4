// Blocks of 36 words for 256 values: d and dmin, scales in 3 words, codes in 32. Groups 2k and 2k + 1 are the low and high nibbles
// of code bytes 32k to 32k + 31.
fn load_group(row: u32, group: u32) {
    let at = row + 36u * (group / 8u);
    let g = group % 8u;
    let s = scale_and_minimum(at, g);
    let codes = at + 4u + 8u * (g / 2u);
    let shift = 4u * (g % 2u);
    for (var i = 0u; i < 8u; i++) {
        w[i] = vec4<f32>(unpack4xU8((weights[codes + i] >> shift) & 0x0f0f0f0fu)) * s.x - s.y;
    }
}
