// A code of a block: a level's number `index`.
fn polar_code(page: u32, block: u32, level: u32, index: u32) -> u32 {
    let width = width_of(level);
    let bit = block * BLOCK_BITS + start_of(level) + index * width;
    let at = ANGLES_AT + bit / 32u;
    let shift = bit % 32u;
    var code = page_word(page, at) >> shift;
    if shift + width > 32u {
        code |= page_word(page, at + 1u) << (32u - shift);
    }
    return code & ((1u << width) - 1u);
}

// Four channels of a block: the radius along an angle of every level.
fn polar_four(page: u32, block: u32, quarter: u32) -> vec4<f32> {
    let half = quarter / 2u;
    var radius = polar_radius(page, block);
    radius *= direction(3u, polar_code(page, block, 3u, 0u))[half];
    radius *= direction(2u, polar_code(page, block, 2u, half))[quarter % 2u];
    let both = radius * direction(1u, polar_code(page, block, 1u, quarter));
    let low = both.x * direction(0u, polar_code(page, block, 0u, 2u * quarter));
    let high = both.y * direction(0u, polar_code(page, block, 0u, 2u * quarter + 1u));
    return vec4<f32>(low, high);
}
