
// Sixteen numbers as 16 bits under one scale, a high and a low byte each.
// The largest number in 16 bits: 127 · 256 + 127.
const LARGEST = 32639.0;

struct Sixteen {
    high: vec4<u32>,
    low: vec4<u32>,
    scale: f32,
    sum: f32,
}

fn sixteen(x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>) -> Sixteen {
    // By bits: NaN is larger than all numbers, and spoils the scale.
    let sizes = max(max(size4(x0), size4(x1)), max(size4(x2), size4(x3)));
    let size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    let largest = bitcast<f32>(size);
    // Numbers below 2^-100 count as zero.
    let is_usual = size >= 0x0d800000u && size < 0x7f800000u;
    let inverse = select(0.0, LARGEST / largest, is_usual);
    //@ i 4
    let q$i = vec4<i32>(round(x$i * inverse));
    //@
    let scale = select(largest / LARGEST, 0.0, size < 0x0d800000u);
    let sums = (q0 + q1) + (q2 + q3);
    let up = vec4<u32>(8u);
    return Sixteen(
        vec4<u32>(
            pack4xI8((q0 + 128) >> up), pack4xI8((q1 + 128) >> up), pack4xI8((q2 + 128) >> up), pack4xI8((q3 + 128) >> up),
        ),
        vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3)),
        scale,
        scale * f32((sums.x + sums.y) + (sums.z + sums.w)),
    );
}

fn size4(v: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
}
