// The 6-bit scale and minimum of group g (of 8), times those of the block: groups 0 to 3 have a byte each, whose two top bits
// complete the nibbles of groups 4 to 7. The head of a block is d and dmin as halves, then twelve bytes of scales.
fn byte_of(head: vec4<u32>, index: u32) -> u32 {
    return (head[1u + index / 4u] >> (8u * (index % 4u))) & 255u;
}

fn scale_and_minimum(head: vec4<u32>, g: u32) -> vec2<f32> {
    let d = unpack2x16float(head.x);
    if g < 4u {
        return d * vec2<f32>(vec2<u32>(byte_of(head, g) & 63u, byte_of(head, g + 4u) & 63u));
    }
    let low = byte_of(head, g + 4u);
    let scale = (low & 15u) | ((byte_of(head, g - 4u) >> 6u) << 4u);
    let minimum = (low >> 4u) | ((byte_of(head, g) >> 6u) << 4u);
    return d * vec2<f32>(vec2<u32>(scale, minimum));
}
