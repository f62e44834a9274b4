
// What kernels that norm rows share. The first 128 threads have the fours thread, thread + 128, … of a row; this is the sum of what
// they found, in one order, so that a norm has the same bits in every kernel.
var<workgroup> sums: array<f32, 128>;

fn added(thread: u32, v: f32) -> f32 {
    workgroupBarrier();
    if thread < 128u {
        sums[thread] = v;
    }
    for (var step = 64u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if thread < step {
            sums[thread] += sums[thread + step];
        }
    }
    workgroupBarrier();
    return sums[0];
}
