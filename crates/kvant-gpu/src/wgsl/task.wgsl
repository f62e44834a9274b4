
// What kernels that attend are told, their pieces of work, and where these find pages.
struct Arguments {
    tasks_at: u32,
    tasks: u32,
    // Where entries of coded pages, and of the others, are counted from.
    coded_at: u32,
    table_at: u32,
    group: u32,
    window: u32,
    // The window that sinks are seen in.
    sinks_window: u32,
    scale: f32,
    cap: f32,
    sinks: u32,
    // Of queries that are ready: from one row and head to the next, in the model's basis and in that of coded keys.
    q_stride: u32,
    q_head: u32,
    p_stride: u32,
    p_head: u32,
    // Rows before those of queries as they meet the sinks of a streaming window.
    sinks_row: u32,
    // Of queries of this pass's projection: where their rotations are.
    turns_at: u32,
}

var<immediate> a: Arguments;

struct Task {
    row: u32,
    tokens: u32,
    head: u32,
    column: u32,
    position: u32,
    start: u32,
    end: u32,
    key_form: u32,
    value_form: u32,
    key_table: u32,
    value_table: u32,
}

const NONE = -3.0e38;

fn task_of(number: u32) -> Task {
    let at = a.tasks_at + 11u * number;
    return Task(
        plan[at], plan[at + 1u], plan[at + 2u], plan[at + 3u], plan[at + 4u], plan[at + 5u], plan[at + 6u],
        plan[at + 7u], plan[at + 8u], plan[at + 9u], plan[at + 10u],
    );
}

// The page of a position, and its token there.
fn key_place(task: Task, position: u32) -> vec2<u32> {
    if task.key_form == 2u {
        return vec2<u32>(plan[a.table_at + task.key_table], position);
    }
    let index = position - a.sinks;
    let table = select(a.table_at, a.coded_at, task.key_form == 0u) + task.key_table;
    return vec2<u32>(plan[table + index / KEY_TOKENS], index % KEY_TOKENS);
}

// Page `number` of the values from a position on, the last of the task for those behind it.
fn value_page(task: Task, first: u32, number: u32) -> u32 {
    if task.value_form == 2u {
        return plan[a.table_at + task.value_table];
    }
    let table = select(a.table_at, a.coded_at, task.value_form == 0u) + task.value_table;
    let last = (task.end - 1u - a.sinks) / VALUE_TOKENS;
    return plan[table + min((first - a.sinks) / VALUE_TOKENS + number, last)];
}
