
// Scores and sums over coded pages in integers. What meets codes becomes 16 bits under a scale for every 16 numbers, a high and a low
// byte each, and four products of bytes are one instruction: queries times the scales of channels, and weights times those of tokens.

const KEY_CHUNKS = KEY_CODED / 16u;
const VALUE_CHUNKS = 8u;

// (page of the 128 positions, column, 16 channels): 16 bytes of queries, high and low; then a scale, the sum of numbers, that of numbers
// times the centres of their codes, and what zeros of channels add.
var<workgroup> query_high: array<vec4<u32>, KEY_KINDS * COLS * KEY_CHUNKS>;
var<workgroup> query_low: array<vec4<u32>, KEY_KINDS * COLS * KEY_CHUNKS>;
var<workgroup> query_scales: array<vec4<f32>, KEY_KINDS * COLS * KEY_CHUNKS>;
// (column, group, 16 positions): the same of weights; a scale, the sum of numbers, what zeros of tokens add, and the sum of weights.
var<workgroup> weight_high: array<vec4<u32>, COLS * VALUE_GROUPS * VALUE_CHUNKS>;
var<workgroup> weight_low: array<vec4<u32>, COLS * VALUE_GROUPS * VALUE_CHUNKS>;
var<workgroup> weight_scales: array<vec4<f32>, COLS * VALUE_GROUPS * VALUE_CHUNKS>;

fn dots(codes: vec4<u32>, x: vec4<u32>) -> i32 {
    return dot4I8Packed(codes.x, x.x) + dot4I8Packed(codes.y, x.y) + dot4I8Packed(codes.z, x.z) + dot4I8Packed(codes.w, x.w);
}

// Makes integers of the queries, for every page of the positions where channels have scales there.
fn ready_scores(thread: u32, task: Task, first: u32) {
    if task.key_form != 0u || (!KEY_BY_CHANNEL && first != task.start) {
        return;
    }
    for (var n = thread; n < KEY_KINDS * COLS * KEY_CHUNKS; n += 128u) {
        let chunk = n % KEY_CHUNKS;
        let column = n / KEY_CHUNKS % COLS;
        let position = min(first + n / (KEY_CHUNKS * COLS) * KEY_TOKENS, task.end - 1u);
        let page = key_place(task, position).x;
        var zeros = 0.0;
        var centres = 0.0;
        //@ i 4
        let q$i = queries[Q4 * column + 4u * chunk + $iu];
        let x$i = q$i * key_channel_scale(page, 4u * chunk + $iu);
        zeros += dot(q$i, key_channel_zero(page, 4u * chunk + $iu));
        centres += key_centre(4u * chunk + $iu) * ((x$i.x + x$i.y) + (x$i.z + x$i.w));
        //@
        let made = sixteen(x0, x1, x2, x3);
        query_high[n] = made.high;
        query_low[n] = made.low;
        query_scales[n] = vec4<f32>(made.scale, made.sum, centres, zeros);
    }
    workgroupBarrier();
}

// Makes integers of the weights, for every group of channels that tokens have scales for.
fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {
    if task.value_form != 0u {
        return;
    }
    for (var n = thread; n < COLS * VALUE_GROUPS * VALUE_CHUNKS; n += 128u) {
        let chunk = n % VALUE_CHUNKS;
        let group = n / VALUE_CHUNKS % VALUE_GROUPS;
        let column = n / (VALUE_CHUNKS * VALUE_GROUPS);
        let place = value_place(task, first, min(16u * chunk, end - 16u));
        var zeros = 0.0;
        var sum = 0.0;
        //@ i 4
        let w$i = weights[32u * column + 4u * chunk + $iu];
        let x$i = w$i * value_token_scale(place.x, group, place.y / 4u + $iu);
        zeros += dot(w$i, value_token_zero(place.x, group, place.y / 4u + $iu));
        sum += (w$i.x + w$i.y) + (w$i.z + w$i.w);
        //@
        let made = sixteen(x0, x1, x2, x3);
        weight_high[n] = made.high;
        weight_low[n] = made.low;
        weight_scales[n] = vec4<f32>(made.scale, made.sum, zeros, sum);
    }
    workgroupBarrier();
}
