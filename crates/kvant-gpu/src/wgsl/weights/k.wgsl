// The 6-bit scale and minimum of group g (of 8) of a block at `at`, times those of the block: groups 0 to 3 have a byte each, whose
// two top bits complete the nibbles of groups 4 to 7.
fn byte_at(at: u32, index: u32) -> u32 {
    return (weights[at + index / 4u] >> (8u * (index % 4u))) & 255u;
}

fn scale_and_minimum(at: u32, g: u32) -> vec2<f32> {
    let d = unpack2x16float(weights[at]);
    let s = at + 1u;
    if g < 4u {
        return d * vec2<f32>(vec2<u32>(byte_at(s, g) & 63u, byte_at(s, g + 4u) & 63u));
    }
    let low = byte_at(s, g + 4u);
    let scale = (low & 15u) | ((byte_at(s, g - 4u) >> 6u) << 4u);
    let minimum = (low >> 4u) | ((byte_at(s, g) >> 6u) << 4u);
    return d * vec2<f32>(vec2<u32>(scale, minimum));
}
