//! The formula, code by code, and the kernel of every tier held to its bits.

use crate::format::{
    Arrays, BasisFormat, CodeMeaning, PackedFormat, Rotation, ScaleFormat, Side, Widths, unit_bytes,
};
use crate::pack;
use crate::transform::{Basis, split_mix};
use kvant_simd::{Simd, Tier, Work, with_tier};
use proptest::prelude::*;

/// What a page decodes to, (tokens, dim), in the codec's basis.
fn coordinates(format: &PackedFormat, page: &[u8]) -> Vec<f32> {
    let mut rows = vec![0.0; format.tokens * format.dim];
    let read = |range: &Option<std::ops::Range<usize>>, index: usize| {
        range.as_ref().map(|range| format.scales.read(&page[range.clone()], index))
    };
    for span in &format.spans {
        let (row, unit, width) = (format.row_bytes(span), unit_bytes(span.bits), format.side.row());
        for c in span.first..(span.first + span.len).min(format.dim) {
            let channel_scale = read(&format.channel_scale, c).unwrap_or(1.0);
            let channel_zero = read(&format.channel_zero, c).unwrap_or(0.0);
            for token in 0..format.tokens {
                let (u, half, index) = format.side.place(token, c % width);
                let at = span.codes + (c - span.first) / width * row + u * unit;
                let code = pack::code(span.bits, &page[at..at + unit], half, index);
                let level = span.meaning.level(span.bits, code);
                let at = span.group * format.tokens + token;
                let token_scale = read(&format.token_scale, at).unwrap_or(1.0);
                let token_zero = read(&format.token_zero, at).unwrap_or(0.0);
                rows[token * format.dim + c] =
                    (level * token_scale + token_zero) * channel_scale + channel_zero;
            }
        }
    }
    rows
}

/// Bits, with one NaN for all: which of two a sum hands on is the processor's affair.
fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// The kernel alone: the table of all kernels would have every one of them compiled into the tests.
struct Decode<'a> {
    format: &'a PackedFormat,
    basis: &'a Basis,
    page: &'a [u8],
    rows: &'a mut [f32],
}

impl<S: Simd> Work<S> for Decode<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `decode`, which `check` keeps.
        unsafe { super::decode::<S>(self.format, self.basis, self.page, self.rows.as_mut_ptr()) }
    }
}

/// Holds every tier to the formula, for any bytes.
fn check(format: &PackedFormat, basis: &Basis, seed: u64) -> Result<(), String> {
    let page: Vec<u8> = split_mix(seed).map(|word| word as u8).take(format.bytes).collect();
    let mut expected = coordinates(format, &page);
    basis.undo(&mut expected, Tier::Scalar).expect("whole vectors");
    for tier in Tier::available() {
        let mut got = vec![f32::NAN; expected.len()];
        let work = Decode { format, basis, page: &page, rows: &mut got };
        // SAFETY: the page and the rows have the format's sizes, and the tier is available.
        unsafe { with_tier!(tier, S => S::call(work)) };
        if let Some(n) = bits(&got).iter().zip(bits(&expected)).position(|(got, want)| *got != want) {
            let (token, c) = (n / format.dim, n % format.dim);
            return Err(format!("{tier}, token {token}, channel {c}: {:e} for {:e}", got[n], expected[n]));
        }
    }
    Ok(())
}

/// A meaning that codes of so many bits can have.
fn meaning(kind: usize, bits: u8) -> CodeMeaning {
    match kind {
        0 => CodeMeaning::Shifted,
        1 => CodeMeaning::WithZero,
        _ if bits > 5 => CodeMeaning::Shifted,
        _ => CodeMeaning::Table(std::array::from_fn(|code| {
            if code < 1 << bits { (code as i32 * 83 % 256 - 128) as i8 } else { 0 }
        })),
    }
}

proptest! {
    #[test]
    fn every_tier_decodes_any_bytes_as_the_formula_says(
        side in prop::sample::select(vec![Side::Key, Side::Value]),
        dim in prop::sample::select(vec![1usize, 7, 8, 16, 24, 33, 48, 64, 72, 80, 96, 100, 128, 192]),
        tokens in prop::sample::select(vec![32usize, 64, 128]),
        group in prop::sample::select(vec![16usize, 32, 64, 1024]),
        widths in prop::collection::vec(0u8..=8, 24),
        kind in 0usize..3,
        scales in prop::sample::select(vec![ScaleFormat::F16, ScaleFormat::F32]),
        arrays in any::<[bool; 4]>(),
        rotation in prop::sample::select(vec![Rotation::Identity, Rotation::Srht, Rotation::Hadamard64]),
        has_mean in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut widths = widths[..dim.div_ceil(side.row())].to_vec();
        // Widths do not increase, and the first channels have codes.
        widths.sort_unstable_by(|a, b| b.cmp(a));
        widths[0] = widths[0].max(1);
        let widths = Widths { rows: &widths, meaning: &|bits| meaning(kind, bits) };
        let [channel_scale, channel_zero, token_scale, token_zero] = arrays;
        let arrays = Arrays { channel_scale, channel_zero, token_scale, token_zero };
        let basis = BasisFormat::rotation(rotation, dim, seed);
        let format = PackedFormat::new(side, tokens, group, widths, scales, arrays, basis);
        let mut basis = Basis::new(rotation, dim, seed);
        if has_mean {
            let mean: Vec<f32> = (0..dim).map(|c| (c as f32 * 0.7).sin()).collect();
            basis = basis.with_mean(&mean).expect("finite numbers");
        }
        check(&format, &basis, seed).map_err(TestCaseError::fail)?;
    }
}

/// Every width alone, at the dimension of most heads.
#[test]
fn every_width_and_meaning_is_decoded_alike_on_every_tier() {
    for side in [Side::Key, Side::Value] {
        for bits in 1..=8 {
            for kind in 0..3 {
                let widths =
                    Widths { rows: &vec![bits; 64 / side.row()], meaning: &|bits| meaning(kind, bits) };
                let arrays =
                    Arrays { channel_scale: true, channel_zero: true, token_scale: true, token_zero: true };
                let basis = BasisFormat::rotation(Rotation::Srft, 64, 1);
                let format = PackedFormat::new(side, 64, 32, widths, ScaleFormat::F16, arrays, basis);
                let basis = Basis::new(Rotation::Srft, 64, 1);
                check(&format, &basis, u64::from(bits))
                    .unwrap_or_else(|e| panic!("{side:?}, {bits} bits: {e}"));
            }
        }
    }
}
