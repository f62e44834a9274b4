//! The kernels, each written once over [`Simd`] and compiled once per tier.
//!
//! [`Kernels`] is the table of a tier's entry points. A codec fetches its table when it is built; after that a call
//! is one indirect jump, and everything below it was compiled with the tier's instructions.

mod accumulate;
mod basis;
mod block;
mod code;
mod decode;
pub(crate) mod decode_attention;
mod encode;
mod exact;
mod fit;
mod operand;
mod round;
mod scale;
mod scores;

pub use operand::{Accumulator, Query};
pub(crate) use scores::mixed_width::MixedWidth;

use crate::format::{ExactFormat, PackedFormat, ScaleFormat};
use crate::quant::Levels;
use crate::transform::Basis;
use kvant_simd::{Simd, Tier, Work, with_tier};
use std::ops::Range;

/// The page to read, and the one that will be read next.
///
/// One core alone cannot keep enough reads in flight to fill the memory's bandwidth between two bursts of arithmetic, so
/// kernels ask for the lines of the next page while they work on this one.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    pub page: *const u8,
    /// Never read, only prefetched.
    pub next: *const u8,
}

impl Pages {
    /// `next` counts only if it is a page too.
    pub(crate) fn new(page: &[u8], next: &[u8]) -> Pages {
        let next = if next.len() == page.len() { next } else { page };
        Pages { page: page.as_ptr(), next: next.as_ptr() }
    }
}

/// Calls a kernel with as many heads at once as there are left and the tier holds: `$kernel::<S, H>($args)`, or
/// `$way.$kernel::<H>($args)`.
macro_rules! by_heads {
    ($simd:ident, $left:expr, $kernel:ident::<$($generic:ident),*>($($arg:expr),*)) => {
        if const { <$simd>::HEADS >= 4 } {
            match $left {
                1 => $kernel::<$($generic,)* 1>($($arg),*),
                2 => $kernel::<$($generic,)* 2>($($arg),*),
                3 => $kernel::<$($generic,)* 3>($($arg),*),
                _ => $kernel::<$($generic,)* 4>($($arg),*),
            }
        } else {
            $kernel::<$($generic,)* 1>($($arg),*)
        }
    };
    ($simd:ident, $left:expr, $way:ident.$kernel:ident($($arg:expr),*)) => {
        if const { <$simd>::HEADS >= 4 } {
            match $left {
                1 => $way.$kernel::<1>($($arg),*),
                2 => $way.$kernel::<2>($($arg),*),
                3 => $way.$kernel::<3>($($arg),*),
                _ => $way.$kernel::<4>($($arg),*),
            }
        } else {
            $way.$kernel::<1>($($arg),*)
        }
    };
}
pub(crate) use by_heads;

/// Calls the work for the width and meaning of a span's codes: `$work::<S, H, BITS, TABLE> { … }`.
macro_rules! by_width {
    ($simd:ident, $span:expr, $work:ident::<$($generic:ident),*> { $($field:ident $(: $value:expr)?),* }) => {
        by_width!(@ $simd, $span, $work, ($($generic),*), { $($field $(: $value)?),* })
    };
    (@ $simd:ident, $span:expr, $work:ident, $generics:tt, $fields:tt) => {
        match ($span.meaning.is_table(), $span.bits) {
            (true, 1) => by_width!(@@ $simd, $work, $generics, 1, true, $fields),
            (true, 2) => by_width!(@@ $simd, $work, $generics, 2, true, $fields),
            (true, 3) => by_width!(@@ $simd, $work, $generics, 3, true, $fields),
            (true, 4) => by_width!(@@ $simd, $work, $generics, 4, true, $fields),
            (true, _) => by_width!(@@ $simd, $work, $generics, 5, true, $fields),
            (false, 1) => by_width!(@@ $simd, $work, $generics, 1, false, $fields),
            (false, 2) => by_width!(@@ $simd, $work, $generics, 2, false, $fields),
            (false, 3) => by_width!(@@ $simd, $work, $generics, 3, false, $fields),
            (false, 4) => by_width!(@@ $simd, $work, $generics, 4, false, $fields),
            (false, 5) => by_width!(@@ $simd, $work, $generics, 5, false, $fields),
            (false, 6) => by_width!(@@ $simd, $work, $generics, 6, false, $fields),
            (false, 7) => by_width!(@@ $simd, $work, $generics, 7, false, $fields),
            (false, _) => by_width!(@@ $simd, $work, $generics, 8, false, $fields),
        }
    };
    (@@ $simd:ident, $work:ident, ($($generic:ident),*), $bits:literal, $table:literal, { $($field:ident $(: $value:expr)?),* }) => {
        $simd::call($work::<$($generic,)* $bits, $table> { $($field $(: $value)?,)* simd: std::marker::PhantomData })
    };
}
pub(crate) use by_width;

