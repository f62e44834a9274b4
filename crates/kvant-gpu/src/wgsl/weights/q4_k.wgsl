// Blocks of 36 words for 256 values: d and dmin, scales in 3 words, codes in 32. Groups 2k and 2k + 1 are the low and high nibbles
// of code bytes 32k to 32k + 31.
struct Fetched {
    low: vec4<u32>,
    high: vec4<u32>,
    scales: vec2<f32>,
}

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
