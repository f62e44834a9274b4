
// A cache whose pages are plain numbers has no codes.
const CODED = false;

fn ready_scores(thread: u32, task: Task, first: u32) {}

fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {}

fn coded_scores(thread: u32, task: Task, position: u32) -> Two {
    return Two();
}

fn coded_sums(task: Task, pair: u32, team: u32, end: u32) -> Two {
    return Two();
}
