
const QUADS = KEY_PADDED / 4u;

// Of every four channels: bits, leak in sixteenths from bit 4 on, and where codes begin from bit 8 on, in runs of 64 bytes.
var<workgroup> quads: array<u32, QUADS>;
// Leaks that the page has, in sixteenths: a bit for each.
var<workgroup> quad_leaks: u32;
// Scale and unit, and what stands for zero.
var<workgroup> quad_factors: array<vec4<f32>, QUADS>;
var<workgroup> quad_zeros: array<vec4<f32>, QUADS>;

// What a page says of its channels.
fn begin_quads(thread: u32, page: u32) {
    begin_trellis(thread);
    if thread == 0u {
        var at = 0u;
        var leaks = 0u;
        for (var q = 0u; q < QUADS; q++) {
            let head = page_byte(page, q);
            var bits = head & 15u;
            // Not by our encoder: no such width, or codes beyond the page.
            if bits == 7u || bits > 8u || at + bits > KEY_RUNS {
                bits = 0u;
            }
            quads[q] = bits | (head & 0xf0u) | (at << 8u);
            if bits > 0u {
                leaks |= 1u << (head >> 4u);
            }
            at += bits;
        }
        quad_leaks = leaks;
    }
    workgroupBarrier();
    for (var q = thread; q < QUADS; q += 128u) {
        let bits = quads[q] & 15u;
        var factors = vec4<f32>(0.0);
        var zeros = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let c = 4u * q + j;
            if c < KEY_DIM {
                let scale = scale_of_byte(page_byte(page, KEY_SCALES + c));
                let zero = page_byte(page, KEY_SCALES + KEY_PADDED + c);
                zeros[j] = 0.5 * f32(extractBits(bitcast<i32>(zero), 0u, 8u)) * scale;
                if bits > 0u {
                    factors[j] = scale * unit_of(table_of(bits));
                }
            }
        }
        quad_factors[q] = factors;
        quad_zeros[q] = zeros;
    }
    workgroupBarrier();
}

// The levels of a token in four channels: windows end with its code, and begin in the byte before or in the run before.
fn quad_levels(page: u32, quad: u32, token: u32) -> vec4<f32> {
    let bits = quad & 15u;
    let table = table_of(bits);
    let run = token / 8u;
    let at = KEY_CODES + 64u * (quad >> 8u) + 4u * run;
    let end = bits * (token % 8u + 1u);
    let byte = end / 8u;
    let over = end % 8u;
    var windows = 0u;
    if byte > 0u {
        windows = page_four(page, at + 64u * (byte - 1u));
    } else if run > 0u {
        windows = page_four(page, at + 64u * (bits - 1u) - 4u);
    } else {
        windows = start_of(table) * 0x01010101u;
    }
    if over != 0u {
        let lower = page_four(page, at + 64u * byte);
        let mask = ((1u << over) - 1u) * 0x01010101u;
        windows = ((windows << over) & ~mask) | ((lower >> (8u - over)) & mask);
    }
    return vec4<f32>(
        level_of(table, windows & 255u), level_of(table, (windows >> 8u) & 255u),
        level_of(table, (windows >> 16u) & 255u), level_of(table, windows >> 24u),
    );
}
