// The way into the basis of an SRHT with the sums of the host's encoder in its order, in place, after channels were multiplied by their
// signs: the Hartley transform of ODD neighbours, then butterflies over the power of two.
fn walsh_tile(thread: u32) {
    let runs = DIM / ODD;
    if ODD > 1u {
        workgroupBarrier();
        for (var i = thread; i < 16u * runs; i += 128u) {
            let at = i / runs * WIDTH + ODD * (i % runs);
            var sums: array<f32, ODD>;
            for (var k = 0u; k < ODD; k++) {
                var sum = 0.0;
                for (var j = 0u; j < ODD; j++) {
                    sum = fma(tile[at + j], hartley[k * ODD + j], sum);
                }
                sums[k] = sum;
            }
            for (var k = 0u; k < ODD; k++) {
                tile[at + k] = sums[k];
            }
        }
    }
    let pairs = max(DIM / 2u, 1u);
    for (var half = 1u; half < runs; half *= 2u) {
        workgroupBarrier();
        for (var i = thread; i < 16u * pairs; i += 128u) {
            let q = i % pairs / ODD;
            let at = i / pairs * WIDTH + (q / half * 2u * half + q % half) * ODD + i % pairs % ODD;
            let x = tile[at];
            let y = tile[at + half * ODD];
            tile[at] = x + y;
            tile[at + half * ODD] = x - y;
        }
    }
}
