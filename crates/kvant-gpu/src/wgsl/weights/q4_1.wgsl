// Nibbles as in Q4_0; after all codes of a row a word for each group: scale and minimum as halves.
struct Fetched {
    codes: vec4<u32>,
    scales: vec2<f32>,
}

fn fetch(row: u32, group: u32) -> Fetched {
    return Fetched(weights4[row / 4u + group], unpack2x16float(weights[row + 4u * a.groups + group]));
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let codes = unpack4xU8((w.codes[i % 4u] >> (4u * (i / 4u))) & 0x0f0f0f0fu);
    return fma(vec4<f32>(codes), vec4<f32>(w.scales.x), vec4<f32>(w.scales.y));
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.codes & vec4<u32>(0x0f0f0f0fu);
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return (w.codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

// As of Q4_0.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return fma(w.scales.x, fma(first, m.x, second * m.y), w.scales.y * (m.z + m.w));
}
