
// Of a page of 128 positions: the steps of its tokens, and its leak and scale.
var<workgroup> value_steps: array<f32, 128>;
var<workgroup> value_leak: f32;
var<workgroup> value_whole: f32;

fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {
    if task.value_form != 0u {
        return;
    }
    begin_trellis(thread);
    let page = value_pages[0];
    let leak = page_byte(page, 1u);
    let factor = (page_byte(page, 2u + thread / 2u) >> (4u * (thread % 2u))) & 15u;
    value_steps[thread] = first_step(leak, thread) * eighths(4 * (i32(factor) - 8));
    if thread == 0u {
        value_leak = f32(leak) / 256.0;
        value_whole = scale_of_byte(page_byte(page, 0u));
    }
    workgroupBarrier();
}
