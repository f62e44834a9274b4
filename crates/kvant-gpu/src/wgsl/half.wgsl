// The binary16 nearest to x, ties to even, as bits; kernels do not leave that to the driver, because pages are compared.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size >= 0x47800000u {
        return sign | select(0x7c00u, 0x7e00u, size > 0x7f800000u);
    }
    if size < 0x38800000u {
        // Subnormal: the unit is 2^-24, and adding 0.5 makes the hardware round to it.
        let rounded = bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u;
        return sign | rounded;
    }
    let rounded = size + 0x0fffu + ((size >> 13u) & 1u) - 0x38000000u;
    return sign | min(rounded >> 13u, 0x7c00u);
}

fn half_value(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}

// The upper half of a single, ties to even.
fn brain_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
