//! Scratch memory that outlives a call.

use kvant_simd::LANES;
use std::cell::Cell;

/// This thread's scratch floats, aligned to a cache line; returned when dropped.
///
/// A guard and not a closure: what runs inside a closure would be compiled without the tier's instructions.
pub(crate) struct Scratch {
    floats: Vec<f32>,
    skip: usize,
    len: usize,
}

thread_local!(static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });

impl Scratch {
    pub(crate) fn take(len: usize) -> Scratch {
        let mut floats = SCRATCH.take();
        if floats.len() < len + LANES {
            floats.resize(len + LANES, 0.0);
        }
        let skip = floats.as_ptr().align_offset(64).min(LANES);
        Scratch { floats, skip, len }
    }

    pub(crate) fn floats(&mut self) -> &mut [f32] {
        &mut self.floats[self.skip..self.skip + self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.floats));
    }
}
