
// Codes of four bits in integers, as `coded_dots.wgsl` has them: a scale for 16 channels of a page, or 16 positions of a group.
const CODED = true;
const KEY_CHUNKS = KEY_CODED / 16u;

// (page of the 256 positions, fours of channels): bytes of the four queries, high and low.
var<workgroup> key_high: array<vec4<u32>, 16u * KEY_CHUNKS>;
var<workgroup> key_low: array<vec4<u32>, 16u * KEY_CHUNKS>;
// (page, 16 channels): scales of the four queries, and what zeros and centres of codes add.
var<workgroup> key_scales: array<vec4<f32>, 4u * KEY_CHUNKS>;
var<workgroup> key_zeros: array<vec4<f32>, 4u * KEY_CHUNKS>;
// (16 positions, group, fours of positions): the same of weights.
var<workgroup> weight_high: array<vec4<u32>, 64u * VALUE_GROUPS>;
var<workgroup> weight_low: array<vec4<u32>, 64u * VALUE_GROUPS>;
var<workgroup> weight_scales: array<vec4<f32>, 16u * VALUE_GROUPS>;
var<workgroup> weight_zeros: array<vec4<f32>, 16u * VALUE_GROUPS>;

fn dots4(codes: u32, x: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(codes, x.x), dot4I8Packed(codes, x.y), dot4I8Packed(codes, x.z), dot4I8Packed(codes, x.w),
    );
}

// Makes integers of the queries, for every page of the positions.
fn ready_scores(thread: u32, task: Task, first: u32) {
    if task.key_form != 0u {
        return;
    }
    // Queries that this brings are there.
    workgroupBarrier();
    for (var n = thread; n < 4u * COLS * KEY_CHUNKS; n += 128u) {
        let column = n % COLS;
        let chunk = n / COLS % KEY_CHUNKS;
        let number = n / (KEY_CHUNKS * COLS);
        let page = held(key_place(task, min(first + number * KEY_TOKENS, task.end - 1u)).x, KEY_CODED_QUADS);
        var zeros = 0.0;
        //@ i 4
        let q$i = queries[Q4 * column + 4u * chunk + $iu];
        let x$i = q$i * key_channel_scale(page, 4u * chunk + $iu);
        zeros += dot(q$i, key_channel_zero(page, 4u * chunk + $iu));
        //@
        let made = sixteen(x0, x1, x2, x3);
        let at = number * KEY_CHUNKS + chunk;
        //@ i 4
        key_high[4u * at + $iu][column] = made.high[$i];
        key_low[4u * at + $iu][column] = made.low[$i];
        //@
        key_scales[at][column] = made.scale;
        key_zeros[at][column] = fma(KEY_CENTRE, made.sum, zeros);
    }
}

// Two positions of a coded page: two words for eight channels.
fn coded_scores(thread: u32, task: Task, position: u32) -> Two {
    let place = key_place(task, position);
    let page = held(place.x, KEY_CODED_QUADS);
    let number = 2u * thread / KEY_TOKENS * KEY_CHUNKS;
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(0.0);
    for (var c = 0u; c < KEY_CHUNKS; c += KEY_STEP) {
        let start = KEY_CODES + place.y / 2u + c * KEY_TOKENS;
        //@ u KEY_STEP
        //@ j 2
        let pair$u_$j = page_pair(page, start + (2u * $uu + $ju) * (KEY_TOKENS / 2u));
        //@
        //@
        //@ u KEY_STEP
        {
            let at = number + c + $uu;
            var high0 = vec4<i32>(0);
            var low0 = vec4<i32>(0);
            var high1 = vec4<i32>(0);
            var low1 = vec4<i32>(0);
            //@ j 2
            //@ e 2
            {
                let codes = (pair$u_$j >> vec2<u32>(4u * $eu)) & vec2<u32>(0x0f0f0f0fu);
                let high = key_high[4u * at + 2u * $ju + $eu];
                let low = key_low[4u * at + 2u * $ju + $eu];
                high0 += dots4(codes.x, high);
                low0 += dots4(codes.x, low);
                high1 += dots4(codes.y, high);
                low1 += dots4(codes.y, low);
            }
            //@
            //@
            s0 += fma(vec4<f32>(256 * high0 + low0), key_scales[at], key_zeros[at]);
            s1 += fma(vec4<f32>(256 * high1 + low1), key_scales[at], key_zeros[at]);
        }
        //@
    }
    return Two(s0, s1);
}

