//! Pages of plain floats: written, read back, and attended to.

mod attend;
mod store;

pub(super) use attend::{accumulate, row_major_scores, scores};
pub(super) use store::{decode, encode, extent, write};

use half::{bf16, f16};
use kvant_simd::{LANES, Simd};

/// A number format that pages can store.
trait Stored {
    const BYTES: usize;
    /// Sixteen numbers from `p`, which needs no alignment.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
    /// Sixteen numbers to `p`, which needs no alignment.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F);
}

impl Stored for f32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the trait's contract.
        unsafe { S::store(p.cast(), x) }
    }
}

impl Stored for f16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the trait's contract.
        unsafe { S::store_f16(p.cast(), x) }
    }
}

impl Stored for bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        let mut floats = [0.0f32; LANES];
        // SAFETY: the trait's contract.
        unsafe {
            S::store(floats.as_mut_ptr(), x);
            p.cast::<[u16; LANES]>().write_unaligned(floats.map(|x| bf16::from_f32(x).to_bits()));
        }
    }
}

/// Picks the format once per call, so that no inner loop asks.
macro_rules! by_element {
    ($format:ident, $function:ident, ($($arg:expr),*)) => {
        match $format.element {
            $crate::format::Element::F32 => $function::<S, f32>($($arg),*),
            $crate::format::Element::F16 => $function::<S, half::f16>($($arg),*),
            $crate::format::Element::Bf16 => $function::<S, half::bf16>($($arg),*),
        }
    };
}
use by_element;

/// Up to 15 numbers, zeros after them.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn load_part<S: Simd, E: Stored>(p: *const u8, count: usize) -> S::F {
    let mut part = [0u8; 4 * LANES];
    // SAFETY: `count` < 16 numbers from `p` are within the page.
    unsafe {
        std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), count * E::BYTES);
        E::load::<S>(part.as_ptr())
    }
}

/// The first `count` lanes to `p`.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn store_part<S: Simd, E: Stored>(p: *mut u8, x: S::F, count: usize) {
    let mut part = [0u8; 4 * LANES];
    // SAFETY: `count` < 16 numbers from `p` are within the page.
    unsafe {
        E::store::<S>(part.as_mut_ptr(), x);
        std::ptr::copy_nonoverlapping(part.as_ptr(), p, count * E::BYTES);
    }
}
