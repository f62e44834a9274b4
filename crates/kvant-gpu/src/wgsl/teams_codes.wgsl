// Closed pages of int4 by a team, in integer dot products (dp4a).
//
// Queries and weights are rounded to signed bytes, as on the CPU, and meet the codes four at a time: queries times the page's channel
// scales with one step per (page, query), weights times its token scales with one per (page, group, query). Everything else is f32.
//
//   scores   a thread has four tokens and every other eight of channels; two threads then exchange two of the queries
//   sums     a thread has four channels and all tokens of the page
//
// Loads run half a page ahead: this page's values are loaded before its keys are used, the next page's keys before its values are.
// A driver may move loads and arithmetic anywhere, but not out of a branch. So both sit in branches on `a.window`, which is never zero.

// 16-byte loads of a thread for a page's keys.
const KEY_LOADS = D / 16u;
// Threads that share four channels of values and split the tokens.
const PARTS = 128u / D;
const VALUE_LOADS = 8u / PARTS;
const GROUPS = D / 32u;
// Where codes begin, in units of 16 bytes.
const KEY_CODES = D / 4u;
const VALUE_CODES = 8u * GROUPS;
const PAGE_QUADS = 9u * D / 4u;
// Fours of tokens in a group's folded weights, and one more so that groups lie in different banks.
const ROW = 17u;
// Layout of a team's memory: folded queries (fours of channels), with the two pairs of queries swapped in odd eights; folded weights
// (groups, fours of tokens); inverse steps (queries: groups); steps (groups: queries).
const WEIGHTS = FOURS;
const INVERSES = WEIGHTS + GROUPS * ROW;
const STEPS = INVERSES + 4u;
const PLACES = max(STEPS + GROUPS, 4u * FOURS);
// Fours of scales and zeros in both headers of a page.
const HEADERS = 2u * (KEY_CODES + VALUE_CODES);

// Adding this rounds a small number to an integer and leaves it in the low bits.
const MAGIC = 12582912.0;

// (teams, PLACES); at the end the teams' sums (columns, FOURS). Of tasks over exact pages what `quads.wgsl` keeps: workgroup memory decides
// how many workgroups run at once.
var<workgroup> memory: array<vec4<u32>, max(TEAMS * PLACES, KEPT)>;
// (teams, fours of): channel scales, channel zeros, token scales (groups, fours of tokens).
var<workgroup> headers: array<vec2<u32>, TEAMS * HEADERS>;
fn halves(w: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
}

fn most_of(v: vec4<f32>) -> f32 {
    let m = max(abs(v.xy), abs(v.zw));
    return max(m.x, m.y);
}

// Four numbers times `by`, which are between -127 and 127, as signed bytes.
fn bytes(x: vec4<f32>, by: f32) -> u32 {
    let t = bitcast<vec4<u32>>(fma(x, vec4<f32>(by), vec4<f32>(MAGIC)));
    return (t.x & 0xffu) | ((t.y & 0xffu) << 8u) | ((t.z & 0xffu) << 16u) | (t.w << 24u);
}

// 16 * (code - 8) as signed bytes, of the low and the high nibbles. `flip` is 0x80808080 in a register: as a constant it costs a
// second instruction on NVIDIA, whose three-input logic takes one operand that is not a register.
fn low_levels(words: vec4<u32>, flip: u32) -> vec4<u32> {
    return ((words << vec4<u32>(4u)) & vec4<u32>(0xf0f0f0f0u)) ^ vec4<u32>(flip);
}

fn high_levels(words: vec4<u32>, flip: u32) -> vec4<u32> {
    return (words & vec4<u32>(0xf0f0f0f0u)) ^ vec4<u32>(flip);
}

fn dots(words: vec4<u32>, by: u32, sum: vec4<i32>) -> vec4<i32> {
    // In MSL naga declares a variable for each operand, and one operand of several products several times.
    let b = vec4<u32>(by);
    return sum + vec4<i32>(
        dot4I8Packed(words.x, b.x), dot4I8Packed(words.y, b.y), dot4I8Packed(words.z, b.z), dot4I8Packed(words.w, b.w),
    );
}

fn keep(place: u32, number: vec4<f32>) {
    memory[place] = bitcast<vec4<u32>>(number);
}

fn kept(place: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(memory[place]);
}

fn sums_of(team: u32, n: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(memory[team * PLACES + n]);
}

