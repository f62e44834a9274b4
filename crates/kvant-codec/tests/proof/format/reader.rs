//! Somebody else's reader: written from `docs/page-format.md` alone, one number at a time, in f64.

use crate::oracle::basis::{rotation, times};
use crate::oracle::number::{BF16, F16, F32};
use crate::oracle::{norm, trellis};
use kvant_codec::format::{BasisFormat, CodeMeaning, ExactFormat, Linear, PackedFormat, PageFormat, Span};
use kvant_codec::{Element, Rotation, ScaleFormat, Side};
use std::ops::Range;

/// A vector as it was read, in the model's basis.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    pub numbers: Vec<f64>,
    /// How large the terms are that it is a sum of: what arithmetic in f32 rounds relative to.
    pub magnitude: f64,
}

/// All vectors of a page.
pub fn read(format: &PageFormat, page: &[u8]) -> Vec<Vector> {
    assert_eq!(page.len(), format.bytes());
    match format {
        PageFormat::Exact(format) => (0..format.tokens).map(|t| exact(format, page, t)).collect(),
        PageFormat::Packed(format) => (0..format.tokens).map(|t| packed(format, page, t)).collect(),
        PageFormat::Trellis(format) => trellis::read(format, page)
            .iter()
            .map(|y| Vector { numbers: back(&format.basis, y), magnitude: norm(y) })
            .collect(),
    }
}

fn exact(format: &ExactFormat, page: &[u8], t: usize) -> Vector {
    let element = match format.element {
        Element::F32 => F32,
        Element::F16 => F16,
        Element::Bf16 => BF16,
    };
    let place = |c: usize| match format.side {
        Side::Key => c * format.tokens + t,
        Side::Value => t * format.dim + c,
    };
    Vector { numbers: (0..format.dim).map(|c| element.read(page, place(c))).collect(), magnitude: 0.0 }
}

fn packed(format: &PackedFormat, page: &[u8], t: usize) -> Vector {
    let scales = match format.scales {
        ScaleFormat::F16 => F16,
        ScaleFormat::F32 => F32,
    };
    let entry = |array: &Option<Range<usize>>, index: usize, absent: f64| {
        array.as_ref().map_or(absent, |array| scales.read(&page[array.clone()], index))
    };
    let mut y = vec![0.0; format.dim];
    let mut squares = 0.0;
    for span in &format.spans {
        let at = span.group * format.tokens + t;
        let (token_scale, token_zero) =
            (entry(&format.token_scale, at, 1.0), entry(&format.token_zero, at, 0.0));
        for c in span.first..(span.first + span.len).min(format.dim) {
            let (scale, zero) = (entry(&format.channel_scale, c, 1.0), entry(&format.channel_zero, c, 0.0));
            let level = level(span, code(format, span, page, t, c));
            y[c] = (level * token_scale + token_zero) * scale + zero;
            let lambda = format.basis.lambda.get(c).map_or(1.0, |l| f64::from(*l));
            for term in [level * token_scale * scale, token_zero * scale, zero] {
                squares += (lambda * term).powi(2);
            }
        }
    }
    Vector { numbers: back(&format.basis, &y), magnitude: squares.sqrt() }
}

fn level(span: &Span, code: u8) -> f64 {
    match span.meaning {
        CodeMeaning::Shifted => f64::from(code) - 2f64.powi(i32::from(span.bits) - 1),
        CodeMeaning::WithZero => f64::from(code),
        CodeMeaning::Table(table) => f64::from(table[usize::from(code)]),
    }
}

fn code(format: &PackedFormat, span: &Span, page: &[u8], t: usize, c: usize) -> u8 {
    let (channels, units) = match format.side {
        Side::Key => (8, format.tokens / 16),
        Side::Value => (16, format.tokens / 8),
    };
    let (r, k) = ((c - span.first) / channels, (c - span.first) % channels);
    let (u, h, i) = match format.side {
        Side::Key => (t / 16, k / 4, 4 * (t % 16) + k % 4),
        Side::Value => (t / 8, t % 8 / 4, 4 * k + t % 4),
    };
    let bytes = 16 * usize::from(span.bits);
    let mut unit = &page[span.codes + (r * units + u) * bytes..][..bytes];
    if span.bits == 8 {
        return unit[64 * h + i];
    }
    let (mut code, mut below) = (0, 0);
    for plane in [4, 2, 1] {
        if span.bits & plane == 0 {
            continue;
        }
        let bits = match plane {
            4 => unit[i] >> (4 * h) & 15,
            2 => unit[16 * h + i % 16] >> (2 * (i / 16)) & 3,
            _ => unit[8 * h + i / 8] >> (i % 8) & 1,
        };
        code |= bits << below;
        below += plane;
        unit = &unit[16 * usize::from(plane)..];
    }
    code
}

/// T⁻¹ Λ y + μ.
fn back(basis: &BasisFormat, y: &[f64]) -> Vec<f64> {
    let lambda = |c: usize| basis.lambda.get(c).map_or(1.0, |l| f64::from(*l));
    let y: Vec<f64> = y.iter().enumerate().map(|(c, y)| lambda(c) * y).collect();
    let mut x = match &basis.linear {
        Linear::Rotation { kind: Rotation::Identity, .. } => y,
        Linear::Rotation { kind, seed } => times(&rotation(*kind, basis.dim, *seed).1, &y),
        Linear::Dense(dense) => {
            let inverse: Vec<f64> = dense.inverse_matrix().iter().map(|m| f64::from(*m)).collect();
            times(&inverse, &y)
        }
    };
    x.iter_mut().zip(&basis.mean).for_each(|(x, mean)| *x += f64::from(*mean));
    x
}
