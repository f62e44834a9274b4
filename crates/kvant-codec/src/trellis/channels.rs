//! What a page of keys says of its channels before the codes: widths and leaks, scales and zeros, as its readers need them.
//!
//! A page of 64 channels is read in less than two microseconds, so this is not free: no quad waits for what the one before it
//! said, except for the place of its codes.

use crate::format::{MAX_DIM, QUAD, TRELLIS_TABLES, TRELLIS_TOKENS, TrellisFormat, scale};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Quads whose levels are held at once.
pub(super) const HELD: usize = 64;

/// Quads of the widest key.
const QUADS: usize = MAX_DIM / QUAD;

/// Bytes of a quad's codes for each bit of its width.
const STRIDE: usize = TRELLIS_TOKENS * QUAD / 8;

/// The channels of a page. Nothing of it is cleared: every part is written before it is read.
#[repr(C, align(64))]
pub(super) struct Channels {
    /// Scale times the unit of the width; zero where there are no codes, and after the last channel.
    pub scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    /// What stands for zero.
    pub zeros: [MaybeUninit<f32>; MAX_DIM + LANES],
    /// Where the codes of quads begin.
    pub codes: [MaybeUninit<usize>; QUADS],
}

/// Widths and leaks of a page's quads: a byte for each, as pages have them.
pub(super) struct Quads {
    /// Nothing after the last.
    bytes: [u8; QUADS],
    count: usize,
}

impl Quads {
    /// Those from number `first` on.
    #[inline(always)]
    pub(super) fn held(&self, first: usize) -> Held {
        Held::of(&self.bytes[first..self.count.next_multiple_of(8)])
    }
}

/// Up to 64 quads, by width and by leak: a bit for each. Jumps that depend on a page's widths are what costs most in reading
/// it, so quads are taken width by width and not one after the other.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    /// By width. Quads without codes are in none.
    pub by_bits: [u64; 9],
    /// Those with codes, by leak in sixteenths.
    by_leak: [u64; 16],
}

impl Held {
    /// The first 64 of these bytes.
    #[inline(always)]
    fn of(quads: &[u8]) -> Held {
        let planes = planes(quads);
        let mut held = Held::default();
        let mut coded = 0;
        for bits in [1, 2, 3, 4, 5, 6, 8] {
            held.by_bits[bits] = equal([planes[0], planes[1], planes[2], planes[3]], bits);
            coded |= held.by_bits[bits];
        }
        for (leak, alike) in held.by_leak.iter_mut().enumerate() {
            *alike = coded & equal([planes[4], planes[5], planes[6], planes[7]], leak);
        }
        held
    }

    /// Leaks in 256ths from the least on, each with the quads that have it.
    pub(super) fn leaks(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = self.by_leak.iter().enumerate();
        all.filter(|(_, alike)| **alike > 0).map(|(leak, alike)| (16 * leak as u8, *alike))
    }
}

/// Where four planes spell a number.
#[inline(always)]
fn equal(planes: [u64; 4], value: usize) -> u64 {
    let agrees = |j: usize| if value >> j & 1 == 1 { planes[j] } else { !planes[j] };
    agrees(0) & agrees(1) & (agrees(2) & agrees(3))
}

/// Bit j of the first 64 bytes, in a word for each j.
#[inline(always)]
fn planes(bytes: &[u8]) -> [u64; 8] {
    let mut planes = [0; 8];
    for (n, eight) in bytes.as_chunks::<8>().0.iter().take(HELD / 8).enumerate() {
        // Eight times eight bits, transposed: in pairs, then pairs of pairs, then halves.
        let mut x = u64::from_le_bytes(*eight);
        for (shift, upper) in [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0xF0F0_F0F0)] {
            let differ = (x ^ x >> shift) & upper;
            x ^= differ ^ differ << shift;
        }
        for (plane, byte) in planes.iter_mut().zip(x.to_le_bytes()) {
            *plane |= u64::from(byte) << (8 * n);
        }
    }
    planes
}

/// Width and unit by the low half of a quad's byte; nothing where there is no such width.
static WIDTHS: [(usize, f32); 16] = {
    let (mut widths, mut n) = ([(0, 0.0); 16], 0);
    while n < TRELLIS_TABLES.len() {
        let table = &TRELLIS_TABLES[n];
        widths[table.bits as usize] = (table.bits as usize, table.unit);
        n += 1;
    }
    widths
};

