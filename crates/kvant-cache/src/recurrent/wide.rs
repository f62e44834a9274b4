//! States and rows are megabytes: they are copied and looked through by all threads.

use kvant_threads::{for_each, for_each_chunk};
use std::sync::atomic::{AtomicBool, Ordering};

/// Numbers that a thread takes at a time: some microseconds of work.
const CHUNK_LEN: usize = 1 << 15;

/// Copies numbers; both slices are of one length.
pub fn copy(to: &mut [f32], from: &[f32]) {
    assert_eq!(to.len(), from.len(), "as many numbers as there is room for");
    for_each_chunk(to, CHUNK_LEN, |i, to| to.copy_from_slice(&from[i * CHUNK_LEN..][..to.len()]));
}

/// Where the first number is that is not finite.
pub fn first_odd(numbers: &[f32]) -> Option<usize> {
    let found = AtomicBool::new(false);
    for_each(numbers.len().div_ceil(CHUNK_LEN), |i| {
        let stretch = &numbers[i * CHUNK_LEN..numbers.len().min((i + 1) * CHUNK_LEN)];
        // Not `all`, which stops at the first and so goes through them one by one.
        if !stretch.iter().fold(true, |fine, x| fine & x.is_finite()) {
            found.store(true, Ordering::Relaxed);
        }
    });
    if found.into_inner() { numbers.iter().position(|x| !x.is_finite()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_odd_number_is_found_in_every_stretch() {
        let mut numbers = vec![1.0; 2 * CHUNK_LEN + 3];
        assert_eq!(first_odd(&numbers), None);
        for at in [2 * CHUNK_LEN + 2, CHUNK_LEN, CHUNK_LEN - 1, 0] {
            numbers[at] = if at % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
            assert_eq!(first_odd(&numbers), Some(at));
        }
        assert_eq!(first_odd(&[]), None);
    }

    #[test]
    fn every_stretch_is_copied() {
        let from: Vec<f32> = (0..2 * CHUNK_LEN + 3).map(|i| i as f32).collect();
        let mut to = vec![0.0; from.len()];
        copy(&mut to, &from);
        assert_eq!(to, from);
    }
}
