// Exact pages into coded ones, of any number of heads and layers: sixteen tokens at a time are moved into the codec's basis, scales are chosen, codes are packed. Only these
// sixteen tokens are ever there as numbers. A workgroup to a page where channels have scales, else to sixteen tokens of it.
struct Arguments {
    records_at: u32,
    records: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
// The way into the codec's basis, of every head.
@group(0) @binding(1) var<storage, read> basis: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;

// (16 tokens, channels), in the codec's basis.
var<workgroup> tile: array<f32, 16 * WIDTH>;
// One scale, its reciprocal and one zero per channel.
var<workgroup> channel_scale: array<f32, CHANNEL_ENTRIES>;
var<workgroup> channel_inverse: array<f32, CHANNEL_ENTRIES>;
var<workgroup> channel_zero: array<f32, CHANNEL_ENTRIES>;
// The same for every group of every token of the tile.
var<workgroup> token_scale: array<f32, TOKEN_ENTRIES>;
var<workgroup> token_inverse: array<f32, TOKEN_ENTRIES>;
var<workgroup> token_zero: array<f32, TOKEN_ENTRIES>;

var<private> have: u32;
var<private> source: u32;
var<private> target_page: u32;
// What says whose numbers could not be stored.
var<private> mark: u32;
// Of the head: where its basis begins, channels that have codes, the word where their zeros begin.
var<private> basis_at: u32;
var<private> coded: u32;
var<private> zero_at: u32;

// A number of the exact page; the last token stands for those that are not there.
fn exact_number(token: u32, c: u32) -> f32 {
    let t = min(token, have - 1u);
    if KEYS {
        return number_at(source, c * TOKENS + t);
    }
    return number_at(source, t * DIM + c);
}

// Sixteen tokens in the codec's basis.
fn load_tile(thread: u32, first: u32) {
    for (var i = thread; i < 16u * WIDTH; i += 128u) {
        let c = i % WIDTH;
        var x = 0.0;
        if c < DIM {
            x = exact_number(first + i / WIDTH, c);
            if MEAN {
                x -= basis[basis_at + LINEAR + c];
            }
            if SIGNS {
                x *= basis[basis_at + c];
            }
        }
        tile[i] = x;
    }
    //MOVE
    if LAMBDA {
        workgroupBarrier();
        for (var i = thread; i < 16u * WIDTH; i += 128u) {
            if i % WIDTH < DIM {
                tile[i] *= basis[basis_at + LINEAR + DIM + i % WIDTH];
            }
        }
    }
    //LOADED
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
    // In four sums, as the host has them.
    squares: vec4<f32>,
    count: f32,
}

fn begun() -> Extent {
    return Extent(3.0e38, -3.0e38, vec4<f32>(0.0), 0.0);
}

fn joined(before: Extent, x: f32, sum: u32) -> Extent {
    var extent = before;
    extent.low = min(extent.low, x);
    extent.high = max(extent.high, x);
    extent.squares[sum] = fma(x, x, extent.squares[sum]);
    extent.count += 1.0;
    return extent;
}

fn mean_square(extent: Extent) -> f32 {
    let s = extent.squares;
    return ((s.x + s.y) + (s.z + s.w)) * divided(1.0, extent.count);
}

//RULE

fn code_of(x: f32, inverse: f32, zero: f32, section: u32) -> u32 {
    //CODE
}

// A number of the tile under its channel's scale, where a token's scale comes on top.
fn token_number(t: u32, c: u32) -> f32 {
    let x = tile[t * WIDTH + c];
    if CHANNEL_SCALES {
        return x * channel_inverse[c];
    }
    return x;
}

fn code(token: u32, c: u32, section: u32) -> u32 {
    if !TOKEN_SCALES {
        return code_of(tile[(token % 16u) * WIDTH + c], channel_inverse[c], channel_zero[c], section);
    }
    let x = token_number(token % 16u, c);
    let at = (token % 16u) * GROUPS + c / GROUP;
    return code_of(x, token_inverse[at], token_zero[at], section);
}

// Two entries of an array of halves, or one of singles, as a word.
fn entry_word(x: f32, y: f32) -> u32 {
    if WIDE_SCALES {
        return bitcast<u32>(x);
    }
    return half_bits(x) | (half_bits(y) << 16u);
}

fn check(x: f32) {
    if (bitcast<u32>(x) & 0x7fffffffu) > bitcast<u32>(f32(LARGEST)) {
        atomicMax(&status[0], mark);
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    if number >= a.records * PARTS {
        return;
    }
    let at = a.records_at + 5u * (number / PARTS);
    source = plan[at];
    have = plan[at + 1u];
    target_page = plan[at + 2u];
    mark = plan[at + 4u];
    begin_head(plan[at + 3u]);
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
                        extents[i] = joined(extents[i], tile[t * WIDTH + c], 0u);
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
            if c < coded {
                check(channel_scale[c]);
                check(channel_zero[c]);
                channel_inverse[c] = inverse_of(channel_scale[c]);
            }
        }
        workgroupBarrier();
        for (var word = thread; word < coded / per_word; word += 128u) {
            let c = per_word * word;
            let next = min(c + 1u, coded - 1u);
            set_page_word(target_page, CHANNEL_SCALE_AT + word, entry_word(channel_scale[c], channel_scale[next]));
            if CHANNEL_ZEROS {
                set_page_word(target_page, zero_at + word, entry_word(channel_zero[c], channel_zero[next]));
            }
        }
    }
    let tile_first = 16u * (number % PARTS);
    for (var first = tile_first; first < tile_first + TOKENS / PARTS; first += 16u) {
        workgroupBarrier();
        load_tile(thread, first);
        workgroupBarrier();
        if TOKEN_SCALES {
            for (var i = thread; i < 16u * GROUPS; i += 128u) {
                let t = i / GROUPS;
                let g = i % GROUPS;
                var extent = begun();
                let end = min(min(GROUP * (g + 1u), DIM), CODED);
                // Whole fours go to four sums, the rest to the first.
                let fours = select(0u, (end - GROUP * g) / 4u * 4u, end > GROUP * g);
                for (var c = GROUP * g; c < end; c++) {
                    let i = c - GROUP * g;
                    extent = joined(extent, token_number(t, c), select(0u, i % 4u, i < fours));
                }
                var s = vec2<f32>(0.0);
                if extent.count > 0.0 {
                    s = scale_of(extent, section_of(GROUP * g));
                    //FIT_TOKEN
                }
                token_inverse[i] = inverse_of(s.x);
                //REFIT
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
