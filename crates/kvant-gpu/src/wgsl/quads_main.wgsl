// Every task by fours of positions and channels (`quads.wgsl`).
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
    attend_by_fours(thread, task, number);
}

var<workgroup> numbers: array<vec4<f32>, KEPT>;

fn keep(place: u32, number: vec4<f32>) {
    numbers[place] = number;
}

fn kept(place: u32) -> vec4<f32> {
    return numbers[place];
}
