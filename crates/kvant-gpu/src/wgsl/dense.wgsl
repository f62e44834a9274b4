// The way into a basis by its matrix, in place: four tokens of a channel to a thread, sums in the order of the host's encoder.
fn dense_tile(thread: u32) {
    const ITEMS = (4u * DIM + 127u) / 128u;
    var sums: array<vec4<f32>, ITEMS>;
    workgroupBarrier();
    for (var n = 0u; n < ITEMS; n++) {
        let i = thread + 128u * n;
        if i < 4u * DIM {
            let c = i % DIM;
            let at = i / DIM * 4u * WIDTH;
            var sum = vec4<f32>(0.0);
            for (var j = 0u; j < DIM; j++) {
                let four = vec4<f32>(tile[at + j], tile[at + WIDTH + j], tile[at + 2u * WIDTH + j], tile[at + 3u * WIDTH + j]);
                sum = fma(four, vec4<f32>(basis[basis_at + j * DIM + c]), sum);
            }
            sums[n] = sum;
        }
    }
    workgroupBarrier();
    for (var n = 0u; n < ITEMS; n++) {
        let i = thread + 128u * n;
        if i < 4u * DIM {
            for (var t = 0u; t < 4u; t++) {
                tile[(i / DIM * 4u + t) * WIDTH + i % DIM] = sums[n][t];
            }
        }
    }
}
