//! Logarithms of scales in whole steps, by comparison with a table: the same on every machine.

/// 2^(k/16) for k from 1 on.
const SIXTEENTHS: [f32; 15] = [
    1.044_273_8,
    1.090_507_7,
    1.138_788_6,
    1.189_207_1,
    1.241_857_8,
    1.296_839_6,
    1.354_255_6,
    std::f32::consts::SQRT_2,
    1.476_826_1,
    1.542_210_8,
    1.610_490_3,
    1.681_792_9,
    1.756_252_2,
    1.834_008_1,
    1.915_206_6,
];

/// ⌊16·log₂ x⌋ of a positive normal number; far below all that is stored for any other.
fn sixteenths(x: f32) -> i32 {
    if x < f32::MIN_POSITIVE {
        return -3000;
    }
    let bits = x.to_bits();
    let fraction = f32::from_bits((bits & 0x007F_FFFF) | 0x3F80_0000);
    let above = SIXTEENTHS.iter().filter(|power| fraction >= **power).count();
    16 * ((bits >> 23) as i32 - 127) + above as i32
}

/// The exponent of the nearest stored scale: 2^((e − 128) / 8). `None` above the largest.
pub(super) fn exponent(scale: f32) -> Option<u8> {
    let e = 128 + ((sixteenths(scale) + 1) >> 1);
    if e > 255 { None } else { Some(e.max(0) as u8) }
}

/// The exponent of the nearest factor 2^((n − 8) / 4), as far as four bits go.
pub(super) fn quarter(factor: f32) -> u8 {
    (8 + ((sixteenths(factor) + 2) >> 2)).clamp(0, 15) as u8
}

/// The exponent of the nearest factor 2^((n − 8) / 2), as far as four bits go.
pub(super) fn half(factor: f32) -> u8 {
    (8 + ((sixteenths(factor) + 4) >> 3)).clamp(0, 15) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{power_of_eighths, scale};

    #[test]
    fn exponents_are_those_of_the_nearest_powers() {
        for n in 0..4000 {
            let x = 2f64.powf(f64::from(n) / 200.0 - 10.0);
            let log = x.log2();
            let near = |got: i32, steps: f64, low: i32, high: i32| {
                let exact = (log * steps).clamp(f64::from(low), f64::from(high));
                assert!((f64::from(got) - exact).abs() < 0.5 + 1e-4, "2^{log}: {got}, {exact} steps");
            };
            near(i32::from(exponent(x as f32).unwrap()) - 128, 8.0, -128, 127);
            near(i32::from(quarter(x as f32)) - 8, 4.0, -8, 7);
            near(i32::from(half(x as f32)) - 8, 2.0, -8, 7);
        }
        assert_eq!((exponent(0.0), exponent(1e-30), exponent(1e6)), (Some(0), Some(0), None));
        for e in 1..=255u8 {
            assert_eq!(exponent(scale(e)), Some(e));
            let exact = 2f64.powf((f64::from(e) - 128.0) / 8.0);
            assert!((f64::from(scale(e)) / exact - 1.0).abs() < 1e-7);
        }
        assert_eq!([-16, -4, 0, 12].map(power_of_eighths), [0.25, 0.707_106_77, 1.0, 2.828_427]);
    }
}
