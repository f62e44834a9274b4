// 32 numbers, as they are.
struct Fetched {
    v: array<vec4<u32>, 8>,
}

fn fetch(row: u32, group: u32) -> Fetched {
    let at = row / 4u + 8u * group;
    return Fetched(array<vec4<u32>, 8>(
        weights4[at], weights4[at + 1u], weights4[at + 2u], weights4[at + 3u],
        weights4[at + 4u], weights4[at + 5u], weights4[at + 6u], weights4[at + 7u],
    ));
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(w.v[i]);
}
