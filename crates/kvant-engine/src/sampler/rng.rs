//! The random numbers of a seeded run.
//!
//! xoshiro256++ (Blackman and Vigna), its state filled by SplitMix64 from the seed. Both are a few integer
//! operations, so a seed gives the same run on every platform and in every release; the tests pin the numbers.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut counter)) }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `bound`, each equally likely (Lemire's multiplication with rejection). `bound` is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let reject_under = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= reject_under {
                return (product >> 64) as u64;
            }
        }
    }
}

fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *counter;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Rng, split_mix};

    #[test]
    fn published_numbers() {
        let mut counter = 1_234_567;
        let split: [u64; 3] = std::array::from_fn(|_| split_mix(&mut counter));
        assert_eq!(split, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let numbers: [u64; 6] = std::array::from_fn(|_| rng.next());
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn bounded_numbers_are_even() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        // Five standard deviations of a fair die.
        assert!(counts.iter().all(|c| c.abs_diff(10_000) < 457), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }
}
