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

// Codes of a group as bytes, and its scale and minimum.
struct Fetched {
    low: vec4<u32>,
    high: vec4<u32>,
    scales: vec2<f32>,
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let codes = unpack4xU8(select(w.low[i % 4u], w.high[i % 4u], i >= 4u));
    return fma(vec4<f32>(codes), vec4<f32>(w.scales.x), vec4<f32>(-w.scales.y));
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.low;
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return w.high;
}

// As of Q4_0.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return fma(w.scales.x, fma(first, m.x, second * m.y), -w.scales.y * (m.z + m.w));
}
