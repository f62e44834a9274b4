// A split of up to four queries of one kv head, as `attend.wgsl` has it, by four positions and four channels to a thread: what a thread
// loads meets all four queries, and numbers of four queries lie beside each other in workgroup memory, so that what is read there
// serves sixteen products. Positions are taken 256 at a time, four pages.
//
// Scores: a thread to four positions and one half of the channels; two threads then exchange what they have of two positions. Sums:
// a thread to four channels, and SETS sets of threads that share the positions, put together at the end.
//
// `quads_codes.wgsl` has codes. Numbers of a page are found by the page alone: its place is held to the buffer once, and
// all that lies in it is below its size.
var<workgroup> queries: array<vec4<f32>, COLS * Q4>;
var<workgroup> offsets: array<f32, COLS>;
// What `keep` and `kept` have, KEPT places: (positions) the four weights, before them scores that threads exchange, at the end (half of
// the sets, channels); then a place for every thread; then (channels) the four queries.
const LANES_AT = 256u;
const CHANNELS_AT = 384u;
const KEPT = CHANNELS_AT + KEY_DIM;
var<workgroup> eighths: array<vec4<f32>, 16>;
// (parity of the 256 positions, side, number): their pages, those of the next while these are attended to.
var<workgroup> pages: array<u32, 16>;
//@ s SPARSE
// The largest scores of the four pages of 256 positions.
var<workgroup> page_tops: array<vec4<f32>, 4>;
// The pages whose values some query reads, a bit each.
var<private> read_pages: u32;
//@

// The numbers of four queries at each of four positions or channels.
struct Four {
    n0: vec4<f32>,
    n1: vec4<f32>,
    n2: vec4<f32>,
    n3: vec4<f32>,
}

const VALUE_FOURS = VALUE_DIM / 4u;
// Threads that have the same half of the channels of keys.
const HALF = 64u;

// Where the pages of the 256 positions are listed: four of keys, then four of values.
var<private> listed: u32;

// Positions of its columns' tokens, and whether there are such columns.
var<private> own_positions: vec4<u32>;
var<private> are_there: vec4<bool>;

