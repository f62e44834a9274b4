
// One leak for the page, a factor for each token and one for each channel (`trellis/values.rs`).
const CHANNELS = (PADDED + 127u) / 128u;

var<workgroup> roots: array<f32, PADDED>;
var<workgroup> sums: array<vec2<f32>, PADDED>;
var<workgroup> page_leak: u32;
var<workgroup> page_whole: f32;

fn factor_of(t: u32) -> f32 {
    return factors[t];
}

fn inverse_factor(t: u32) -> f32 {
    return divided(1.0, factors[t]);
}

// What the leak leaves of a token's number.
fn rest_of(t: u32, c: u32, rho: f32) -> f32 {
    return number(t, c) - rho * number(t - 1u, c);
}

// Root mean squares of channels, whose tokens are divided by their factors.
fn fit_channels(thread: u32, rho: f32) {
    workgroupBarrier();
    for (var c = thread; c < DIM; c += 128u) {
        var sum = 0.0;
        var before = number(0u, c);
        for (var t = 1u; t < 128u; t++) {
            let x = number(t, c);
            let rest = x - rho * before;
            sum += rest * rest * divided(1.0, factors[t] * factors[t]);
            before = x;
        }
        roots[c] = square_root(divided(sum, 127.0));
    }
    workgroupBarrier();
}

// Root mean squares of tokens, whose channels are divided by their factors.
fn fit_tokens(thread: u32, rho: f32) {
    if thread > 0u {
        var sum = 0.0;
        for (var c = 0u; c < DIM; c++) {
            if roots[c] > 0.0 {
                let rest = rest_of(thread, c, rho);
                sum += rest * rest * divided(1.0, roots[c] * roots[c]);
            }
        }
        factors[thread] = max(square_root(divided(sum, f32(DIM))), 0.02);
    }
}

fn encode_page(thread: u32) {
    factors[thread] = 1.0;
    for (var c = thread; c < DIM; c += 128u) {
        var sum = vec2<f32>(0.0);
        var before = number(0u, c);
        for (var t = 1u; t < 128u; t++) {
            let x = number(t, c);
            sum += vec2<f32>(x * x, x * before);
            before = x;
        }
        sums[c] = sum;
    }
    workgroupBarrier();
    if thread == 0u {
        var sum = vec2<f32>(0.0);
        for (var c = 0u; c < DIM; c++) {
            sum += sums[c];
        }
        var ratio = 0.0;
        if sum.x > 0.0 {
            ratio = divided(sum.y, sum.x);
        }
        page_leak = u32(clamp(round(256.0 * ratio), 0.0, 240.0));
    }
    let leak = workgroupUniformLoad(&page_leak);
    let rho = f32(leak) / 256.0;
    for (var n = 0u; n < 4u; n++) {
        fit_channels(thread, rho);
        fit_tokens(thread, rho);
    }
    workgroupBarrier();
    // Factors as they are stored: 2 to halves for tokens, to quarters for channels.
    let half = u32(clamp(8 + ((sixteenths(factors[thread]) + 4) >> 3u), 0, 15));
    factors[thread] = eighths(4 * (i32(half) - 8));
    fit_channels(thread, rho);
    if thread == 0u {
        var sum = 0.0;
        for (var c = 0u; c < DIM; c++) {
            sum += roots[c] * roots[c];
        }
        let e = exponent(square_root(divided(sum, f32(DIM))));
        page_whole = scale_of_byte(e);
        header[0] = e;
        header[1] = leak;
    }
    let whole = workgroupUniformLoad(&page_whole);
    // Two threads to a byte: what they have is put together by one of them.
    codes[thread] = half;
    workgroupBarrier();
    if thread < 64u {
        header[2u + thread] = codes[2u * thread] | (codes[2u * thread + 1u] << 4u);
    }
    for (var byte = thread; byte < PADDED / 2u; byte += 128u) {
        var nibbles = 0u;
        for (var j = 0u; j < 2u; j++) {
            let c = 2u * byte + j;
            if c < DIM {
                var quarter = 0;
                if whole > 0.0 {
                    quarter = clamp(8 + ((sixteenths(divided(roots[c], whole)) + 2) >> 2u), 0, 15);
                }
                nibbles |= u32(quarter) << (4u * j);
                roots[c] = whole * eighths(2 * (quarter - 8));
            }
        }
        header[SCALES_AT + byte] = nibbles;
    }
    write_header(thread);
    var codes_at = CODES_AT;
    for (var row = 0u; row < PADDED / 16u; row++) {
        let bits = trellis_value_bits(row);
        if bits == 0u {
            break;
        }
        let unit = unit_of(table_of(bits));
        for (var first = 0u; first < 16u; first += 4u) {
            for (var i = thread; i < 512u; i += 128u) {
                let c = 16u * row + first + i % 4u;
                var x = 0.0;
                if c < DIM {
                    let scale = roots[c] * unit;
                    if scale > 0.0 {
                        x = number(i / 4u, c) * divided(1.0, scale);
                    }
                }
                numbers[i] = x;
            }
            search(thread, bits, leak);
            // Words of one channel: byte j of runs n, n + 4, n + 8 and n + 12.
            for (var i = thread; i < 16u * bits; i += 128u) {
                let channel = i % 4u;
                let n = i / 4u / bits;
                let j = i / 4u % bits;
                var word = 0u;
                if 16u * row + first + channel < DIM {
                    for (var quarter = 0u; quarter < 4u; quarter++) {
                        word |= stream_byte(bits, channel, n + 4u * quarter, j) << (8u * quarter);
                    }
                }
                units[16u * (n * bits + j) + first + channel] = word;
            }
            workgroupBarrier();
        }
        write_units(thread, codes_at, 64u * bits);
        codes_at += 256u * bits;
    }
}
