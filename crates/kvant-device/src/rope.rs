//! Sines and cosines of the tokens of a pass.

use kvant_model::description::Rope;

/// `(sin, cos)` of every token and pair, in f64. Of each sequence: the positions of its tokens, and the most tokens it may hold.
pub fn rotations<P: Iterator<Item = usize>>(
    rope: &Rope,
    sequences: impl Iterator<Item = (P, usize)>,
) -> Vec<(f64, f64)> {
    let mut turned = Vec::new();
    for (positions, capacity) in sequences {
        let frequencies = rope.frequencies(capacity);
        for position in positions {
            let angle = |frequency: &f32| position as f64 * f64::from(*frequency);
            turned.extend(frequencies.iter().map(|frequency| angle(frequency).sin_cos()));
        }
    }
    turned
}
