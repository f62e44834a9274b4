fn stage{R}(thread: u32, stride: u32) {
    const COUNT = HALF / {R}u;
    const ITEMS = (16u * COUNT + 127u) / 128u;
    var held: array<array<vec2<f32>, {R}>, ITEMS>;
    workgroupBarrier();
    for (var n = 0u; n < ITEMS; n++) {
        let i = thread + 128u * n;
        if i < 16u * COUNT {
            for (var j = 0u; j < {R}u; j++) {
                held[n][j] = number(i / COUNT * WIDTH, i % COUNT + COUNT * j);
            }
        }
    }
    workgroupBarrier();
    for (var n = 0u; n < ITEMS; n++) {
        let i = thread + 128u * n;
        if i < 16u * COUNT {
            var a = held[n];
            let p = i % COUNT / stride;
            let to = i % COUNT % stride + stride * {R}u * p;
            var y = a;
            //BUTTERFLY
            for (var k = 0u; k < {R}u; k++) {
                set_number(i / COUNT * WIDTH, to + stride * k, times(y[k], root(2u * stride * p * k)));
            }
        }
    }
}
