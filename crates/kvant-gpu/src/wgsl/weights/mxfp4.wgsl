// Nibbles as in Q4_0, each twice a 4-bit float; after all codes of a row its exponents, four bytes to a word.
var<private> twice: array<f32, 16> = array<f32, 16>(0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0);

struct Fetched {
    codes: vec4<u32>,
    scale: f32,
}

fn fetch(row: u32, group: u32) -> Fetched {
    let e = (weights[row + 4u * a.groups + group / 4u] >> (8u * (group % 4u))) & 255u;
    // Half of 2^(e - 127); the two smallest are subnormal.
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return Fetched(weights4[row / 4u + group], scale);
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let c = unpack4xU8((w.codes[i % 4u] >> (4u * (i / 4u))) & 0x0f0f0f0fu);
    return w.scale * vec4<f32>(twice[c.x], twice[c.y], twice[c.z], twice[c.w]);
}
