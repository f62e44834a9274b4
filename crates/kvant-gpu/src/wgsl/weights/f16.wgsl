// 32 halves in 16 words.
struct Fetched {
    v: array<vec4<u32>, 4>,
}

fn fetch(row: u32, group: u32) -> Fetched {
    let at = row / 4u + 4u * group;
    return Fetched(array<vec4<u32>, 4>(weights4[at], weights4[at + 1u], weights4[at + 2u], weights4[at + 3u]));
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let pairs = select(w.v[i / 2u].xy, w.v[i / 2u].zw, i % 2u == 1u);
    return vec4<f32>(unpack2x16float(pairs.x), unpack2x16float(pairs.y));
}
