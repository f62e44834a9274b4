// A split of a query block: scores of up to COLS queries of one kv head with the keys of a run of positions, their softmax, and the
// sum of values under it, all from the pages' bytes. Positions are taken 128 at a time.
//
// Scores: a thread to a position, which goes through its key four channels at a time; the queries lie in workgroup memory.
// Sums: a thread to a channel, which goes through the positions four at a time; the weights lie in workgroup memory.
//
// How codes are met is another text: numbers as they are, integers (`coded_dots.wgsl`) or codes along tokens (`along.wgsl`), with loops that stand where this
// one says so.
//
// Every sum has one order, whatever COLS is: a query gets the same bits alone and in a block. `begin` brings the queries: those that a
// kernel before has made (`queries.wgsl`), or those of this pass's projection, with the key and value of the token itself
// (`own.wgsl`).
var<workgroup> queries: array<vec4<f32>, COLS * Q4>;
var<workgroup> offsets: array<f32, COLS>;
// (columns, fours of positions).
var<workgroup> weights: array<vec4<f32>, COLS * 32>;
var<workgroup> lanes: array<f32, COLS * 8>;
var<workgroup> tops: array<f32, COLS>;
var<workgroup> totals: array<f32, COLS>;
var<workgroup> factors: array<f32, COLS>;
// The pages of the values of 128 positions, which begin and end anywhere in theirs.
const VALUE_PAGES = 128u / VALUE_TOKENS + 1u;
var<workgroup> value_pages: array<u32, VALUE_PAGES>;
//@ s SPARSE
// (columns, pages): the largest score of a page, then whether the column reads its values.
var<workgroup> page_tops: array<f32, COLS * VALUE_PAGES>;
// The pages whose values some column reads, a bit each.
var<private> read_pages: u32;
//@

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
    if thread < COLS {
        tops[thread] = NONE;
        totals[thread] = 0.0;
        offsets[thread] = 0.0;
    }
    begin(thread, task);
    if LATENT {
        begin_latents(thread, task);
    }
    //@ i CHANNELS
    //@ k COLS
    var sum$i_$k = 0.0;
    //@
    //@
    for (var first = task.start; first < task.end; first += 128u) {
        workgroupBarrier();
        if thread < VALUE_PAGES {
            value_pages[thread] = value_page(task, first, thread);
        }
        ready_scores(thread, task, first);
        score(thread, task, first);
        workgroupBarrier();
        // Eight threads to a column, each with four fours.
        let column = thread / 8u;
        let lane = thread % 8u;
        if column < COLS {
            var top = NONE;
            //@ n 4
            {
                let s = weights[32u * column + lane + 8u * $nu];
                top = max(top, max(max(s.x, s.y), max(s.z, s.w)));
            }
            //@
            lanes[thread] = top;
        }
        //@ s SPARSE
        if thread < COLS * VALUE_PAGES {
            page_tops[thread] = top_of_page(task, first, thread / VALUE_PAGES, thread % VALUE_PAGES);
        }
        //@
        workgroupBarrier();
        var top = NONE;
        var total = 0.0;
        if column < COLS {
            top = tops[column];
            //@ n 8
            top = max(top, lanes[8u * column + $nu]);
            //@
            //@ n 4
            {
                let s = weights[32u * column + lane + 8u * $nu];
                var e = select(exp(s - top), vec4<f32>(0.0), s <= vec4<f32>(NONE));
                //@ s SPARSE
                let page = page_number(task, first, 4u * (lane + 8u * $nu));
                e = select(e, vec4<f32>(0.0), page_tops[column * VALUE_PAGES + page] - top < FLOOR);
                //@
                weights[32u * column + lane + 8u * $nu] = e;
                total += ((e.x + e.y) + e.z) + e.w;
            }
            //@
        }
        workgroupBarrier();
        if column < COLS {
            lanes[thread] = total;
            //@ s SPARSE
            if lane < VALUE_PAGES {
                let at = column * VALUE_PAGES + lane;
                page_tops[at] = select(0.0, 1.0, page_tops[at] > NONE && page_tops[at] - top >= FLOOR);
            }
            //@
        }
        workgroupBarrier();
        if column < COLS && lane == 0u {
            let factor = exp(tops[column] - top);
            var all = totals[column] * factor;
            //@ n 8
            all += lanes[8u * column + $nu];
            //@
            totals[column] = all;
            factors[column] = factor;
            tops[column] = top;
        }
        workgroupBarrier();
        let end = min(128u, task.end - first);
        //@ s SPARSE
        read_pages = 0u;
        for (var n = 0u; n < COLS * VALUE_PAGES; n++) {
            read_pages |= select(0u, 1u << (n % VALUE_PAGES), page_tops[n] > 0.0);
        }
        //@
        ready_sums(thread, task, first, end);
        //@ i CHANNELS
        if thread + 128u * $iu < VALUE_DIM {
            let c = thread + 128u * $iu;
            //@ k COLS
            sum$i_$k *= factors[$k];
            //@
            var t = 0u;
            if task.value_form == 0u {
                //SUMS
            } else {
                let tokens = select(VALUE_TOKENS, 32u, task.value_form == 2u);
                // Tokens that are not there yet have room in the page, and no weight.
                for (; t < end; t += 4u * VALUE_STEP) {
                    let place = value_place(task, first, t);
                    //@ s SPARSE
                    if !are_read(task, first, t, 1u) {
                        continue;
                    }
                    //@
                    //@ u VALUE_STEP
                    let v$u = value4_or_own(task, first + t + 4u * $uu, place.x, c, place.y + 4u * $uu, tokens);
                    //@
                    //@ u VALUE_STEP
                    {
                        let held = there(v$u, t + 4u * $uu, end);
                        //@ k COLS
                        sum$i_$k = weighted(held, weights[32u * $ku + t / 4u + $uu], sum$i_$k);
                        //@
                    }
                    //@
                }
            }
        }
        //@
    }
    workgroupBarrier();
    let to = COLS * number * (VALUE_DIM + 2u);
    //@ i CHANNELS
    if thread + 128u * $iu < VALUE_DIM {
        //@ k COLS
        partials[to + $ku * (VALUE_DIM + 2u) + 2u + thread + 128u * $iu] = sum$i_$k;
        //@
    }
    //@
    if thread < COLS {
        partials[to + thread * (VALUE_DIM + 2u)] = tops[thread];
        partials[to + thread * (VALUE_DIM + 2u) + 1u] = totals[thread];
    }
}

