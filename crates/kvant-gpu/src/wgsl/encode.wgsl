// Exact pages into coded ones, a workgroup to a page: sixteen tokens at a time are moved into the codec's basis, scales are chosen,
// codes are packed. Only these sixteen tokens are ever there as numbers.
struct Arguments {
    records_at: u32,
    records: u32,
    mark: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
// Row by row from the model's channels to the codec's, then the mean.
@group(0) @binding(1) var<storage, read> basis: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;

// (16 tokens, channels), in the codec's basis.
var<workgroup> tile: array<f32, 16 * WIDTH>;
// One scale and one zero per channel.
var<workgroup> channel_scale: array<f32, CHANNEL_ENTRIES>;
var<workgroup> channel_zero: array<f32, CHANNEL_ENTRIES>;
// One scale and one zero for every group of every token of the tile.
var<workgroup> token_scale: array<f32, TOKEN_ENTRIES>;
var<workgroup> token_zero: array<f32, TOKEN_ENTRIES>;

var<private> have: u32;
var<private> source: u32;
var<private> target_page: u32;

// A number of the exact page; the last token stands for those that are not there.
fn exact_number(token: u32, c: u32) -> f32 {
    let t = min(token, have - 1u);
    if KEYS {
        return number_at(source, c * TOKENS + t);
    }
    return number_at(source, t * DIM + c);
}

// The number of channel c of a token in the codec's basis.
fn moved(token: u32, c: u32) -> f32 {
    if c >= DIM {
        return 0.0;
    }
    if !MOVED {
        return exact_number(token, c);
    }
    if WALSH {
        // The first row of the matrix has nothing but the signs, over the root of the dimension.
        return exact_number(token, c) * basis[c];
    }
    var sum = 0.0;
    for (var j = 0u; j < DIM; j++) {
        sum = fma(basis[c * DIM + j], exact_number(token, j) - basis[DIM * DIM + j], sum);
    }
    return sum;
}

fn load_tile(thread: u32, first: u32) {
    for (var i = thread; i < 16u * WIDTH; i += 128u) {
        tile[i] = moved(first + i / WIDTH, i % WIDTH);
    }
    //WALSH
}

fn stored(x: f32) -> f32 {
    if WIDE_SCALES {
        return x;
    }
    return half_value(half_bits(x));
}

// Rounded to how it is stored, towards direction · ∞, so that a range only grows.
fn outward(x: f32, direction: f32) -> f32 {
    let near = stored(x);
    let nudge = max(abs(x) * (1.0 / 2048.0), 3.0e-8);
    let far = stored(fma(nudge, direction, x));
    if direction > 0.0 {
        return select(near, far, x > near);
    }
    return select(near, far, near > x);
}

// a / b rounded to nearest. A device's quotient may be some units off in the last place: the remainder, which is small and so has no
// error modulo 2³², moves it to the right one. Zeros, subnormal numbers and what is not finite are left to the device.
fn divided(a: f32, b: f32) -> f32 {
    let rough = a / b;
    let bits = vec3<u32>(bitcast<u32>(a), bitcast<u32>(b), bitcast<u32>(rough));
    let exponents = vec3<i32>((bits >> vec3<u32>(23u)) & vec3<u32>(255u));
    if any(exponents == vec3<i32>(0)) || any(exponents == vec3<i32>(255)) {
        return rough;
    }
    let parts = (bits & vec3<u32>(0x7fffffu)) | vec3<u32>(0x800000u);
    // 2²³ ≤ quotient < 2²⁴ in units of its last place.
    let less = select(0u, 1u, parts.x < parts.y);
    let exponent = exponents.x - exponents.y + 127 - i32(less);
    if exponent < 1 || exponent > 254 {
        return rough;
    }
    var quotient = parts.z;
    if exponents.z > exponent {
        quotient = parts.z << 1u;
    } else if exponents.z < exponent {
        quotient = parts.z >> 1u;
    }
    let divisor = i32(parts.y);
    var rest = bitcast<i32>((parts.x << (23u + less)) - quotient * parts.y);
    for (var n = 0u; n < 8u && rest < 0; n++) {
        quotient -= 1u;
        rest += divisor;
    }
    for (var n = 0u; n < 8u && rest >= divisor; n++) {
        quotient += 1u;
        rest -= divisor;
    }
    // Of two numbers of 24 bits none has a quotient half-way between two others.
    quotient += select(0u, 1u, 2 * rest > divisor);
    let sign = (bits.x ^ bits.y) & 0x80000000u;
    return bitcast<f32>(sign | ((u32(exponent) << 23u) + (quotient - 0x800000u)));
}

fn inverse_of(scale: f32) -> f32 {
    if abs(scale) > 1.17549435e-38 {
        return divided(1.0, scale);
    }
    return 0.0;
}

// What numbers that share a scale have come to, one after another.
struct Extent {
    low: f32,
    high: f32,
    squares: f32,
    count: f32,
}

fn begun() -> Extent {
    return Extent(3.0e38, -3.0e38, 0.0, 0.0);
}

fn joined(extent: Extent, x: f32) -> Extent {
    return Extent(min(extent.low, x), max(extent.high, x), fma(x, x, extent.squares), extent.count + 1.0);
}

//RULE

fn code_of(x: f32, scale: f32, zero: f32, section: u32) -> u32 {
    let inverse = inverse_of(scale);
    //CODE
}

// A number of the tile under its channel's scale, where a token's scale comes on top.
fn token_number(t: u32, c: u32) -> f32 {
    let x = tile[t * WIDTH + c];
    if CHANNEL_SCALES {
        return x * inverse_of(channel_scale[c]);
    }
    return x;
}

fn code(token: u32, c: u32, section: u32) -> u32 {
    if !TOKEN_SCALES {
        return code_of(tile[(token % 16u) * WIDTH + c], channel_scale[c], channel_zero[c], section);
    }
    let x = token_number(token % 16u, c);
    let at = (token % 16u) * GROUPS + c / GROUP;
    return code_of(x, token_scale[at], token_zero[at], section);
}

// Two entries of an array of halves, or one of singles, as a word.
fn entry_word(x: f32, y: f32) -> u32 {
    if WIDE_SCALES {
        return bitcast<u32>(x);
    }
    return half_bits(x) | (half_bits(y) << 16u);
}

fn check(x: f32) {
    if !(abs(x) <= LARGEST) {
        atomicMax(&status[0], a.mark);
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let record = id.x + id.y * count.x;
    if record >= a.records {
        return;
    }
    let at = a.records_at + 3u * record;
    source = plan[at];
    have = plan[at + 1u];
    target_page = plan[at + 2u];
    let per_word = select(2u, 1u, WIDE_SCALES);
    if CHANNEL_SCALES {
        var extents: array<Extent, CHANNELS>;
        for (var i = 0u; i < CHANNELS; i++) {
            extents[i] = begun();
        }
        for (var first = 0u; first < TOKENS; first += 16u) {
            workgroupBarrier();
            load_tile(thread, first);
            workgroupBarrier();
            for (var i = 0u; i < CHANNELS; i++) {
                let c = thread + 128u * i;
                if c < CODED {
                    for (var t = 0u; t < 16u; t++) {
                        extents[i] = joined(extents[i], tile[t * WIDTH + c]);
                    }
                }
            }
        }
        for (var i = 0u; i < CHANNELS; i++) {
            let c = thread + 128u * i;
            if c < CODED {
                var s = vec2<f32>(stored(max(extents[i].high, -extents[i].low)), 0.0);
                if !TOKEN_SCALES {
                    s = scale_of(extents[i], section_of(c));
                }
                channel_scale[c] = s.x;
                channel_zero[c] = s.y;
            }
        }
        //FIT
        for (var i = 0u; i < CHANNELS; i++) {
            let c = thread + 128u * i;
            if c < CODED {
                check(channel_scale[c]);
                check(channel_zero[c]);
            }
        }
        workgroupBarrier();
        for (var word = thread; word < CODED / per_word; word += 128u) {
            let c = per_word * word;
            let next = min(c + 1u, CODED - 1u);
            set_page_word(target_page, CHANNEL_SCALE_AT + word, entry_word(channel_scale[c], channel_scale[next]));
            if CHANNEL_ZEROS {
                set_page_word(target_page, CHANNEL_ZERO_AT + word, entry_word(channel_zero[c], channel_zero[next]));
            }
        }
    }
    for (var first = 0u; first < TOKENS; first += 16u) {
        workgroupBarrier();
        load_tile(thread, first);
        workgroupBarrier();
        if TOKEN_SCALES {
            for (var i = thread; i < 16u * GROUPS; i += 128u) {
                let t = i / GROUPS;
                let g = i % GROUPS;
                var extent = begun();
                let end = min(min(GROUP * (g + 1u), DIM), CODED);
                for (var c = GROUP * g; c < end; c++) {
                    extent = joined(extent, token_number(t, c));
                }
                var s = vec2<f32>(0.0);
                if extent.count > 0.0 {
                    s = scale_of(extent, section_of(GROUP * g));
                    //FIT_TOKEN
                }
                check(s.x);
                check(s.y);
                token_scale[i] = s.x;
                token_zero[i] = s.y;
            }
            workgroupBarrier();
            for (var i = thread; i < GROUPS * 16u / per_word; i += 128u) {
                let g = i / (16u / per_word);
                let t = per_word * (i % (16u / per_word));
                let word = (g * TOKENS + first + t) / per_word;
                let s = t * GROUPS + g;
                let next = min(s + GROUPS, 16u * GROUPS - 1u);
                set_page_word(target_page, TOKEN_SCALE_AT + word, entry_word(token_scale[s], token_scale[next]));
                if TOKEN_ZEROS {
                    set_page_word(target_page, TOKEN_ZERO_AT + word, entry_word(token_zero[s], token_zero[next]));
                }
            }
        }
        pack(thread, first);
    }
}
