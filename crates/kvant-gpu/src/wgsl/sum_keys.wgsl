
// Codes, and what they leave over turned into their basis: of every channel of the second (channels of the first).
fn key4_coded(page: u32, token: u32, four: u32) -> vec4<f32> {
    var y = key4_coarse(page, token, four);
    for (var n = 0u; n < KEY_SUM_DIM / 4u; n++) {
        let z = key4_rest(page, token, n);
        for (var k = 0u; k < 4u; k++) {
            let at = (4u * n + k) * KEY_SUM_DIM + 4u * four;
            let turned = vec4<u32>(key_map[at], key_map[at + 1u], key_map[at + 2u], key_map[at + 3u]);
            y = fma(vec4<f32>(z[k]), bitcast<vec4<f32>>(turned), y);
        }
    }
    return y;
}
