
// Codes, and what they leave over turned into their basis: of every channel of the second (channels of the first).
fn value4_coded(page: u32, channel: u32, four: u32) -> vec4<f32> {
    var y = value4_coarse(page, channel, four);
    for (var n = 0u; n < VALUE_SUM_DIM; n++) {
        let turned = bitcast<f32>(value_map[n * VALUE_SUM_DIM + channel]);
        y = fma(value4_rest(page, n, four), vec4<f32>(turned), y);
    }
    return y;
}
