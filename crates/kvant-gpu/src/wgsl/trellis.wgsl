
// What readers and encoders of trellis codes share; docs/page-format.md of kvant-codec has the format.

// The levels of seven widths: four words by the lower half of a window, four by the upper.
var<workgroup> level_words: array<u32, 56>;

fn begin_trellis(thread: u32) {
    if thread < 56u {
        level_words[thread] = LEVEL_WORDS[thread];
    }
}

// The table of a width of 1 to 6 or 8 bits.
fn table_of(bits: u32) -> u32 {
    return select(bits - 1u, 6u, bits == 8u);
}

fn level_of(table: u32, window: u32) -> f32 {
    let low = bitcast<i32>(level_words[8u * table + ((window >> 2u) & 3u)]);
    let high = bitcast<i32>(level_words[8u * table + 4u + ((window >> 6u) & 3u)]);
    return f32(extractBits(low, 8u * (window & 3u), 8u) + extractBits(high, 8u * ((window >> 4u) & 3u), 8u));
}

fn page_byte(page: u32, at: u32) -> u32 {
    return (page_word(page, at / 4u) >> (8u * (at % 4u))) & 255u;
}

// Four bytes from any on.
fn page_four(page: u32, at: u32) -> u32 {
    let shift = 8u * (at % 4u);
    let low = page_word(page, at / 4u) >> shift;
    if shift == 0u {
        return low;
    }
    return low | (page_word(page, at / 4u + 1u) << (32u - shift));
}

// 2 to n eighths.
fn eighths(n: i32) -> f32 {
    var part = 1.0;
    switch n & 7 {
        //EIGHTHS
        default: {}
    }
    return part * bitcast<f32>(u32(127 + (n >> 3u)) << 23u);
}

// What a stored scale stands for.
fn scale_of_byte(exponent: u32) -> f32 {
    if exponent == 0u {
        return 0.0;
    }
    return eighths(i32(exponent) - 128);
}

// The step of a page's token t in that of the later ones, under a leak in 256ths.
fn first_step(leak: u32, t: u32) -> f32 {
    if t > 2u {
        return 1.0;
    }
    let rho = f32(leak) / 256.0;
    let square = rho * rho;
    var variance = 1.5 / (1.0 - square);
    for (var n = 0u; n < t; n++) {
        variance = 1.0 + 0.06 * square * variance;
    }
    return sqrt(variance * (1.0 - 0.06 * square));
}
