//! Sines and cosines of the tokens of a pass.

use kvant_model::description::Rope;
use kvant_threads::for_each_chunk;

/// Tokens whose angles a thread takes at a time: a chunk of a prompt has 65,000 of them.
const SHARE: usize = 16;

/// `(sin, cos)` of every token and pair, in f64. Of each sequence: the positions of its tokens, and the most tokens it may hold.
pub fn rotations<P: Iterator<Item = usize>>(
    rope: &Rope,
    sequences: impl Iterator<Item = (P, usize)>,
) -> Vec<(f64, f64)> {
    let (mut sets, mut tokens) = (Vec::new(), Vec::new());
    for (positions, capacity) in sequences {
        tokens.extend(positions.map(|position| (position, sets.len())));
        sets.push(rope.frequencies(capacity));
    }
    let pairs = sets.first().map_or(0, |frequencies| frequencies.len());
    let mut turned = vec![(0.0, 0.0); tokens.len() * pairs];
    if turned.is_empty() {
        return turned;
    }
    for_each_chunk(&mut turned, SHARE * pairs, |share, out| {
        for (row, (position, set)) in out.chunks_exact_mut(pairs).zip(&tokens[share * SHARE..]) {
            for (out, frequency) in row.iter_mut().zip(&sets[*set][..]) {
                *out = (*position as f64 * f64::from(*frequency)).sin_cos();
            }
        }
    });
    turned
}
