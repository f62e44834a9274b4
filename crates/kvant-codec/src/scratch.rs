//! Scratch memory that outlives a call.

use kvant_simd::LANES;
use std::cell::Cell;
use std::{ptr, slice};

/// This thread's scratch floats, aligned to a cache line; returned when dropped.
///
/// A guard and not a closure: what runs inside a closure would be compiled without the tier's instructions. And a pointer, not the vector
/// itself: a vector moved out of its cell and back is read in wider pieces than it has just been written in, and a processor
/// answers such a read only when all stores before it have reached the cache. That was an eighth of attention over a page.
pub(crate) struct Scratch {
    floats: *mut f32,
    len: usize,
    /// The memory of a guard that was taken while another was out; empty otherwise.
    own: Vec<f32>,
}

/// What a thread keeps.
struct Kept {
    floats: Cell<Vec<f32>>,
    /// The first aligned float; null while a guard is out, and before there is memory.
    first: Cell<*mut f32>,
    /// Floats from there on.
    room: Cell<usize>,
}

thread_local!(static KEPT: Kept = const {
    Kept { floats: Cell::new(Vec::new()), first: Cell::new(ptr::null_mut()), room: Cell::new(0) }
});

impl Scratch {
    #[inline(always)]
    pub(crate) fn take(len: usize) -> Scratch {
        KEPT.with(|kept| {
            let floats = kept.first.get();
            if floats.is_null() || kept.room.get() < len {
                return Scratch::make(kept, len);
            }
            kept.first.set(ptr::null_mut());
            Scratch { floats, len, own: Vec::new() }
        })
    }

    /// New memory: the thread's from now on, unless a guard is out.
    #[cold]
    #[inline(never)]
    fn make(kept: &Kept, len: usize) -> Scratch {
        let mut own = vec![0.0_f32; len + LANES];
        let skip = own.as_ptr().align_offset(64).min(LANES);
        let floats = own[skip..].as_mut_ptr();
        if kept.first.get().is_null() && kept.room.get() > 0 {
            return Scratch { floats, len, own };
        }
        kept.first.set(ptr::null_mut());
        kept.room.set(len.max(1));
        kept.floats.set(own);
        Scratch { floats, len, own: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn floats(&mut self) -> &mut [f32] {
        // SAFETY: `len` floats from there on are the guard's until it is dropped: the thread's memory is given to one guard at a time and
        // replaced only while none is out.
        unsafe { slice::from_raw_parts_mut(self.floats, self.len) }
    }
}

impl Drop for Scratch {
    #[inline(always)]
    fn drop(&mut self) {
        if self.own.is_empty() {
            KEPT.with(|kept| kept.first.set(self.floats));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_hold_memory_of_their_own_and_give_it_back() {
        let mut outer = Scratch::take(40);
        outer.floats().fill(1.0);
        let address = outer.floats().as_ptr();
        for len in [8, 100_000] {
            let mut inner = Scratch::take(len);
            assert_eq!(inner.floats().len(), len);
            assert_eq!(inner.floats().as_ptr().align_offset(64), 0);
            inner.floats().fill(2.0);
        }
        assert!(outer.floats().iter().all(|x| *x == 1.0));
        drop(outer);
        assert_eq!(Scratch::take(40).floats().as_ptr(), address);
        assert_eq!(Scratch::take(100_000).floats().len(), 100_000);
        assert_eq!(Scratch::take(3).floats().len(), 3);
    }
}
