
// Scores and sums over coded pages need nothing before them.
fn ready_scores(thread: u32, task: Task, first: u32) {}

fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {}
