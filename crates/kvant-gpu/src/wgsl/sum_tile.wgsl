
// What the codes of sixteen tokens leave over of them, in the basis of the second codes.
fn sum_tile(thread: u32, first: u32) {
    workgroupBarrier();
    for (var i = thread; i < 16u * DIM; i += 128u) {
        tile[i / DIM * WIDTH + i % DIM] -= coarse_number(first + i / DIM, i % DIM);
    }
    turn_tile(thread);
}