impl Channels {
    /// Memory for them.
    #[inline(always)]
    pub(super) fn room() -> Channels {
        Channels {
            scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
            zeros: [MaybeUninit::uninit(); MAX_DIM + LANES],
            codes: [MaybeUninit::uninit(); QUADS],
        }
    }

    /// Reads what a page says, and returns widths and leaks.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn read<S: Simd>(&mut self, format: &TrellisFormat, page: &[u8]) -> Quads {
        let mut quads = Quads { bytes: [0; QUADS], count: format.scales() };
        quads.bytes[..quads.count].copy_from_slice(&page[..quads.count]);
        if self.place(format, &quads) > page.len() {
            // Not by our encoder: a quad whose codes would lie beyond the page has none.
            for (byte, quad) in quads.bytes.iter_mut().zip(format.quads(page)) {
                *byte = quad.leak | quad.bits;
            }
            self.place(format, &quads);
        }
        let exponents = &page[format.scales()..][..format.dim];
        let zeros = &page[format.scales() + format.padded()..][..format.dim];
        for c in (0..format.dim).step_by(LANES) {
            let scales = sixteen(&exponents[c..]).map(scale);
            let zeros = sixteen(&zeros[c..]).map(|zero| zero as i8);
            // SAFETY: vectors of sixteen, all of them written; the CPU has the tier.
            unsafe {
                let scales = S::load(scales.as_ptr());
                let units = self.scales.as_mut_ptr().add(c).cast::<f32>();
                S::store(units, S::mul(scales, S::load(units)));
                let steps = S::mul(S::splat(0.5), S::load_i8(zeros.as_ptr()));
                S::store(self.zeros.as_mut_ptr().add(c).cast(), S::mul(steps, scales));
            }
        }
        quads
    }

    /// Where the codes of all quads begin, and the units of their widths in the places of scales. Returns where codes end.
    #[inline(always)]
    fn place(&mut self, format: &TrellisFormat, quads: &Quads) -> usize {
        let mut end = format.codes();
        let (units, _) = self.scales.as_chunks_mut::<QUAD>();
        for ((byte, codes), units) in quads.bytes[..quads.count].iter().zip(&mut self.codes).zip(&mut *units)
        {
            let (bits, unit) = WIDTHS[usize::from(byte % 16)];
            codes.write(end);
            end += STRIDE * bits;
            *units = [MaybeUninit::new(unit); QUAD];
        }
        // Nothing after the last channel.
        units[quads.count..format.dim.next_multiple_of(LANES) / QUAD].fill([MaybeUninit::new(0.0); QUAD]);
        end
    }
}

/// The first sixteen bytes, or all of them and zeros.
#[inline(always)]
fn sixteen(bytes: &[u8]) -> [u8; LANES] {
    bytes.first_chunk().copied().unwrap_or_else(|| {
        let mut all = [0; LANES];
        all[..bytes.len()].copy_from_slice(bytes);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::TrellisTable;

    /// By definition: quads are found by what their bytes say, one after the other.
    #[test]
    fn quads_are_told_apart_by_width_and_leak() {
        for count in [1, 7, 8, 16, 18, 63, 64] {
            let mut quads = [0; HELD];
            for (n, byte) in quads.iter_mut().take(count).enumerate() {
                *byte = (n * 89 + n * n * 7 + 3) as u8;
            }
            let held = Held::of(&quads);
            for (n, byte) in quads.iter().enumerate() {
                let (bits, leak) = (byte % 16, byte & 0xF0);
                let coded = TrellisTable::of(bits).is_some();
                for (width, alike) in held.by_bits.iter().enumerate() {
                    assert_eq!(
                        alike >> n & 1 == 1,
                        coded && width == usize::from(bits),
                        "{byte:#x}, {width}"
                    );
                }
                let mine: Vec<u8> =
                    held.leaks().filter(|(_, alike)| alike >> n & 1 == 1).map(|(leak, _)| leak).collect();
                assert_eq!(mine, if coded { vec![leak] } else { vec![] }, "{byte:#x}");
            }
        }
    }
}