fn attend_pages(thread: u32, task: Task, number: u32) {
    let team = thread / 32u;
    let lane = thread % 32u;
    let half = lane / 16u;
    let four = lane % 16u;
    let first_page = (task.start - a.sinks) / 64u;
    let last_page = (task.end - 1u - a.sinks) / 64u;
    // A page's number says which team has it, wherever a window begins.
    let from_page = first_page / TEAMS * TEAMS;
    let rounds = (last_page - from_page) / TEAMS + 1u;
    // Pages that end behind the first, or begin a window before the second, are seen in part.
    let whole_until = min(task.end - 1u, task.position);
    let last_position = task.position + (task.column + 3u) / a.group;

    // Folding: a thread has four channels and all queries, or half of the queries where D is 64.
    let channels = lane % FOURS;
    let part = lane / FOURS;
    let odd = (channels / 2u) % 2u == 1u;
    // A thread's value codes in a page.
    let value_at = VALUE_CODES + (channels / 4u) * 32u + channels % 4u + 4u * part;
    let group = channels / 8u;
    let own = team * PLACES;

    var top = vec4<f32>(LOW);
    var total = vec2<f32>(0.0);
    //@ k 4
    var sum$k = vec4<f32>(0.0);
    //@

    var page = from_page + team;
    // Of a task over codes this is zero, which a driver cannot know.
    let flip = 0x80808080u ^ task.value_form;
    var place = pages_at(task, clamp(page, first_page, last_page));
    var key_header: vec4<u32>;
    var value_header: vec4<u32>;
    //@ i KEY_LOADS
    var key$i: vec4<u32>;
    //@
    //BLOCK place.x
    key_header = PAGES[quad_of(place.x) + lane % KEY_CODES];
    //@ i KEY_LOADS
    key$i = PAGES[quad_of(place.x) + KEY_CODES + 32u * $iu + lane];
    //@
    //END
    //BLOCK place.y
    value_header = PAGES[quad_of(place.y) + lane % VALUE_CODES];
    //END
    begin_pages(thread, task);
    workgroupBarrier();

    for (var round = 0u; round < rounds; round++) {
        let next = pages_at(task, min(page + TEAMS, last_page));
        if D == 128u || lane < 16u {
            headers[team * HEADERS + 2u * lane] = key_header.xy;
            headers[team * HEADERS + 2u * lane + 1u] = key_header.zw;
            headers[team * HEADERS + 2u * KEY_CODES + 2u * lane] = value_header.xy;
            headers[team * HEADERS + 2u * KEY_CODES + 2u * lane + 1u] = value_header.zw;
        }
        team_sync();
        // Fold the page's scales into the queries. The zeros are those of code - 8.
        let channel_scales = halves(headers[team * HEADERS + channels]);
        let channel_zeros = fma(channel_scales, vec4<f32>(8.0), halves(headers[team * HEADERS + FOURS + channels]));
        var step: vec2<f32>;
        var base: vec2<f32>;
        {
            //FOLD
        }
        team_sync();
        //@ k 4
        var score$k = vec4<i32>(0);
        //@
        //@ i VALUE_LOADS
        var value$i: vec4<u32>;
        //@
        if a.window != 0u {
            //@ d DENSE
            //BLOCK place.y
            //@ i VALUE_LOADS
            value$i = PAGES[quad_of(place.y) + value_at + 4u * PARTS * $iu];
            //@
            //END
            //@
            //BLOCK next.x
            key_header = PAGES[quad_of(next.x) + lane % KEY_CODES];
            //END
            //BLOCK next.y
            value_header = PAGES[quad_of(next.y) + lane % VALUE_CODES];
            //END
        }
        if a.window != 0u {
            //@ i KEY_LOADS
            {
                let low = low_levels(key$i, flip);
                let high = high_levels(key$i, flip);
                let row = own + 2u * (2u * $iu + half);
                let low_q = memory[row];
                let high_q = memory[row + 1u];
                //@ k 4
                score$k = dots(low, low_q[$k], score$k);
                score$k = dots(high, high_q[$k], score$k);
                //@
            }
            //@
        }
        // Odd and even eights together: a thread has four tokens of queries 2 * half and 2 * half + 1.
        var s0 = fma(vec4<f32>(score0 + other_i(score2, 16u, thread)), vec4<f32>(step.x), vec4<f32>(base.x));
        var s1 = fma(vec4<f32>(score1 + other_i(score3, 16u, thread)), vec4<f32>(step.y), vec4<f32>(base.y));
        if a.cap > 0.0 {
            s0 = capped(s0);
            s1 = capped(s1);
        }
        let page_start = a.sinks + page * 64u;
        if page_start < task.start || page_start + 63u > whole_until || last_position - page_start >= a.window {
            let position = vec4<u32>(page_start + 4u * four) + vec4<u32>(0u, 1u, 2u, 3u);
            let column = task.column + 2u * half;
            s0 = seen_by(task, position, task.position + column / a.group, s0);
            s1 = seen_by(task, position, task.position + (column + 1u) / a.group, s1);
        }
        //@ g GROUPS
        let token_scale$g = halves(headers[team * HEADERS + 2u * KEY_CODES + 16u * $gu + four]);
        //@
        var factor: vec4<f32>;
        //@ s SPARSE
        var is_out: vec4<bool>;
        //@
        {
            // Maximum over the page: each quarter of the team ends up with one query's.
            let m0 = max(max(s0.x, s0.y), max(s0.z, s0.w));
            let m1 = max(max(s1.x, s1.y), max(s1.z, s1.w));
            let second = (lane & 8u) != 0u;
            var m = max(select(m0, m1, second), other(select(m1, m0, second), 8u, thread));
            m = max(m, other(m, 4u, thread));
            m = max(m, other(m, 2u, thread));
            m = max(m, other(m, 1u, thread));
            let of_page = vec4<f32>(of_lane(m, 0u, thread), of_lane(m, 8u, thread), of_lane(m, 16u, thread), of_lane(m, 24u, thread));
            let now = max(top, of_page);
            //@ s SPARSE
            let column = vec4<u32>(task.column) + vec4<u32>(0u, 1u, 2u, 3u);
            is_out = (of_page - now < vec4<f32>(FLOOR * LOG2_E)) | (column >= vec4<u32>(task.tokens * a.group));
            //@
            factor = exp2(top - now);
            top = now;
        }
        let now = select(top.zw, top.xy, half == 0u);
        var w0 = exp2(s0 - now.x);
        var w1 = exp2(s1 - now.y);
        //@ s SPARSE
        let are_out = select(is_out.zw, is_out.xy, half == 0u);
        w0 = select(w0, vec4<f32>(0.0), are_out.x);
        w1 = select(w1, vec4<f32>(0.0), are_out.y);
        if !all(is_out) {
            //BLOCK place.y
            //@ i VALUE_LOADS
            value$i = PAGES[quad_of(place.y) + value_at + 4u * PARTS * $iu];
            //@
            //END
        }
        //@
        total = fma(
            total, select(factor.zw, factor.xy, half == 0u),
            vec2<f32>((w0.x + w0.y) + (w0.z + w0.w), (w1.x + w1.y) + (w1.z + w1.w)),
        );
        {
            //@ g GROUPS
            let m0_$g = most_of(w0 * token_scale$g);
            let m1_$g = most_of(w1 * token_scale$g);
            //@
            let second = (lane & 8u) != 0u;
            //WEIGHTS
            // The maximum of query lane / 8 and of the group in the lower bits.
            let of_group = lane / (8u / GROUPS) % GROUPS;
            let most = max(m, 1.0e-30);
            if lane % (8u / GROUPS) == 0u {
                memory[own + INVERSES + lane / 8u][of_group] = bitcast<u32>(127.0 / most);
                memory[own + STEPS + of_group][lane / 8u] = bitcast<u32>(most * (1.0 / (127.0 * 16.0)));
            }
        }
        team_sync();
        {
            let inverse0 = bitcast<vec4<f32>>(memory[own + INVERSES + 2u * half]);
            let inverse1 = bitcast<vec4<f32>>(memory[own + INVERSES + 2u * half + 1u]);
            //@ g GROUPS
            {
                let at = own + WEIGHTS + $gu * ROW + four;
                memory[at][2u * half] = bytes(w0 * token_scale$g, inverse0[$g]);
                memory[at][2u * half + 1u] = bytes(w1 * token_scale$g, inverse1[$g]);
            }
            //@
        }
        team_sync();
        //@ k 4
        var more$k = vec4<i32>(0);
        //@
        if round + 1u < rounds {
            //BLOCK next.x
            //@ i KEY_LOADS
            key$i = PAGES[quad_of(next.x) + KEY_CODES + 32u * $iu + lane];
            //@
            //END
        }
        var is_read = a.window != 0u;
        //@ s SPARSE
        is_read = !all(is_out);
        //@
        if is_read {
            //@ i VALUE_LOADS
            {
                let low = low_levels(value$i, flip);
                let high = high_levels(value$i, flip);
                let at = own + WEIGHTS + group * ROW + 2u * (PARTS * $iu + part);
                let low_w = memory[at];
                let high_w = memory[at + 1u];
                //@ k 4
                more$k = dots(low, low_w[$k], more$k);
                more$k = dots(high, high_w[$k], more$k);
                //@
            }
            //@
        }
        let by = bitcast<vec4<f32>>(memory[own + STEPS + group]);
        //@ k 4
        sum$k = fma(vec4<f32>(more$k), vec4<f32>(by[$k]), sum$k * factor[$k]);
        //@
        place = next;
        page += TEAMS;
    }

    // Merge the teams.
    team_sync();
    total += other_2(total, 8u, thread);
    total += other_2(total, 4u, thread);
    total += other_2(total, 2u, thread);
    total += other_2(total, 1u, thread);
    let beside = other_2(total, 16u, thread);
    if lane == 0u {
        tops[team] = top;
        totals[team] = vec4<f32>(total, beside);
    }
    //@ k 4
    //PARTS_TOGETHER
    if part == 0u {
        memory[own + $ku * FOURS + channels] = bitcast<vec4<u32>>(sum$k);
    }
    //@
    put_together(thread, number);
}
