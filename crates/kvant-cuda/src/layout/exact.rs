//! Exact pages: tiles of 16 tokens, in the order of A fragments (`Exact` of `kernels/pages.cuh`).

use super::PageSwizzle;
use kvant_codec::Side;
use kvant_codec::format::ExactFormat;

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

pub(super) fn swizzle(format: &ExactFormat) -> PageSwizzle {
    let (dim, tokens) = (format.dim, format.tokens);
    let place = |token, channel| match format.side {
        Side::Key => (channel * tokens + token, key_at(dim, token, channel)),
        Side::Value => (token * dim + channel, value_at(dim, token, channel)),
    };
    let numbers = (0..tokens).flat_map(|token| (0..dim).map(move |channel| (token, channel)));
    let of_number = format.element.bytes() / 2;
    let halves = numbers.map(|(token, channel)| place(token, channel)).flat_map(|(a, b)| {
        (0..of_number).map(move |half| ((of_number * a + half) as u32, (of_number * b + half) as u32))
    });
    PageSwizzle { bytes: format.bytes(), halves: halves.collect(), nibbles: Vec::new(), bits: Vec::new() }
}
