// Exact pages into trellis codes: a workgroup to a page. Numbers in the codec's basis are made when they are asked for, so that none of them
// lies anywhere; the best codes of four channels at a time are searched for as on the CPU (`trellis/search.rs` of kvant-codec).
const NEVER = 1.0e30;

// Bytes of the page before the codes.
var<workgroup> header: array<u32, CODES_AT>;
// Of four channels: numbers in units of the table, (tokens, 4).
var<workgroup> numbers: array<f32, 512>;
// Of (states, 4): what survivors cost before a token and after it, what they predict, what that leaves of the next number.
var<workgroup> costs: array<f32, 1024>;
var<workgroup> predicted: array<f32, 512>;
var<workgroup> left: array<f32, 512>;
// Which survivor led to each state: sixteen words a token.
var<workgroup> back: array<atomic<u32>, 2048>;
// Of four channels, (tokens, 4).
var<workgroup> codes: array<u32, 512>;
// Words of codes that lie together.
var<workgroup> units: array<u32, UNIT_WORDS>;
// Factors of tokens.
var<workgroup> factors: array<f32, TOKEN_FACTORS>;

// 16 · log2 of a positive normal number, rounded down; far below all that is stored for any other.
fn sixteenths(x: f32) -> i32 {
    if !(x >= 1.17549435e-38) {
        return -3000;
    }
    let bits = bitcast<u32>(x);
    let fraction = bitcast<f32>((bits & 0x007fffffu) | 0x3f800000u);
    var above = 0;
    for (var n = 0u; n < 15u; n++) {
        above += select(0, 1, fraction >= SIXTEENTHS[n]);
    }
    return 16 * (i32(bits >> 23u) - 127) + above;
}

// The exponent of the nearest stored scale.
fn exponent(scale: f32) -> u32 {
    let e = 128 + ((sixteenths(scale) + 1) >> 1u);
    // By bits: NaN is larger than all numbers.
    if e > 255 || bitcast<u32>(scale) >= 0x7f800000u {
        atomicMax(&status[0], mark);
    }
    return u32(clamp(e, 0, 255));
}

// The best codes of the numbers of four channels, under a leak in 256ths. Errors count relative to tokens' factors.
fn search(thread: u32, bits: u32, leak: u32) {
    let table = table_of(bits);
    let rho = f32(leak) / 256.0;
    if bits == 8u {
        if thread < 4u {
            var y = 0.0;
            for (var t = 0u; t < 128u; t++) {
                let step = first_step(leak, t);
                let rest = (numbers[4u * t + thread] - rho * y) * inverse_factor(t);
                let level = clamp(round(divided(rest, step)), -128.0, 127.0);
                y = rho * y + factor_of(t) * step * level;
                codes[4u * t + thread] = u32(i32(level) + 128);
            }
        }
        workgroupBarrier();
        return;
    }
    let states = 256u >> bits;
    let branches = 1u << bits;
    // Bits of a survivor's number as it is stored: a power of two.
    let wide = select(select(bits, 4u, bits == 3u), 8u, bits > 4u);
    let start = start_of(table) % states;
    for (var i = thread; i < 2048u; i += 128u) {
        atomicStore(&back[i], 0u);
    }
    for (var i = thread; i < 4u * states; i += 128u) {
        costs[i] = select(NEVER, 0.0, i / 4u == start);
        predicted[i] = 0.0;
    }
    for (var t = 0u; t < 128u; t++) {
        workgroupBarrier();
        let from_at = 512u * (t % 2u);
        let inverse = inverse_factor(t);
        for (var i = thread; i < 4u * states; i += 128u) {
            left[i] = fma(-rho, predicted[i], numbers[4u * t + i % 4u]) * inverse;
        }
        workgroupBarrier();
        let step = first_step(leak, t);
        let factor = factor_of(t);
        for (var i = thread; i < 4u * states; i += 128u) {
            let state = i / 4u;
            let channel = i % 4u;
            var best = 3.0e38;
            var error = 0.0;
            var survivor = 0u;
            for (var branch = 0u; branch < branches; branch++) {
                let window = branch * states + state;
                let from_state = 4u * (window >> bits) + channel;
                let d = fma(-step, level_of(table, window), left[from_state]);
                let cost = fma(d, d, costs[from_at + from_state]);
                if cost < best {
                    best = cost;
                    error = d;
                    survivor = branch;
                }
            }
            costs[(512u - from_at) + i] = best;
            predicted[i] = fma(-error, factor, numbers[4u * t + channel]);
            atomicOr(&back[16u * t + i * wide / 32u], survivor << (i * wide % 32u));
        }
    }
    workgroupBarrier();
    // From the cheapest state at the end back to the start.
    if thread < 4u {
        var state = 0u;
        for (var other = 1u; other < states; other++) {
            if costs[4u * other + thread] < costs[4u * state + thread] {
                state = other;
            }
        }
        for (var n = 0u; n < 128u; n++) {
            let t = 127u - n;
            let i = (4u * state + thread) * wide;
            let survivor = (atomicLoad(&back[16u * t + i / 32u]) >> (i % 32u)) & (branches - 1u);
            let window = survivor * states + state;
            codes[4u * t + thread] = window & (branches - 1u);
            state = window >> bits;
        }
    }
    workgroupBarrier();
}

// Byte j of the stream of a run's eight codes of a channel of the four, the first code's bits on top.
fn stream_byte(bits: u32, channel: u32, run: u32, j: u32) -> u32 {
    var byte = 0u;
    for (var n = 0u; n < 8u; n++) {
        let p = 8u * j + n;
        let code = codes[4u * (8u * run + p / bits) + channel];
        byte = (byte << 1u) | ((code >> (bits - 1u - p % bits)) & 1u);
    }
    return byte;
}

// Words of codes to the page, from a byte on that is no multiple of four where the header is not; what begins the first word is there.
fn write_units(thread: u32, at: u32, count: u32) {
    let shift = 8u * (at % 4u);
    for (var i = thread; i < count + select(1u, 0u, shift == 0u); i += 128u) {
        var word = 0u;
        if i < count {
            word = units[i] << shift;
        }
        if shift != 0u {
            if i > 0u {
                word |= units[i - 1u] >> (32u - shift);
            } else {
                word |= page_word(target_page, at / 4u) & ((1u << shift) - 1u);
            }
        }
        set_page_word(target_page, at / 4u + i, word);
    }
    storageBarrier();
    workgroupBarrier();
}

// The header to the page, and zeros behind it.
fn write_header(thread: u32) {
    workgroupBarrier();
    for (var i = thread; i < (PAGE_BYTES + 3u) / 4u; i += 128u) {
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            if 4u * i + j < CODES_AT {
                word |= header[4u * i + j] << (8u * j);
            }
        }
        set_page_word(target_page, i, word);
    }
    storageBarrier();
    workgroupBarrier();
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number_of_record = id.x + id.y * count.x;
    if number_of_record >= a.records {
        return;
    }
    let at = a.records_at + 5u * number_of_record;
    source = plan[at];
    have = plan[at + 1u];
    target_page = plan[at + 2u];
    basis_at = plan[at + 3u] * BASIS_STEP;
    mark = plan[at + 4u];
    begin_trellis(thread);
    for (var i = thread; i < CODES_AT; i += 128u) {
        header[i] = 0u;
    }
    workgroupBarrier();
    encode_page(thread);
}
