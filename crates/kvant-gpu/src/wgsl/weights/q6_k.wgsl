// Blocks of 53 words (padded from 210 bytes) for 256 values: codes in 32, high bits in 16, scales in 4, d. In half h, run k of 32
// values takes nibble k / 2 of code bytes 64h + 32(k % 2) + l and bits 2k of high byte 32h + l.
struct Fetched {
    low: vec4<u32>,
    high: vec4<u32>,
    scales: vec2<f32>,
}

fn four_words(at: u32) -> vec4<u32> {
    return vec4<u32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
}

fn fetch(row: u32, group: u32) -> Fetched {
    let at = row + 53u * (group / 8u);
    let half = (group % 8u) / 4u;
    let run = group % 4u;
    let d = unpack2x16float(weights[at + 52u]).x;
    let scales = unpack4xI8(weights[at + 48u + 2u * half + run / 2u]);
    let codes = at + 16u * half + 8u * (run % 2u);
    let tops = at + 32u + 8u * half;
    let shift = vec4<u32>(4u * (run / 2u));
    let up = vec4<u32>(2u * run);
    let mask = vec4<u32>(0x0f0f0f0fu);
    let two = vec4<u32>(0x03030303u);
    let four = vec4<u32>(4u);
    return Fetched(
        ((four_words(codes) >> shift) & mask) | (((four_words(tops) >> up) & two) << four),
        ((four_words(codes + 4u) >> shift) & mask) | (((four_words(tops + 4u) >> up) & two) << four),
        d * vec2<f32>(select(scales.xy, scales.zw, run % 2u == 1u)),
    );
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let codes = unpack4xU8(select(w.low[i % 4u], w.high[i % 4u], i >= 4u));
    return (vec4<f32>(codes) - 32.0) * select(w.scales.x, w.scales.y, i >= 4u);
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.low;
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return w.high;
}

// As of Q4_0.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return w.scales.x * fma(first, m.x, -32.0 * m.z) + w.scales.y * fma(second, m.y, -32.0 * m.w);
}
