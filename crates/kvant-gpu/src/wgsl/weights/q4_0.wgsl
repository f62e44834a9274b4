// 32 nibbles in 4 words: value i < 16 is the low half of byte i, value i + 16 its high half; after all codes of a row its
// scales, two halves to a word.
struct Fetched {
    codes: vec4<u32>,
    scale: f32,
}

fn fetch(row: u32, group: u32) -> Fetched {
    return Fetched(weights4[row / 4u + group], half_at(row + 4u * a.groups, group));
}

// A nibble in bits 12 to 15, or 16 to 19, of a float of 2048, or 128, makes it larger by the nibble. Products with a scale of 11
// bits are exact, fused or not.
fn low_code(bits: u32, scale: f32) -> f32 {
    return fma(bitcast<f32>((bits & 0x0000f000u) | 0x45000000u), scale, -2056.0 * scale);
}

fn high_code(bits: u32, scale: f32) -> f32 {
    return fma(bitcast<f32>((bits & 0x000f0000u) | 0x43000000u), scale, -136.0 * scale);
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let q = w.codes[i % 4u];
    let d = w.scale;
    if i < 4u {
        return vec4<f32>(low_code(q << 12u, d), low_code(q << 4u, d), high_code(q, d), high_code(q >> 8u, d));
    }
    return vec4<f32>(high_code(q << 12u, d), low_code(q, d), low_code(q >> 8u, d), high_code(q >> 12u, d));
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.codes & vec4<u32>(0x0f0f0f0fu);
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return (w.codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

// `first` and `second` are sums of codes times x of a half, `m` the scales and sums of x.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return w.scale * fma(first, m.x, fma(second, m.y, -8.0 * (m.z + m.w)));
}
