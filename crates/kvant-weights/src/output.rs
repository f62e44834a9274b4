//! A buffer that tasks write to side by side.

use std::marker::PhantomData;

/// Where products go: every task writes to columns of its own.
pub(crate) struct Output<'a> {
    first: *mut f32,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write to places of their own, which is what `at` asks of its caller.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    pub fn new(buffer: &'a mut [f32]) -> Self {
        Self { first: buffer.as_mut_ptr(), buffer: PhantomData }
    }

    /// The place of number `at`.
    ///
    /// # Safety
    /// It is inside the buffer, and what is written from there on no other task reads or writes.
    pub unsafe fn at(&self, at: usize) -> *mut f32 {
        // SAFETY: the caller's contract.
        unsafe { self.first.add(at) }
    }
}
