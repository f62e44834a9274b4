// A split of up to four queries of one kv head, as `attend.wgsl` has it, over closed pages: a team of 32 threads processes one page of 64
// tokens on its own. A workgroup has TEAMS teams, which wait for each other only at the start and at the end.
//
// `teams_codes.wgsl` has int4 pages. Tasks over sinks and the open page are `quads.wgsl`'s. The online softmax of closed pages is in base 2.
// Lines between `//BLOCK page` and `//END` load from the buffer of a page.

const TEAMS = 4u;
const FOURS = D / 4u;
const LOW = -1.0e30;
const LOG2_E = 1.4426950408889634;
const LN_2 = 0.6931471805599453;

// (teams)
var<workgroup> tops: array<vec4<f32>, TEAMS>;
var<workgroup> totals: array<vec4<f32>, TEAMS>;

// Pages of keys and values of a task, by number of the page.
fn pages_at(task: Task, page: u32) -> vec2<u32> {
    let at = a.coded_at + page;
    return vec2<u32>(held(plan[at + task.key_table], PAGE_QUADS), held(plan[at + task.value_table], PAGE_QUADS));
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    TEAM_ARGUMENTS
) {
    let number = id.x + id.y * count.x;
    if number >= a.tasks {
        return;
    }
    let task = task_of(number);
    kv_head = task.head;
    if task.key_form == 0u {
        attend_pages(team_thread(local, TEAM_VALUES), task, number);
    } else {
        attend_by_fours(local, task, number);
    }
}

// The queries of a task, for scores in base 2.
fn begin_pages(thread: u32, task: Task) {
    begin(thread, task);
    // What a thread has written itself.
    for (var n = thread; n < COLS * Q4; n += 128u) {
        queries[n] *= a.scale * LOG2_E;
    }
}

// Scores under the soft cap, in base 2.
fn capped(s: vec4<f32>) -> vec4<f32> {
    let x = clamp(s * (LN_2 / a.cap), vec4<f32>(-15.0), vec4<f32>(15.0));
    return (LOG2_E * a.cap) * tanh(x);
}

// Scores of the positions that a query sees.
fn seen_by(task: Task, position: vec4<u32>, query: u32, s: vec4<f32>) -> vec4<f32> {
    let is_seen = (position <= vec4<u32>(query)) & (vec4<u32>(query) - position < vec4<u32>(a.window));
    return select(vec4<f32>(NONE), s, is_seen & (position >= vec4<u32>(task.start)) & (position < vec4<u32>(task.end)));
}

// Puts together what the teams have: `sums_of` is (team, column, four of channels).
fn put_together(thread: u32, number: u32) {
    workgroupBarrier();
    for (var n = thread; n < 4u * FOURS; n += 128u) {
        let column = n / FOURS;
        let c = n % FOURS;
        var largest = LOW;
        for (var t = 0u; t < TEAMS; t++) {
            largest = max(largest, tops[t][column]);
        }
        var all = 0.0;
        var sum = vec4<f32>(0.0);
        for (var t = 0u; t < TEAMS; t++) {
            let share = exp2(tops[t][column] - largest);
            all = fma(share, totals[t][column], all);
            sum = fma(vec4<f32>(share), sums_of(t, n), sum);
        }
        let to = (4u * number + column) * (D + 2u);
        //@ i 4
        partials[to + 2u + 4u * c + $iu] = sum[$i];
        //@
        if c == 0u {
            partials[to] = largest * LN_2;
            partials[to + 1u] = all;
        }
    }
}
