// A cache whose pages are plain numbers has no codes.
const CODED = false;

fn ready_scores(thread: u32, task: Task, first: u32) {}

fn ask_keys(task: Task, position: u32, quad: u32, half: u32) {}

fn ask_values(task: Task, four: u32, team: u32) {}

fn coded_scores(quad: u32, half: u32) -> Four {
    return Four();
}

fn coded_sums(four: u32, team: u32, end: u32) -> Four {
    return Four();
}