// Makes integers of the weights, for every group of channels.
fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {
    if task.value_form != 0u {
        return;
    }
    for (var n = thread; n < 16u * COLS * VALUE_GROUPS; n += 128u) {
        let column = n % COLS;
        let group = n / COLS % VALUE_GROUPS;
        let chunk = n / (COLS * VALUE_GROUPS);
        if 16u * chunk < end {
            let place = value_place(task, first, 16u * chunk);
            let page = held(place.x, VALUE_CODED_QUADS);
            //@ i 4
            let w$i = vec4<f32>(
                weights[16u * chunk + 4u * $iu][column], weights[16u * chunk + 4u * $iu + 1u][column],
                weights[16u * chunk + 4u * $iu + 2u][column], weights[16u * chunk + 4u * $iu + 3u][column],
            );
            let x$i = w$i * value_token_scale(page, group, place.y / 4u + $iu);
            //@
            let made = sixteen(x0, x1, x2, x3);
            let at = chunk * VALUE_GROUPS + group;
            //@ i 4
            weight_high[4u * at + $iu][column] = made.high[$i];
            weight_low[4u * at + $iu][column] = made.low[$i];
            //@
            weight_scales[at][column] = made.scale;
            weight_zeros[at][column] = VALUE_CENTRE * made.sum;
        }
    }
    workgroupBarrier();
}

// Two channels of the chunks of a set: two words for eight positions.
fn coded_sums(task: Task, pair: u32, team: u32, end: u32) -> Two {
    var sum0 = vec4<f32>(0.0);
    var sum1 = vec4<f32>(0.0);
    let group = 2u * pair / VALUE_GROUP;
    let start = VALUE_CODES + pair / 8u * VALUE_TOKENS + pair % 8u + team * VALUE_CHUNKS * 16u;
    for (var n = 0u; n < (end + VALUE_TOKENS - 1u) / VALUE_TOKENS && team * VALUE_CHUNKS < 4u; n++) {
        let page = held(value_pages[n], VALUE_CODED_QUADS);
        //@ u VALUE_CHUNKS
        //@ j 2
        let pair$u_$j = page_pair(page, start + 8u * (2u * $uu + $ju));
        //@
        //@
        //@ u VALUE_CHUNKS
        {
            let chunk = 4u * n + team * VALUE_CHUNKS + $uu;
            let at = chunk * VALUE_GROUPS + group;
            var high0 = vec4<i32>(0);
            var low0 = vec4<i32>(0);
            var high1 = vec4<i32>(0);
            var low1 = vec4<i32>(0);
            //@ j 2
            //@ e 2
            {
                let codes = (pair$u_$j >> vec2<u32>(4u * $eu)) & vec2<u32>(0x0f0f0f0fu);
                let high = weight_high[4u * at + 2u * $ju + $eu];
                let low = weight_low[4u * at + 2u * $ju + $eu];
                high0 += dots4(codes.x, high);
                low0 += dots4(codes.x, low);
                high1 += dots4(codes.y, high);
                low1 += dots4(codes.y, low);
            }
            //@
            //@
            if 16u * chunk < end {
                sum0 += fma(vec4<f32>(256 * high0 + low0), weight_scales[at], weight_zeros[at]);
                sum1 += fma(vec4<f32>(256 * high1 + low1), weight_scales[at], weight_zeros[at]);
            }
        }
        //@
    }
    return Two(sum0, sum1);
}
