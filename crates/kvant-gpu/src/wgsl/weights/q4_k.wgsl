// Blocks of 36 words for 256 values: d and dmin, scales in 3 words, codes in 32. Groups 2k and 2k + 1 are the low and high nibbles
// of code bytes 32k to 32k + 31.
fn fetch(row: u32, group: u32) -> Fetched {
    let at = row + 36u * (group / 8u);
    let g = group % 8u;
    let codes = at / 4u + 1u + 2u * (g / 2u);
    let shift = vec4<u32>(4u * (g % 2u));
    let mask = vec4<u32>(0x0f0f0f0fu);
    return Fetched(
        (weights4[codes] >> shift) & mask,
        (weights4[codes + 1u] >> shift) & mask,
        scale_and_minimum(weights4[at / 4u], g),
    );
}
