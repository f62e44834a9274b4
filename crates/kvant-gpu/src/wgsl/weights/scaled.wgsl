// 32 signed bytes in 8 words; after all codes of a row two scales for each group, as floats, and two minima where there are any.
struct Fetched {
    low: vec4<u32>,
    high: vec4<u32>,
    scales: vec2<f32>,
    minima: vec2<f32>,
}

fn fetch(row: u32, group: u32) -> Fetched {
    let at = row / 4u + 2u * group;
    let scale_at = row + 8u * a.groups + 2u * group;
    var minima = vec2<f32>(0.0);
    if MINIMA {
        let minimum_at = scale_at + 2u * a.groups;
        minima = bitcast<vec2<f32>>(vec2<u32>(weights[minimum_at], weights[minimum_at + 1u]));
    }
    return Fetched(
        weights4[at],
        weights4[at + 1u],
        bitcast<vec2<f32>>(vec2<u32>(weights[scale_at], weights[scale_at + 1u])),
        minima,
    );
}

fn level4(w: Fetched, i: u32) -> vec4<f32> {
    let codes = vec4<f32>(unpack4xI8(select(w.low[i % 4u], w.high[i % 4u], i >= 4u)));
    let scale = select(w.scales.x, w.scales.y, i >= 4u);
    if MINIMA {
        return fma(codes, vec4<f32>(scale), vec4<f32>(-select(w.minima.x, w.minima.y, i >= 4u)));
    }
    return codes * scale;
}

fn first_codes(w: Fetched) -> vec4<u32> {
    return w.low;
}

fn second_codes(w: Fetched) -> vec4<u32> {
    return w.high;
}

// As of Q4_0.
fn levelled(w: Fetched, first: f32, second: f32, m: vec4<f32>) -> f32 {
    return fma(w.scales.x, first * m.x, fma(w.scales.y, second * m.y, -(w.minima.x * m.z + w.minima.y * m.w)));
}