/// Declares the table of entry points and fills it for any tier: each entry moves its arguments into a [`Work`], so
/// that the kernel is compiled with the tier's instructions.
macro_rules! entries {
    ($($name:ident<$life:lifetime>($($arg:ident: $type:ty),*) -> $result:ty = $module:ident::$kernel:ident;)*) => {
        /// The entry points of a tier. All are `unsafe`: the CPU must have the tier, and pages and buffers must have
        /// the sizes that the format states; the codecs check that before they call.
        pub(crate) struct Kernels {
            $(pub $name: for<$life> unsafe fn($($type),*) -> $result,)*
        }

        impl Kernels {
            const fn new<S: Simd>() -> Kernels {
                $(
                    /// # Safety
                    /// The contract of [`Kernels`].
                    unsafe fn $name<$life, S: Simd>($($arg: $type),*) -> $result {
                        struct Arguments<$life> {
                            $($arg: $type,)*
                        }
                        impl<$life, S: Simd> Work<S> for Arguments<$life> {
                            type Output = $result;
                            #[inline(always)]
                            unsafe fn run(self) -> $result {
                                // SAFETY: the contract of `Kernels`.
                                unsafe { $module::$kernel::<S>($(self.$arg),*) }
                            }
                        }
                        // SAFETY: the contract of `Kernels`.
                        unsafe { S::call(Arguments { $($arg),* }) }
                    }
                )*
                Kernels { $($name: $name::<S>),* }
            }
        }
    };
}

entries! {
    encode<'a>(format: &'a PackedFormat, levels: &'a [Levels], basis: &'a Basis, rows: *const f32, page: *mut u8) -> f32
        = encode::encode;
    decode<'a>(format: &'a PackedFormat, basis: &'a Basis, page: &'a [u8], rows: *mut f32) -> () = decode::decode;
    prepare<'a>(format: &'a PackedFormat, basis: &'a Basis, owner: u64, queries: &'a [f32], query: &'a mut Query) -> ()
        = basis::prepare;
    scores<'a>(format: &'a PackedFormat, joined: Option<&'a MixedWidth>, query: &'a Query, pages: Pages, out: *mut f32) -> ()
        = scores::scores;
    row_major_scores<'a>(format: &'a PackedFormat, query: &'a Query, pages: Pages, out: *mut f32) -> ()
        = scores::row_major_scores;
    accumulate<'a>(format: &'a PackedFormat, weights: *const f32, pages: Pages, sums: &'a mut Accumulator) -> ()
        = accumulate::accumulate;
    decode_scores<'a>(format: &'a PackedFormat, query: &'a Query, pages: Pages, out: *mut f32) -> () = decode_attention::scores;
    mixed_scores<'a>(format: &'a PackedFormat, widths: &'a MixedWidth, query: &'a Query, pages: Pages, out: *mut f32) -> ()
        = decode_attention::mixed_scores;
    few_sums<'a>(format: &'a PackedFormat, weights: *const f32, pages: Pages, sums: &'a mut Accumulator) -> ()
        = decode_attention::accumulate;
    finish<'a>(basis: &'a Basis, sums: &'a Accumulator, out: *mut f32) -> () = basis::finish;
    extent<'a>(rows: &'a [f32]) -> f32 = exact::extent;
    exact_encode<'a>(format: &'a ExactFormat, rows: *const f32, page: *mut u8) -> () = exact::encode;
    exact_write<'a>(format: &'a ExactFormat, rows: *const f32, stride: usize, tokens: Range<usize>, page: *mut u8) -> ()
        = exact::write;
    exact_decode<'a>(format: &'a ExactFormat, page: *const u8, rows: *mut f32) -> () = exact::decode;
    exact_scores<'a>(format: &'a ExactFormat, query: &'a Query, pages: Pages, out: *mut f32) -> () = exact::scores;
    exact_turned_scores<'a>(format: &'a ExactFormat, query: &'a Query, pages: Pages, out: *mut f32) -> ()
        = exact::row_major_scores;
    exact_accumulate<'a>(format: &'a ExactFormat, weights: *const f32, pages: Pages, sums: &'a mut Accumulator) -> ()
        = exact::accumulate;
}

impl Kernels {
    /// The table of a tier.
    ///
    /// # Panics
    /// When the CPU does not have the tier: running its code would be undefined.
    pub(crate) fn of(tier: Tier) -> &'static Kernels {
        assert!(tier.is_available(), "this CPU cannot run {tier} kernels");
        with_tier!(tier, S => const { &Kernels::new::<S>() })
    }
}

/// Asks for the lines of so many bytes: of a unit of wide codes, say, which has two.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn prefetch_lines<S: Simd>(bytes: usize, coming: *const u8) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: the tier is there; what is asked for need not be.
        unsafe { S::prefetch(coming.wrapping_add(line)) };
    }
}

/// Reads 16 scales of a page, whatever their format.
///
/// # Safety
/// `p` is valid for 16 scales of that format; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn load_scales<S: Simd>(format: ScaleFormat, p: *const u8) -> S::F {
    // SAFETY: the caller's contract; loads need no alignment.
    unsafe {
        match format {
            ScaleFormat::F16 => S::load_f16(p.cast()),
            ScaleFormat::F32 => S::load(p.cast()),
        }
    }
}

/// 16 entries of an array of scales, if the page has it, `at` bytes from its start.
///
/// # Safety
/// As [`load_scales`], for the array.
#[inline(always)]
pub(crate) unsafe fn load_array<S: Simd>(
    format: ScaleFormat,
    page: *const u8,
    array: &Option<Range<usize>>,
    at: usize,
) -> Option<S::F> {
    let range = array.as_ref()?;
    // SAFETY: the caller's contract.
    Some(unsafe { load_scales::<S>(format, page.add(range.start + at)) })
}
