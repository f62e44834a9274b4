// 32 signed bytes in 8 words; after all codes of a row its scales, two halves to a word.
struct Fetched {
    low: vec4<u32>,
    high: vec4<u32>,
    scale: f32,
}

fn fetch(row: u32, group: u32) -> Fetched {
    let at = row / 4u + 2u * group;
    return Fetched(weights4[at], weights4[at + 1u], half_at(row + 8u * a.groups, group));
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let word = select(w.low[i % 4u], w.high[i % 4u], i >= 4u);
    return vec4<f32>(unpack4xI8(word)) * w.scale;
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.low;
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return w.high;
}

// As of Q4_0.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return w.scale * fma(first, m.x, second * m.y);
}
