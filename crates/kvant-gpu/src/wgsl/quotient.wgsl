// Quotients and roots to the nearest, ties to even, by integers: WGSL lets a device divide and take roots less exactly than that, and pages
// are compared. What would be subnormal is zero.

// a / b; b is a normal number.
fn divided(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    let sign = (x ^ y) & 0x80000000u;
    let a_power = (x >> 23u) & 255u;
    if a_power == 255u {
        return a;
    }
    if a_power == 0u {
        return bitcast<f32>(sign);
    }
    var rest = (x & 0x7fffffu) | 0x800000u;
    let divisor = (y & 0x7fffffu) | 0x800000u;
    var power = i32(a_power) - i32((y >> 23u) & 255u) + 127;
    if rest < divisor {
        rest <<= 1u;
        power -= 1;
    }
    // A quotient from 1 to 2: its first bit, then 24 more, eight at a time.
    rest -= divisor;
    var bits = 1u;
    for (var i = 0u; i < 3u; i++) {
        let digit = (rest << 8u) / divisor;
        rest = (rest << 8u) - digit * divisor;
        bits = (bits << 8u) | digit;
    }
    return rounded(sign, power, bits, rest);
}

// The square root of a number that is not negative.
fn square_root(a: f32) -> f32 {
    let x = bitcast<u32>(a);
    let a_power = x >> 23u;
    if a_power == 0u || a_power >= 255u {
        return select(0.0, a, a_power >= 255u);
    }
    // An even power of two and a number from 1 to 4, of which two bits make one of the root.
    let odd = (a_power + 1u) & 1u;
    var left = ((x & 0x7fffffu) | 0x800000u) << (7u + odd);
    var rest = 0u;
    var bits = 0u;
    for (var i = 0u; i < 25u; i++) {
        rest = (rest << 2u) | (left >> 30u);
        left <<= 2u;
        let next = (bits << 2u) | 1u;
        bits <<= 1u;
        if rest >= next {
            rest -= next;
            bits |= 1u;
        }
    }
    return rounded(0u, (i32(a_power - odd) - 127) / 2 + 127, bits, rest);
}

// 25 bits, of which the last is rounded away, and whether anything comes after them.
fn rounded(sign: u32, power: i32, bits: u32, rest: u32) -> f32 {
    let half = (bits >> 1u) & 1u;
    let up = select(0u, 1u, (bits & 1u) == 1u && (rest != 0u || half == 1u));
    if power <= 0 {
        return bitcast<f32>(sign);
    }
    if power >= 255 {
        return bitcast<f32>(sign | 0x7f800000u);
    }
    return bitcast<f32>(sign | ((u32(power) << 23u) + (bits >> 1u) + up - 0x800000u));
}
