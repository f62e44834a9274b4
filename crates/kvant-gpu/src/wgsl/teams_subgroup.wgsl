// A team is a subgroup of 32 threads, or half of one of 64. TEAM_BARRIER is the subgroup's where a driver's orders workgroup memory.
var<private> first_lane: u32;

fn team_thread(local: u32, subgroup: u32, size: u32, invocation: u32) -> u32 {
    first_lane = invocation & FIRST_LANE;
    return subgroup * size + invocation;
}

fn team_sync() {
    TEAM_BARRIER();
}

fn other(v: f32, mask: u32, thread: u32) -> f32 {
    return subgroupShuffleXor(v, mask);
}

fn other_2(v: vec2<f32>, mask: u32, thread: u32) -> vec2<f32> {
    return subgroupShuffleXor(v, mask);
}

fn other_4(v: vec4<f32>, mask: u32, thread: u32) -> vec4<f32> {
    return subgroupShuffleXor(v, mask);
}

fn other_i(v: vec4<i32>, mask: u32, thread: u32) -> vec4<i32> {
    return subgroupShuffleXor(v, mask);
}

fn of_lane(v: f32, lane: u32, thread: u32) -> f32 {
    return subgroupShuffle(v, first_lane + lane);
}
