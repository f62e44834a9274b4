//! From blocks of a file to panels.

use crate::format::{
    BLOCK, Format, PANEL, PanelSize, code_bytes, group_offset, halves, has_byte_scales, low_bits, scale_bytes,
};
use crate::source::{Codes, Scales, Source};

/// Packs the rows of a panel, at most 16 of equal length, into `panel`. Rows that are not there become zeros.
pub(crate) fn pack_panel<F: Source>(rows: &[&[u8]], columns: usize, panel: &mut [u8]) {
    let size = PanelSize::of::<F>(columns);
    let (codes, scales) = panel.split_at_mut(size.codes);
    let unit_bytes = F::LAYOUT.block_bytes();
    let blocks = F::UNIT / BLOCK;
    let units =
        codes.chunks_exact_mut(blocks * code_bytes::<F>()).zip(scales.chunks_exact_mut(scale_bytes::<F>()));
    for (unit, (codes, scales)) in units.enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let unit = &row[unit * unit_bytes..][..unit_bytes];
            deal_scales::<F>(&F::scales(unit), lane, scales);
            for (index, codes) in codes.chunks_exact_mut(code_bytes::<F>()).enumerate() {
                deal_codes::<F>(&F::codes(unit, index), lane, codes);
            }
        }
    }
}

/// Puts a row's codes of a block into its lane.
#[inline(always)]
fn deal_codes<F: Format>(source: &Codes, lane: usize, codes: &mut [u8]) {
    match low_bits::<F>() {
        2 => {
            // Rows 4l to 4l + 3 are the bits from 2l on of the quad's bytes.
            for (quad, word) in source.words.iter().enumerate() {
                let place = &mut codes[16 * quad + 4 * (lane % 4)..][..4];
                let dealt = (word << (2 * (lane / 4))).to_le_bytes();
                place.iter_mut().zip(dealt).for_each(|(byte, bits)| *byte |= bits);
            }
        }
        low => {
            for v in 0..low {
                codes[64 * v + 4 * lane..][..4].copy_from_slice(&source.words[v].to_le_bytes());
            }
        }
    }
    for (plane, masks) in codes[64 * low_bits::<F>()..].chunks_exact_mut(64).enumerate() {
        for quad in 0..BLOCK / 4 {
            // Four bits of a lane are half a byte of the quad's mask.
            let four = (source.planes[plane] >> (4 * quad) & 15) as u8;
            masks[8 * quad + lane / 2] |= four << (4 * (lane % 2));
        }
    }
}

#[inline(always)]
fn deal_scales<F: Format>(source: &Scales, lane: usize, scales: &mut [u8]) {
    if F::EXPONENT {
        scales[lane] = source.bytes[0][0];
        return;
    }
    for half in 0..halves::<F>() {
        scales[2 * (half * PANEL + lane)..][..2].copy_from_slice(&source.halves[half].to_le_bytes());
    }
    if has_byte_scales::<F>() {
        let kinds = halves::<F>();
        for group in 0..F::UNIT / F::GROUP {
            for kind in 0..kinds {
                scales[group_offset::<F>(group) + kind * PANEL + lane] = source.bytes[group][kind];
            }
        }
    }
}
