// Blocks of 44 words for 256 values: d and dmin, scales in 3 words, high bits in 8, codes in 32. As Q4_K; the high bit of value l of
// group g is bit g of high byte l.
fn fetch(row: u32, group: u32) -> Fetched {
    let at = row + 44u * (group / 8u);
    let g = group % 8u;
    let codes = at / 4u + 3u + 2u * (g / 2u);
    let shift = vec4<u32>(4u * (g % 2u));
    let mask = vec4<u32>(0x0f0f0f0fu);
    let one = vec4<u32>(0x01010101u);
    let top = array<vec4<u32>, 2>(
        ((weights4[at / 4u + 1u] >> vec4<u32>(g)) & one) << vec4<u32>(4u),
        ((weights4[at / 4u + 2u] >> vec4<u32>(g)) & one) << vec4<u32>(4u),
    );
    return Fetched(
        ((weights4[codes] >> shift) & mask) | top[0],
        ((weights4[codes + 1u] >> shift) & mask) | top[1],
        scale_and_minimum(weights4[at / 4u], g),
    );
}
