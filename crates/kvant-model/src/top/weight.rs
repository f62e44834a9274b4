//! Probabilities as whole numbers.
//!
//! The weight of a token is `round(2⁴⁰ · e^x)` with `x ≤ 0` its distance below the best. Sums of whole numbers are
//! the same in any order and on any machine, which sums of floating-point numbers are not; and the exponential
//! is made of additions and multiplications alone, because the one of the system's library differs between systems.
//! Tokens less likely than 2⁻⁴¹ of the best have weight 0 and are never drawn.

/// The weight of the best token.
pub const ONE: u64 = 1 << 40;

/// 1/k! for the series of e^r to r¹², whose remainder is below 2⁻⁵⁰ for |r| ≤ ln 2 / 2.
const TAYLOR: [f64; 13] = {
    let mut coefficients = [1.0; 13];
    let mut k = 1;
    while k < 13 {
        coefficients[k] = coefficients[k - 1] / k as f64;
        k += 1;
    }
    coefficients
};

/// `round(2⁴⁰ · e^x)` for `x ≤ 0`, to about 40 bits.
pub fn weight(x: f64) -> u64 {
    // Below this the result rounds to nothing: −41 · ln 2.
    if x < -28.5 {
        return 0;
    }
    // e^x = 2ⁿ · e^r with r in ±ln 2 / 2; the cast drops towards zero, hence −½ to round.
    let n = (x * std::f64::consts::LOG2_E - 0.5) as i64;
    let r = x - n as f64 * std::f64::consts::LN_2;
    let sum = TAYLOR.iter().rev().fold(0.0, |sum, coefficient| sum * r + coefficient);
    let power = f64::from_bits(((1023 + 40 + n) as u64) << 52);
    (sum * power + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::{ONE, weight};
    use proptest::prelude::*;

    #[test]
    fn ends_of_the_range() {
        assert_eq!(weight(0.0), ONE);
        assert_eq!(weight(-0.0), ONE);
        assert_eq!(weight(-28.43), 0);
        assert_eq!(weight(-28.41), 1);
        assert_eq!(weight(f64::NEG_INFINITY), 0);
        assert_eq!(weight(-1e300), 0);
    }

    #[test]
    fn pinned_numbers() {
        assert_eq!(weight(-1.0), 404_487_723_188);
        assert_eq!(weight(-10.0), 49_917_751);
        assert_eq!(weight(-0.125), 970_315_605_868);
    }

    proptest! {
        #[test]
        fn agrees_with_the_library(x in -28.4f64..0.0) {
            let exact = x.exp() * ONE as f64;
            prop_assert!((weight(x) as f64 - exact).abs() <= 0.51 + exact * 1e-14, "{} {}", weight(x), exact);
        }
    }
}
