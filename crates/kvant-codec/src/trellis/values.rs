//! Values to bytes: one leak for the page, a factor per token and one per channel, then the codes.

use super::TrellisKernels;
use super::decode::{channel as factor_of, token};
use super::scale::{exponent, half, quarter};
use super::search::{ChannelQuad, SearchRoom};
use super::stream;
use crate::format::{QUAD, ROW, Side, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, scale};

/// How often factors of tokens and of channels are fitted to each other.
const ROUNDS: usize = 4;

/// Encodes a page of numbers in the codec's basis, (tokens, stride), into bytes. `None` when a scale is too large.
pub(crate) fn encode(
    format: &TrellisFormat,
    kernels: &TrellisKernels,
    y: &[f32],
    stride: usize,
    page: &mut [u8],
) -> Option<()> {
    page.fill(0);
    page[1] = leak(y, stride);
    let leak = f32::from(page[1]) / 256.0;
    let mut rest = y[stride..].to_vec();
    for (rest, before) in rest.iter_mut().zip(y) {
        *rest -= leak * before;
    }
    let (mut tokens, mut channels) = (vec![1.0f32; TRELLIS_TOKENS], vec![0.0f32; stride]);
    for _ in 0..ROUNDS {
        fit_channels(&rest, stride, &tokens[1..], &mut channels);
        fit_tokens(&rest, stride, format.dim, &channels, &mut tokens[1..]);
    }
    for (t, factor) in tokens.iter_mut().enumerate() {
        put_nibble(&mut page[2..], t, half(*factor));
        *factor = token(page, t);
    }
    fit_channels(&rest, stride, &tokens[1..], &mut channels);
    let mean = channels[..format.dim].iter().map(|x| x * x).sum::<f32>() / format.dim as f32;
    page[0] = exponent(mean.sqrt())?;
    let whole = scale(page[0]);
    for (c, channel) in channels.iter_mut().enumerate().take(format.dim) {
        put_nibble(&mut page[format.scales()..], c, quarter(*channel / whole));
        let factor = factor_of(&page[format.scales()..], c);
        *channel = whole * factor;
    }
    code(format, kernels, y, stride, &tokens, &channels, page);
    Some(())
}

fn put_nibble(bytes: &mut [u8], index: usize, value: u8) {
    bytes[index / 2] |= value << (4 * (index % 2));
}

/// How much neighbours have in common, in 256ths.
fn leak(y: &[f32], stride: usize) -> u8 {
    let (mut square, mut product) = (vec![0.0f32; stride], vec![0.0f32; stride]);
    for (before, row) in y.chunks_exact(stride).zip(y.chunks_exact(stride).skip(1)) {
        for (((square, product), x), before) in square.iter_mut().zip(&mut product).zip(row).zip(before) {
            *square += x * x;
            *product += x * before;
        }
    }
    let (square, product) = (square.iter().sum::<f32>(), product.iter().sum::<f32>());
    let ratio = if square > 0.0 { product / square } else { 0.0 };
    (256.0 * ratio).round_ties_even().clamp(0.0, 240.0) as u8
}

/// Root mean squares of channels, whose tokens are divided by their factors.
fn fit_channels(rest: &[f32], stride: usize, tokens: &[f32], channels: &mut [f32]) {
    channels.fill(0.0);
    for (row, token) in rest.chunks_exact(stride).zip(tokens) {
        let inverse = 1.0 / (token * token);
        channels.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x * inverse);
    }
    channels.iter_mut().for_each(|sum| *sum = (*sum / tokens.len() as f32).sqrt());
}

/// Root mean squares of tokens, whose channels are divided by their factors.
fn fit_tokens(rest: &[f32], stride: usize, dim: usize, channels: &[f32], tokens: &mut [f32]) {
    let inverse: Vec<f32> = channels.iter().map(|x| if *x > 0.0 { 1.0 / (x * x) } else { 0.0 }).collect();
    // Channels are added one after the other, so eight tokens at a time: none waits for another.
    for (rows, tokens) in rest.chunks(8 * stride).zip(tokens.chunks_mut(8)) {
        let mut sums = [0.0f32; 8];
        for (c, inverse) in inverse.iter().enumerate() {
            for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(stride)) {
                *sum += row[c] * row[c] * inverse;
            }
        }
        for (token, sum) in tokens.iter_mut().zip(sums) {
            *token = (sum / dim as f32).sqrt().max(0.02);
        }
    }
}

/// Finds the codes of all channels, four of a row at a time.
fn code(
    format: &TrellisFormat,
    kernels: &TrellisKernels,
    y: &[f32],
    stride: usize,
    tokens: &[f32],
    channels: &[f32],
    page: &mut [u8],
) {
    let leak = page[1];
    let inverse_tokens: Vec<f32> = tokens.iter().map(|x| 1.0 / x).collect();
    let (mut x, mut codes) = ([[0.0f32; QUAD]; TRELLIS_TOKENS], [0; TRELLIS_TOKENS * QUAD]);
    let (mut room, mut at) = (SearchRoom::default(), format.codes());
    for (r, bits) in format.widths.iter().enumerate() {
        let Some(table) = TrellisTable::of(*bits) else { continue };
        for first in (ROW * r..format.dim.min(ROW * r + ROW)).step_by(QUAD) {
            let inverse: [f32; QUAD] = std::array::from_fn(|i| {
                let scale = channels[first + i] * table.unit;
                if first + i < format.dim && scale > 0.0 { 1.0 / scale } else { 0.0 }
            });
            for (x, row) in x.iter_mut().zip(y.chunks_exact(stride)) {
                let row = &row[first..first + QUAD];
                *x = std::array::from_fn(|i| row[i] * inverse[i]);
            }
            let numbers = ChannelQuad {
                x: x.as_flattened(),
                leak: f32::from(leak) / 256.0,
                first: first_steps(leak),
                token: tokens,
                inverse: &inverse_tokens,
            };
            // SAFETY: the table of kernels belongs to this CPU.
            unsafe { (kernels.search)(table, &numbers, &mut room, &mut codes) };
            for channel in 0..QUAD.min(format.dim - first) {
                stream::write(Side::Value, *bits, &codes, channel, first % ROW + channel, &mut page[at..]);
            }
        }
        at += format.tokens / 8 * ROW * usize::from(*bits);
    }
}
