//! Trellis-coded pages: codes whose meaning depends on the codes before them.
//!
//! A scalar quantiser at b bits has 2^b levels. Here a number's level is that of a *window*: the last eight bits of its
//! channel's codes, of which b are its own. So there are 256 levels, of which 2^b can follow what came before, and the encoder
//! looks for the sequence of codes whose levels fit a whole page best ([`search`]). At three bits this is 1.9 dB closer to a
//! Gaussian than the best scalar levels, at the price of encoding: reading a window costs a shift and two lookups, because
//! level = low\[w mod 16\] + high\[w / 16\] with two small tables per width ([`crate::format::TRELLIS_TABLES`]).
//!
//! # Prediction
//!
//! Neighbouring tokens are alike, so what is coded is what a leaky prediction leaves: ŷₜ = ρ·ŷₜ₋₁ + s·gₜ·levelₜ, from zero in
//! every page; gₜ are wider steps of the first three tokens, which nothing predicts yet. It stays linear, and so the verbs stay
//! what they are:
//!
//! - scores: sₜ = ρ·sₜ₋₁ + q·eₜ, a scan over a page's 128 scores after the dot products; one for each ρ of a page ([`scores`]);
//! - sums: Σ wₜ·ŷₜ = Σ w'ₜ·eₜ with w'ₜ = wₜ + ρ·w'ₜ₊₁, a scan over the weights before them ([`sums`]).
//!
//! # Scales and widths
//!
//! *Keys* have per channel and page an 8-bit logarithmic scale that reaches the largest innovation, and a zero of eight bits in
//! half steps of it; per four channels a width (0 to 6 bits, or 8) and a leak. The page carries all of it: a spec fixes only the
//! sum of the widths, and the encoder gives bits to where the page varies, one after the other. Nothing has to be calibrated; in
//! a plan's basis (`klt3.2:trellis`), where errors of all channels count alike, that is also what attention wants.
//! *Values* are rotated, so all channels are alike: one leak for the page, a 4-bit logarithmic factor per token and one per
//! channel. At d = 64 keys take 0.141 bits a value besides their codes, values 0.096.
//!
//! # Layout
//!
//! The bits of a channel's codes are one stream, first token on top. Eight tokens (a *run*) are b bytes; byte j of many channels
//! and runs lies in one vector of sixteen lanes of four, and a window that ends anywhere is a funnel shift of two vectors.
//! Keys have the sixteen runs of a page in the lanes and four channels within: what meets four broadcast bytes of a query. Values
//! have sixteen channels in the lanes and within them the four quarters of a page: what meets four broadcast weights. So windows
//! follow each other in registers and nothing is transposed. Only where a run (a quarter) begins, its window comes from the lane
//! (the byte) below.

mod channels;
mod decode;
mod keys;
mod scale;
mod scan;
mod scores;
mod search;
mod stream;
mod sums;
mod values;
mod window;

pub(crate) use decode::decode;
pub use keys::expected_error;

use crate::error::CodecError;
use crate::format::{Side, TrellisFormat, TrellisTable};
use crate::kernel::{Accumulator, Pages, Query};
use kvant_simd::{Simd, Tier, Work, with_tier};
use search::{ChannelQuad, SearchRoom};

/// The entry points of a tier. All are `unsafe`: the CPU must have the tier, and pages and buffers must have the sizes that the
/// format states; the codec checks that before it calls.
pub(crate) struct TrellisKernels {
    search: unsafe fn(&TrellisTable, &ChannelQuad<'_>, &mut SearchRoom, &mut [u8]),
    pub(crate) scores: unsafe fn(&TrellisFormat, &Query, Pages, *mut f32),
    pub(crate) sums: unsafe fn(&TrellisFormat, *const f32, Pages, &mut Accumulator),
}

impl TrellisKernels {
    /// The table of a tier.
    ///
    /// # Panics
    /// When the CPU does not have the tier: running its code would be undefined.
    pub(crate) fn of(tier: Tier) -> &'static TrellisKernels {
        assert!(tier.is_available(), "this CPU cannot run {tier} kernels");
        with_tier!(tier, S => const { &TrellisKernels::new::<S>() })
    }

    const fn new<S: Simd>() -> TrellisKernels {
        TrellisKernels { search: run_search::<S>, scores: run_scores::<S>, sums: run_sums::<S> }
    }
}

/// Encodes a page of numbers in the codec's basis, (tokens, stride), with zeros after the last channel.
///
/// # Errors
/// When numbers are too large for the format's scales.
pub(crate) fn encode(
    format: &TrellisFormat,
    kernels: &TrellisKernels,
    y: &[f32],
    stride: usize,
    page: &mut [u8],
) -> Result<(), CodecError> {
    match format.side {
        Side::Key => keys::encode(format, kernels, y, stride, page),
        Side::Value => values::encode(format, kernels, y, stride, page),
    }
    .ok_or(CodecError::OutOfRange { format: "8-bit logarithmic" })
}

struct Search<'a>(&'a TrellisTable, &'a ChannelQuad<'a>, &'a mut SearchRoom, &'a mut [u8]);

impl<S: Simd> Work<S> for Search<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `TrellisKernels`.
        unsafe { search::search::<S>(self.0, self.1, self.2, self.3) }
    }
}

/// # Safety
/// The contract of [`TrellisKernels`].
unsafe fn run_search<S: Simd>(
    table: &TrellisTable,
    numbers: &ChannelQuad<'_>,
    room: &mut SearchRoom,
    codes: &mut [u8],
) {
    // SAFETY: the contract of `TrellisKernels`.
    unsafe { S::call(Search(table, numbers, room, codes)) }
}

struct ScoresCall<'a>(&'a TrellisFormat, &'a Query, Pages, *mut f32);

impl<S: Simd> Work<S> for ScoresCall<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `TrellisKernels`.
        unsafe { scores::scores::<S>(self.0, self.1, self.2, self.3) }
    }
}

/// # Safety
/// The contract of [`TrellisKernels`].
unsafe fn run_scores<S: Simd>(format: &TrellisFormat, query: &Query, pages: Pages, out: *mut f32) {
    // SAFETY: the contract of `TrellisKernels`.
    unsafe { S::call(ScoresCall(format, query, pages, out)) }
}

struct SumsCall<'a>(&'a TrellisFormat, *const f32, Pages, &'a mut Accumulator);

impl<S: Simd> Work<S> for SumsCall<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `TrellisKernels`.
        unsafe { sums::sums::<S>(self.0, self.1, self.2, self.3) }
    }
}

/// # Safety
/// The contract of [`TrellisKernels`].
unsafe fn run_sums<S: Simd>(
    format: &TrellisFormat,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
) {
    // SAFETY: the contract of `TrellisKernels`.
    unsafe { S::call(SumsCall(format, weights, pages, sums)) }
}
