// A split of up to four queries of one kv head, as `attend.wgsl` has it, by two positions and two channels to a thread: what a thread
// loads meets all four queries, and numbers of four queries lie beside each other in workgroup memory. Positions are taken 256 at a
// time, four pages.
//
// Scores: a thread to two positions, which share a word in every channel of an exact page and are neighbouring words of codes. Sums:
// a thread to two channels, and SETS sets of threads that share the positions, put together at the end.
//
// `pairs_codes.wgsl` has codes. Numbers of a page are found by the page alone: its place is held to the buffer once, and
// all that lies in it is below its size.
var<workgroup> queries: array<vec4<f32>, COLS * Q4>;
var<workgroup> offsets: array<f32, COLS>;
// (channels): the four queries.
var<workgroup> by_channel: array<vec4<f32>, KEY_DIM>;
// (positions): the four weights; at the end (sets but the first, channels).
var<workgroup> weights: array<vec4<f32>, 256>;
var<workgroup> lanes: array<vec4<f32>, 128>;
var<workgroup> eighths: array<vec4<f32>, 16>;
var<workgroup> value_pages: array<u32, 4>;

// Four numbers of each of two positions or channels.
struct Two {
    first: vec4<f32>,
    second: vec4<f32>,
}

const VALUE_PAIRS = VALUE_DIM / 2u;

// Positions of its columns' tokens, and whether there are such columns.
var<private> own_positions: vec4<u32>;
var<private> are_there: vec4<bool>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    if number >= a.tasks {
        return;
    }
    let task = task_of(number);
    kv_head = task.head;
    let columns = vec4<u32>(task.column) + vec4<u32>(0u, 1u, 2u, 3u);
    own_positions = vec4<u32>(task.position) + columns / vec4<u32>(a.group);
    are_there = columns < vec4<u32>(task.tokens * a.group);
    if thread < COLS {
        offsets[thread] = 0.0;
    }
    begin(thread, task);
    workgroupBarrier();
    for (var c = thread; c < KEY_DIM; c += 128u) {
        let four = c / 4u;
        let j = c % 4u;
        by_channel[c] =
            vec4<f32>(queries[four][j], queries[Q4 + four][j], queries[2u * Q4 + four][j], queries[3u * Q4 + four][j]);
    }
    let pair = thread % VALUE_PAIRS;
    let team = thread / VALUE_PAIRS;
    var top = vec4<f32>(NONE);
    var total = vec4<f32>(0.0);
    var sum0 = vec4<f32>(0.0);
    var sum1 = vec4<f32>(0.0);
    for (var first = task.start; first < task.end; first += 256u) {
        let end = min(256u, task.end - first);
        if thread < 4u {
            value_pages[thread] = value_page(task, first, thread);
        }
        ready_scores(thread, task, first);
        workgroupBarrier();
        let position = first + 2u * thread;
        var s = Two(vec4<f32>(0.0), vec4<f32>(0.0));
        if position < task.end {
            if CODED && task.key_form == 0u {
                s = coded_scores(thread, task, position);
            } else {
                s = exact_scores(task, position);
            }
        }
        let s0 = seen(task, position, s.first);
        let s1 = seen(task, position + 1u, s.second);
        lanes[thread] = max(s0, s1);
        workgroupBarrier();
        if thread < 16u {
            var largest = lanes[thread];
            for (var n = 16u; n < 128u; n += 16u) {
                largest = max(largest, lanes[n + thread]);
            }
            eighths[thread] = largest;
        }
        workgroupBarrier();
        let before = top;
        for (var n = 0u; n < 16u; n += 4u) {
            //@ n 4
            top = max(top, eighths[n + $nu]);
            //@
        }
        let e0 = select(exp(s0 - top), vec4<f32>(0.0), s0 <= vec4<f32>(NONE));
        let e1 = select(exp(s1 - top), vec4<f32>(0.0), s1 <= vec4<f32>(NONE));
        let factor = exp(before - top);
        total = fma(total, factor, e0 + e1);
        sum0 *= factor;
        sum1 *= factor;
        weights[2u * thread] = e0;
        weights[2u * thread + 1u] = e1;
        workgroupBarrier();
        ready_sums(thread, task, first, end);
        if team < SETS {
            var more: Two;
            if CODED && task.value_form == 0u {
                more = coded_sums(task, pair, team, end);
            } else {
                more = exact_sums(task, first, pair, team, end);
            }
            sum0 += more.first;
            sum1 += more.second;
        }
    }
    lanes[thread] = total;
    workgroupBarrier();
    if thread < 16u {
        var all = lanes[thread];
        for (var n = 16u; n < 128u; n += 16u) {
            all += lanes[n + thread];
        }
        eighths[thread] = all;
    }
    if team > 0u && team < SETS {
        weights[(team - 1u) * VALUE_DIM + 2u * pair] = sum0;
        weights[(team - 1u) * VALUE_DIM + 2u * pair + 1u] = sum1;
    }
    workgroupBarrier();
    let to = COLS * number * (VALUE_DIM + 2u);
    if team == 0u {
        for (var other = 0u; other + 1u < SETS; other++) {
            sum0 += weights[other * VALUE_DIM + 2u * pair];
            sum1 += weights[other * VALUE_DIM + 2u * pair + 1u];
        }
        //@ k COLS
        partials[to + $ku * (VALUE_DIM + 2u) + 2u + 2u * pair] = sum0[$k];
        partials[to + $ku * (VALUE_DIM + 2u) + 3u + 2u * pair] = sum1[$k];
        //@
    }
    if thread < COLS {
        var all = 0.0;
        for (var n = 0u; n < 16u; n++) {
            all += eighths[n][thread];
        }
        partials[to + thread * (VALUE_DIM + 2u)] = top[thread];
        partials[to + thread * (VALUE_DIM + 2u) + 1u] = all;
    }
}

