//! f16 pages: tiles of 16 tokens, in the order of A fragments (`Exact` of `kernels/pages.cuh`).

use super::{PageSwizzle, Unsupported};
use kvant_codec::Side;
use kvant_codec::format::{Element, ExactFormat};

/// Place of a key's number on the device, in halves.
pub(crate) fn key_at(dim: usize, token: usize, channel: usize) -> usize {
    let (tile, r, g) = (token / 16, token / 8 % 2, token % 8);
    let (ks, c, t, e) = (channel / 16, channel / 8 % 2, channel / 2 % 4, channel % 2);
    tile * 16 * dim + ks * 256 + (4 * g + t) * 8 + (2 * c + r) * 2 + e
}

/// Place of a value's number on the device, in halves.
pub(crate) fn value_at(dim: usize, token: usize, channel: usize) -> usize {
    let (tile, c, t, e) = (token / 16, token / 8 % 2, token / 2 % 4, token % 2);
    let (mt, r, g) = (channel / 16, channel / 8 % 2, channel % 8);
    tile * 16 * dim + mt * 256 + (4 * g + t) * 8 + (2 * c + r) * 2 + e
}

pub(super) fn swizzle(format: &ExactFormat) -> Result<PageSwizzle, Unsupported> {
    if format.element != Element::F16 {
        return Err(Unsupported { what: format!("exact pages of {:?}", format.element) });
    }
    let (dim, tokens) = (format.dim, format.tokens);
    let place = |token, channel| match format.side {
        Side::Key => (channel * tokens + token, key_at(dim, token, channel)),
        Side::Value => (token * dim + channel, value_at(dim, token, channel)),
    };
    let numbers = (0..tokens).flat_map(|token| (0..dim).map(move |channel| (token, channel)));
    let halves =
        numbers.map(|(token, channel)| place(token, channel)).map(|(a, b)| (a as u32, b as u32)).collect();
    Ok(PageSwizzle { bytes: format.bytes(), halves, nibbles: Vec::new(), bits: Vec::new() })
}