// A task, by all threads of a workgroup.
fn attend_by_fours(thread: u32, task: Task, number: u32) {
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
        let four_queries =
            vec4<f32>(queries[four][j], queries[Q4 + four][j], queries[2u * Q4 + four][j], queries[3u * Q4 + four][j]);
        keep(CHANNELS_AT + c, four_queries);
    }
    let four = thread % VALUE_FOURS;
    let team = thread / VALUE_FOURS;
    let half = thread / HALF;
    // Of the 256 positions: the four that it multiplies, and the two whose scores it ends up with.
    let quad = 4u * (thread % HALF);
    let own = quad + 2u * half;
    var top = vec4<f32>(NONE);
    var total = vec4<f32>(0.0);
    var sums = Four();
    if thread < 8u {
        pages[thread] = page_of(task, task.start, thread);
    }
    for (var first = task.start; first < task.end; first += 256u) {
        let end = min(256u, task.end - first);
        // Queries and pages are there, and nobody reads what was there for the positions before.
        workgroupBarrier();
        var next = 0u;
        if thread < 8u && first + 256u < task.end {
            next = page_of(task, first + 256u, thread);
        }
        ask_keys(task, first + quad, quad, half);
        ready_scores(thread, task, first);
        workgroupBarrier();
        var s = Four();
        if first + quad < task.end {
            if CODED && task.key_form == 0u {
                s = coded_scores(quad, half);
            } else {
                s = exact_scores(task, first + quad, quad, half);
            }
        }
        if thread < 8u {
            pages[(listed ^ 8u) + thread] = next;
        }
        ask_values(task, four, team);
        keep(thread, select(s.n0, s.n2, half == 0u));
        keep(thread + 128u, select(s.n1, s.n3, half == 0u));
        workgroupBarrier();
        let s0 = seen(task, first + own, select(s.n2, s.n0, half == 0u) + kept(thread ^ HALF));
        let s1 = seen(task, first + own + 1u, select(s.n3, s.n1, half == 0u) + kept((thread ^ HALF) + 128u));
        keep(LANES_AT + thread, max(s0, s1));
        workgroupBarrier();
        if thread < 16u {
            var largest = kept(LANES_AT + thread);
            for (var n = 16u; n < 128u; n += 16u) {
                largest = max(largest, kept(LANES_AT + n + thread));
            }
            eighths[thread] = largest;
        }
        //@ s SPARSE
        if thread >= 32u && thread < 36u {
            page_tops[thread - 32u] = top_of_page(task, thread - 32u);
        }
        //@
        workgroupBarrier();
        let before = top;
        for (var n = 0u; n < 16u; n += 4u) {
            //@ n 4
            top = max(top, eighths[n + $nu]);
            //@
        }
        var e0 = select(exp(s0 - top), vec4<f32>(0.0), s0 <= vec4<f32>(NONE));
        var e1 = select(exp(s1 - top), vec4<f32>(0.0), s1 <= vec4<f32>(NONE));
        //@ s SPARSE
        {
            let is_out = page_tops[own / VALUE_TOKENS] - top < vec4<f32>(FLOOR);
            e0 = select(e0, vec4<f32>(0.0), is_out);
            e1 = select(e1, vec4<f32>(0.0), is_out);
            read_pages = 0u;
            //@ n 4
            let is_read$n = (page_tops[$n] > vec4<f32>(NONE)) & (page_tops[$n] - top >= vec4<f32>(FLOOR));
            read_pages |= select(0u, 1u << $nu, any(is_read$n));
            //@
        }
        //@
        let factor = exp(before - top);
        total = fma(total, factor, e0 + e1);
        keep(own, e0);
        keep(own + 1u, e1);
        workgroupBarrier();
        if team < SETS {
            var more: Four;
            if CODED && task.value_form == 0u {
                more = coded_sums(four, team, end);
            } else {
                more = exact_sums(task, first, four, team, end);
            }
            //@ i 4
            sums.n$i = fma(sums.n$i, factor, more.n$i);
            //@
        }
        listed ^= 8u;
    }
    keep(LANES_AT + thread, total);
    workgroupBarrier();
    if thread < 16u {
        var all = kept(LANES_AT + thread);
        for (var n = 16u; n < 128u; n += 16u) {
            all += kept(LANES_AT + n + thread);
        }
        eighths[thread] = all;
    }
    workgroupBarrier();
    for (var step = SETS / 2u; step > 0u; step /= 2u) {
        if team >= step && team < 2u * step {
            //@ i 4
            keep((team - step) * VALUE_DIM + 4u * four + $iu, sums.n$i);
            //@
        }
        workgroupBarrier();
        if team < step {
            //@ i 4
            sums.n$i += kept(team * VALUE_DIM + 4u * four + $iu);
            //@
        }
        workgroupBarrier();
    }
    let to = COLS * number * (VALUE_DIM + 2u);
    if team == 0u {
        //@ k COLS
        //@ i 4
        partials[to + $ku * (VALUE_DIM + 2u) + 2u + 4u * four + $iu] = sums.n$i[$k];
        //@
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

//@ s SPARSE
// The largest scores with a page of the 256 positions; sinks are always read.
fn top_of_page(task: Task, number: u32) -> vec4<f32> {
    var largest = vec4<f32>(NONE);
    for (var i = 16u * number; i < 16u * number + 16u; i++) {
        largest = max(largest, max(kept(LANES_AT + i), kept(LANES_AT + HALF + i)));
    }
    return select(largest, vec4<f32>(1.0e30), task.value_form == 2u);
}

fn is_read(number: u32) -> bool {
    return ((read_pages >> number) & 1u) == 1u;
}
//@

// The page of 64 positions from `first` on, the last of the task for those behind it: four of keys, then four of values.
fn page_of(task: Task, first: u32, number: u32) -> u32 {
    if number < 4u {
        return key_place(task, min(first + number * KEY_TOKENS, task.end - 1u)).x;
    }
    return value_page(task, first, number - 4u);
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

// Four positions of an exact page: two words of each channel of a half.
fn exact_scores(task: Task, position: u32, quad: u32, half: u32) -> Four {
    let page = held(pages[listed + quad / KEY_TOKENS], select(KEY_QUADS, KEY_SINK_QUADS, task.key_form == 2u));
    let step = select(KEY_TOKENS, 32u, task.key_form == 2u) / 4u;
    let begin_at = half * (KEY_DIM / 2u);
    var s = Four();
    for (var c = begin_at; c < begin_at + KEY_DIM / 2u; c += KEY_WORDS) {
        //@ u KEY_WORDS
        let words$u = page_pair(page, quad % KEY_TOKENS / 4u + (c + $uu) * step);
        //@
        //@ u KEY_WORDS
        {
            let y = unpack2x16float(words$u.x);
            let z = unpack2x16float(words$u.y);
            let q = kept(CHANNELS_AT + c + $uu);
            s.n0 = fma(vec4<f32>(y.x), q, s.n0);
            s.n1 = fma(vec4<f32>(y.y), q, s.n1);
            s.n2 = fma(vec4<f32>(z.x), q, s.n2);
            s.n3 = fma(vec4<f32>(z.y), q, s.n3);
        }
        //@
    }
    // The token's own key is not in its page yet.
    if has_own(task) && position + 3u >= task.position && position <= task.position {
        let own = own_score(begin_at);
        //@ i 4
        if position + $iu == task.position {
            s.n$i = own;
        }
        //@
    }
    return s;
}

// Four channels of every position of a set.
fn exact_sums(task: Task, first: u32, four: u32, team: u32, end: u32) -> Four {
    let own = has_own(task) && first + end == task.end;
    let there = select(end, end - 1u, own);
    var s = Four();
    for (var t = 0u; t < there; t += SETS * VALUE_WORDS) {
        //@ s SPARSE
        if !is_read(t / VALUE_TOKENS) {
            continue;
        }
        //@
        let page = held(pages[listed + 4u + t / VALUE_TOKENS], select(VALUE_QUADS, VALUE_SINK_QUADS, task.value_form == 2u));
        // Tokens that are not there yet have room in the page, but for those of sinks.
        let most = select(VALUE_TOKENS, 32u, task.value_form == 2u) - 1u;
        //@ u VALUE_WORDS
        let words$u = page_pair(page, min(t % VALUE_TOKENS + team + SETS * $uu, most) * VALUE_FOURS + four);
        //@
        //@ u VALUE_WORDS
        {
            let n = t + team + SETS * $uu;
            let words = select(vec2<u32>(0u), words$u, n < there);
            let y = unpack2x16float(words.x);
            let z = unpack2x16float(words.y);
            let w = kept(n);
            s.n0 = fma(vec4<f32>(y.x), w, s.n0);
            s.n1 = fma(vec4<f32>(y.y), w, s.n1);
            s.n2 = fma(vec4<f32>(z.x), w, s.n2);
            s.n3 = fma(vec4<f32>(z.y), w, s.n3);
        }
        //@
    }
    // In the set that would read it of its page: the order of sums is that of queries that were ready.
    if own && team == (end - 1u) % SETS {
        let y = own_four(four);
        //@ i 4
        s.n$i = fma(vec4<f32>(y[$i]), kept(end - 1u), s.n$i);
        //@
    }
    return s;
}
