// Blocks of 53 words (padded from 210 bytes) for 256 values: codes in 32, high bits in 16, scales in 4, d. In half h, run k of 32
// values takes nibble k / 2 of code bytes 64h + 32(k % 2) + l and bits 2k of high byte 32h + l.
fn load_group(row: u32, group: u32) {
    let at = row + 53u * (group / 8u);
    let half = (group % 8u) / 4u;
    let run = group % 4u;
    let d = unpack2x16float(weights[at + 52u]).x;
    let scales = unpack4xI8(weights[at + 48u + 2u * half + run / 2u]);
    let s = d * vec2<f32>(select(scales.xy, scales.zw, run % 2u == 1u));
    let codes = at + 16u * half + 8u * (run % 2u);
    let high = at + 32u + 8u * half;
    for (var i = 0u; i < 8u; i++) {
        let low = (weights[codes + i] >> (4u * (run / 2u))) & 0x0f0f0f0fu;
        let top = ((weights[high + i] >> (2u * run)) & 0x03030303u) << 4u;
        w[i] = (vec4<f32>(unpack4xU8(low | top)) - 32.0) * select(s.x, s.y, i >= 4u);
    }
}
