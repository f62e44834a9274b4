
// Scores with pages whose numbers depend on the tokens before: what a token adds by itself, a thread to a position, then what tokens
// before it leave, carried over in steps of one, two, four and so on. They lie where `scored` finds them.
var<workgroup> carried: array<f32, COLS * 128>;

// Adds what tokens before have left: rho of the sum of one, of which rho is left at the next.
fn carry(thread: u32, token: u32, rho: f32) {
    var power = rho;
    for (var back = 1u; back < KEY_TOKENS; back *= 2u) {
        workgroupBarrier();
        //@ k COLS
        var before$k = 0.0;
        if token >= back {
            before$k = carried[128u * $ku + thread - back];
        }
        //@
        workgroupBarrier();
        //@ k COLS
        carried[128u * $ku + thread] = fma(before$k, power, carried[128u * $ku + thread]);
        //@
        power *= power;
    }
}

fn ready_scores(thread: u32, task: Task, first: u32) {
    if task.key_form != 0u {
        return;
    }
    // Threads behind the last position have the last one's place, and scores that nobody sees.
    let place = key_place(task, min(first + thread, task.end - 1u));
    let page = place.x;
    let token = place.y;
    //@ k COLS
    var total$k = 0.0;
    //@
    //SCORES
    //@ k COLS
    weights[32u * $ku + thread / 4u][thread % 4u] = total$k;
    //@
}