// Scores of a position that queries may see, under the scale and the soft cap.
fn seen(task: Task, position: u32, total: vec4<f32>) -> vec4<f32> {
    let window = select(a.window, a.sinks_window, task.key_form == 2u);
    let is_seen = are_there & (vec4<u32>(position) <= own_positions) & (own_positions - vec4<u32>(position) < vec4<u32>(window));
    var s = a.scale * (total + vec4<f32>(offsets[0], offsets[1], offsets[2], offsets[3]));
    if a.cap > 0.0 {
        s = a.cap * tanh(clamp(s / a.cap, vec4<f32>(-15.0), vec4<f32>(15.0)));
    }
    return select(vec4<f32>(NONE), s, is_seen & vec4<bool>(position < task.end));
}

// Two positions of an exact page: a word of each channel.
fn exact_scores(task: Task, position: u32) -> Two {
    let place = key_place(task, position);
    let page = held(place.x, select(KEY_QUADS, KEY_SINK_QUADS, task.key_form == 2u));
    let step = select(KEY_TOKENS, 32u, task.key_form == 2u) / 2u;
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(0.0);
    for (var c = 0u; c < KEY_DIM; c += KEY_WORDS) {
        //@ u KEY_WORDS
        let word$u = page_word(page, place.y / 2u + (c + $uu) * step);
        //@
        //@ u KEY_WORDS
        {
            let y = unpack2x16float(word$u);
            let q = by_channel[c + $uu];
            s0 = fma(vec4<f32>(y.x), q, s0);
            s1 = fma(vec4<f32>(y.y), q, s1);
        }
        //@
    }
    // The token's own key is not in its page yet.
    if has_own(task) && position + 1u >= task.position && position <= task.position {
        let own = own_score();
        if position == task.position {
            s0 = own;
        } else {
            s1 = own;
        }
    }
    return Two(s0, s1);
}

// Two channels of every position of a set.
fn exact_sums(task: Task, first: u32, pair: u32, team: u32, end: u32) -> Two {
    let own = has_own(task) && first + end == task.end;
    let there = select(end, end - 1u, own);
    var sum0 = vec4<f32>(0.0);
    var sum1 = vec4<f32>(0.0);
    for (var t = 0u; t < there; t += SETS * VALUE_WORDS) {
        let place = value_place(task, first, t);
        let page = held(place.x, select(VALUE_QUADS, VALUE_SINK_QUADS, task.value_form == 2u));
        // Tokens that are not there yet have room in the page, but for those of sinks.
        let most = select(VALUE_TOKENS, 32u, task.value_form == 2u) - 1u;
        //@ u VALUE_WORDS
        let word$u = page_word(page, min(place.y + team + SETS * $uu, most) * VALUE_PAIRS + pair);
        //@
        //@ u VALUE_WORDS
        {
            let n = t + team + SETS * $uu;
            let y = unpack2x16float(select(0u, word$u, n < there));
            let w = weights[n];
            sum0 = fma(vec4<f32>(y.x), w, sum0);
            sum1 = fma(vec4<f32>(y.y), w, sum1);
        }
        //@
    }
    if own && team == 0u {
        let y = own_pair(pair);
        sum0 = fma(vec4<f32>(y.x), weights[end - 1u], sum0);
        sum1 = fma(vec4<f32>(y.y), weights[end - 1u], sum1);
    }
    return Two(sum0, sum1);
}
