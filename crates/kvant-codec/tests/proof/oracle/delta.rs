//! Delta codes from their description: the first token rounded, then differences from what was decoded before.

use super::basis::Affine;
use super::norm;
use super::number::Format;
use super::page::View;
use crate::case::{Case, decoded, follows};
use kvant_codec::Calibration;

/// A page taken apart, in the codec's basis.
pub struct Parts {
    pub basis: Affine,
    pub differences: Case,
    /// Bytes of the first token.
    pub frame_bytes: usize,
    pub frame: Vec<f64>,
}

impl Parts {
    pub fn new(case: &Case, page: &[u8]) -> Parts {
        let format = Format::of(case.spec.options.scales);
        Parts {
            basis: Affine::new(&case.spec, case.dim, &Calibration::default(), None),
            differences: case.differences(),
            frame_bytes: case.dim * format.bytes(),
            frame: (0..case.dim).map(|c| format.read(page, c)).collect(),
        }
    }
}

/// Checks that differences from what the page itself decodes to are what its codes are of.
pub fn check(case: &Case, rows: &[f32], page: &[u8], decoded_rows: &[f32]) -> Result<(), String> {
    let (dim, format) = (case.dim, Format::of(case.spec.options.scales));
    let parts = Parts::new(case, page);
    let inner = &page[parts.frame_bytes..];
    let twin = parts.differences.twin().ok_or("no twin")?;
    let view = View::new(&twin, inner);
    let first = parts.basis.vector(&rows[..dim]);
    for (c, (x, got)) in first.iter().zip(&parts.frame).enumerate() {
        if (x - got).abs() > 0.5 * format.ulp(*x) + 1e-6 * norm(&first) {
            return Err(format!("channel {c} of the first token: {x:e} became {got:e}"));
        }
    }
    let mut before = parts.frame.clone();
    let mut differences: Vec<f32> = Vec::new();
    for (t, (row, got)) in rows.chunks_exact(dim).zip(decoded_rows.chunks_exact(dim)).enumerate() {
        let y = parts.basis.vector(row);
        differences.extend(y.iter().zip(&before).map(|(x, before)| (x - before) as f32));
        before.iter_mut().zip(view.token(t)).for_each(|(x, step)| *x += step);
        let want = parts.basis.back(&before);
        // A running sum of up to 128 roundings.
        let slack = 1e-5 * (norm(&before) + norm(&parts.frame) + norm(&y));
        if let Some(c) = (0..dim).find(|c| (want[*c] - f64::from(got[*c])).abs() > slack) {
            return Err(format!(
                "token {t}, channel {c}: decoded {:e}, the formula says {:e}",
                got[c], want[c]
            ));
        }
    }
    // The differences are known no better than the vectors: check their codes only where that is good enough.
    let large = rows.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let small =
        differences.chunks_exact(dim).skip(1).map(|row| row.iter().fold(0.0f32, |top, x| top.max(x.abs())));
    if small.fold(f32::INFINITY, f32::min) > 1e-2 * large {
        let rows = &differences[dim..];
        let mut again = vec![0.0; dim];
        again.extend_from_slice(rows);
        // Row 0 codes the rounding of the first token, which is below what the twin can see; take it as it is.
        again[..dim].copy_from_slice(&decoded(&*parts.differences.best(), inner)[..dim]);
        follows(&parts.differences, &again, inner, &decoded(&*parts.differences.best(), inner))?;
    }
    Ok(())
}