//@ s SPARSE
// Which of the pages of values a position lies in, `t` positions behind the first of the 128.
fn page_number(task: Task, first: u32, t: u32) -> u32 {
    return select((first + t - a.sinks) / VALUE_TOKENS - (first - a.sinks) / VALUE_TOKENS, 0u, task.value_form == 2u);
}

// The largest score of a column with a page; sinks are always read.
fn top_of_page(task: Task, first: u32, column: u32, page: u32) -> f32 {
    if task.value_form == 2u {
        return 1.0e30;
    }
    let offset = (first - a.sinks) % VALUE_TOKENS;
    let begin_at = max(page * VALUE_TOKENS, offset) - offset;
    let end_at = min((page + 1u) * VALUE_TOKENS - offset, 128u);
    var top = NONE;
    for (var t = begin_at; t < end_at; t += 4u) {
        let s = weights[32u * column + t / 4u];
        top = max(top, max(max(s.x, s.y), max(s.z, s.w)));
    }
    return top;
}

// Whether some column reads the values of any of `count` positions.
fn are_read(task: Task, first: u32, t: u32, count: u32) -> bool {
    let from_page = page_number(task, first, t);
    let pages = page_number(task, first, t + count - 1u) - from_page + 1u;
    return ((read_pages >> from_page) & ((1u << pages) - 1u)) != 0u;
}
//@

// Numbers of positions from `t` on, zeros from `end` on.
fn there(v: vec4<f32>, t: u32, end: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), v, vec4<u32>(t) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(end));
}

fn weighted(v: vec4<f32>, w: vec4<f32>, sum: f32) -> f32 {
    return fma(v.w, w.w, fma(v.z, w.z, fma(v.y, w.y, fma(v.x, w.x, sum))));
}

// The scores of this thread's position, for every column.
fn score(thread: u32, task: Task, first: u32) {
    let position = first + thread;
    //@ k COLS
    var total$k = vec4<f32>(0.0);
    //@
    let is_there = position < task.end;
    if is_there {
        let place = key_place(task, position);
        if task.key_form == 0u {
            //SCORES
        } else {
            let tokens = select(KEY_TOKENS, 32u, task.key_form == 2u);
            for (var c = 0u; c < (KEY_DIM + 3u) / 4u; c += EXACT_STEP) {
                //@ u EXACT_STEP
                let y$u = key4_or_own(task, position, place.x, place.y, c + $uu, tokens);
                //@
                //@ u EXACT_STEP
                //@ k COLS
                total$k = fma(y$u, queries[Q4 * $ku + c + $uu], total$k);
                //@
                //@
            }
        }
    }
    //@ k COLS
    scored(thread, task, position, is_there, $ku, total$k);
    //@
}

fn scored(thread: u32, task: Task, position: u32, is_there: bool, k: u32, total: vec4<f32>) {
    let column = task.column + k;
    let own = task.position + column / a.group;
    let window = select(a.window, a.sinks_window, task.key_form == 2u);
    let is_seen = is_there && column < task.tokens * a.group && position <= own && own - position < window;
    // Latents and codes along tokens have put their part of the score into `weights`.
    let is_held = LATENT || (ALONG && task.key_form == 0u);
    let held = select(0.0, weights[32u * k + thread / 4u][thread % 4u], is_held);
    var s = a.scale * (((total.x + total.y) + (total.z + total.w)) + offsets[k] + held);
    if a.cap > 0.0 {
        s = a.cap * tanh(clamp(s / a.cap, -15.0, 15.0));
    }
    weights[32u * k + thread / 4u][thread % 4u] = select(NONE, s, is_seen);
}

// The page of a value, `t` positions behind the first of the 128, and its token there.
fn value_place(task: Task, first: u32, t: u32) -> vec2<u32> {
    if task.value_form == 2u {
        return vec2<u32>(value_pages[0], first + t);
    }
    let index = first + t - a.sinks;
    return vec2<u32>(value_pages[index / VALUE_TOKENS - (first - a.sinks) / VALUE_TOKENS], index % VALUE_TOKENS);
}
