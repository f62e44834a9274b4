// Pages into other pages. A workgroup to a page.
struct Arguments {
    records: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let record = id.x + id.y * count.x;
    if record >= a.records {
        return;
    }
    let at = 3u * record;
    for (var word = thread; word < plan[at + 2u]; word += 64u) {
        set_page_word(plan[at + 1u], word, page_word(plan[at], word));
    }
}
