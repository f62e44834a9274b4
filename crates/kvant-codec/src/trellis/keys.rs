//! Keys to bytes: a mean, a leak, a width and a scale for what the leak leaves, then the codes.
//!
//! Everything is decided by the page itself. Channels of slow rotation hardly change from token to token, so a leak near one
//! leaves little to code; channels that hardly vary at all get few bits or none, and the others theirs.

use super::TrellisKernels;
use super::scale::exponent;
use super::search::{ChannelQuad, SearchRoom};
use super::stream;
use crate::format::{Linear, QUAD, Side, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, scale};

/// Leaks that are chosen, in 256ths: sixteenths are stored. Each one that a page has costs its readers a scan.
const LEAKS: [u8; 5] = [0, 64, 128, 192, 224];

/// The mean squared error of a Gaussian of variance one, by width from 0 to 6 and 8: what a page can expect.
const DISTORTIONS: [(u8, f32); 8] =
    [(0, 1.0), (1, 0.302), (2, 0.0848), (3, 0.0228), (4, 0.0064), (5, 0.0019), (6, 0.0007), (8, 0.000_084)];

/// What is known of a channel before it is coded.
#[derive(Clone, Copy, Default)]
struct Statistics {
    mean: f32,
    /// Sums of squares and of products of neighbours, around the mean.
    square: f32,
    product: f32,
    /// Sum of squares and largest magnitude of what the leak leaves.
    innovation: f32,
    largest: f32,
    /// The first token, which nothing predicts, around the mean.
    first: f32,
}

/// Encodes a page of numbers in the codec's basis, (tokens, stride), into bytes. `None` when a scale is too large.
pub(crate) fn encode(
    format: &TrellisFormat,
    kernels: &TrellisKernels,
    y: &[f32],
    stride: usize,
    page: &mut [u8],
) -> Option<()> {
    let quads = format.padded() / QUAD;
    let mut channels = moments(y, stride);
    let leaks: Vec<u8> = (0..quads).map(|q| leak(&channels[QUAD * q..QUAD * q + QUAD])).collect();
    let leak_of = |c: usize| leaks.get(c / QUAD).map_or(0.0, |leak| f32::from(*leak) / 256.0);
    innovations(y, stride, &mut channels, leak_of);
    let weights = weights(format, &channels);
    let widths = allocate(&channels, &leaks, &weights, format.quad_bits);
    page.fill(0);
    let (scales, zeros) = (format.scales(), format.scales() + format.padded());
    for (head, (leak, bits)) in page.iter_mut().zip(leaks.iter().zip(&widths)) {
        *head = leak | bits;
    }
    for c in 0..format.dim {
        let bits = widths[c / QUAD];
        let wanted = wanted_scale(&channels[c], bits, leaks[c / QUAD]);
        page[scales + c] = exponent(wanted)?;
        let scale = scale(page[scales + c]);
        let steps = if scale > 0.0 { 2.0 * channels[c].mean / scale } else { 0.0 };
        page[zeros + c] = steps.round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
    code(format, kernels, y, stride, page);
    Some(())
}

/// Means, and sums around them.
fn moments(y: &[f32], stride: usize) -> Vec<Statistics> {
    let mut mean = vec![0.0f32; stride];
    for row in y.chunks_exact(stride) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    mean.iter_mut().for_each(|mean| *mean *= 1.0 / TRELLIS_TOKENS as f32);
    let (mut square, mut product) = (vec![0.0f32; stride], vec![0.0f32; stride]);
    let mut before = mean.as_slice();
    for row in y.chunks_exact(stride) {
        let sums = square.iter_mut().zip(&mut product).zip(&mean);
        for ((((square, product), mean), x), before) in sums.zip(row).zip(before) {
            let x = x - mean;
            *square += x * x;
            *product += x * (before - mean);
        }
        before = row;
    }
    (0..stride)
        .map(|c| Statistics {
            mean: mean[c],
            square: square[c],
            product: product[c],
            first: (y[c] - mean[c]).abs(),
            ..Statistics::default()
        })
        .collect()
}

/// The leak that suits a quad: the nearest to how much neighbours have in common.
fn leak(quad: &[Statistics]) -> u8 {
    let (square, product) =
        quad.iter().fold((0.0, 0.0), |(square, product), c| (square + c.square, product + c.product));
    let ratio = if square > 0.0 { 256.0 * product / square } else { 0.0 };
    let distance = |leak: u8| (f32::from(leak) - ratio).abs();
    LEAKS.into_iter().min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(0)
}

/// What the leak leaves of every channel.
fn innovations(y: &[f32], stride: usize, channels: &mut [Statistics], leak: impl Fn(usize) -> f32) {
    let leaks: Vec<f32> = (0..stride).map(leak).collect();
    // x − m − ρ·(x' − m) = x − ρ·x' − (1 − ρ)·m.
    let offsets: Vec<f32> = channels.iter().zip(&leaks).map(|(c, leak)| (1.0 - leak) * c.mean).collect();
    let (mut square, mut largest) = (vec![0.0f32; stride], vec![0.0f32; stride]);
    for (before, row) in y.chunks_exact(stride).zip(y.chunks_exact(stride).skip(1)) {
        let sums = square.iter_mut().zip(&mut largest).zip(&leaks).zip(&offsets);
        for (((((square, largest), leak), offset), x), before) in sums.zip(row).zip(before) {
            let e = x - leak * before - offset;
            *square += e * e;
            *largest = largest.max(e.abs());
        }
    }
    for (c, channel) in channels.iter_mut().enumerate() {
        (channel.innovation, channel.largest) = (square[c], largest[c]);
    }
}

/// How much an error in a quad counts.
///
/// In a plan's basis the same everywhere. In the model's nobody knows, but queries are often small where keys are large: the
/// loudest channels of Qwen's first layer are those that its queries see least. So a quad counts less, the louder it is, by the
/// fourth root of its power, which costs little where it is not so.
fn weights(format: &TrellisFormat, channels: &[Statistics]) -> Vec<f32> {
    let planned = matches!(format.basis.linear, Linear::Dense(_));
    let weight = |quad: &[Statistics]| {
        let power = quad.iter().map(|c| c.square).sum::<f32>();
        if planned || power <= 0.0 { 1.0 } else { 1.0 / power.sqrt().sqrt() }
    };
    channels.chunks_exact(QUAD).map(weight).collect()
}

/// Widths of quads whose sum is `bits`, as near as it can be: one bit after the other to where it helps most.
fn allocate(channels: &[Statistics], leaks: &[u8], weights: &[f32], bits: usize) -> Vec<u8> {
    let quads: Vec<(f32, f32)> = channels
        .chunks_exact(QUAD)
        .map(|quad| quad.iter().fold((0.0, 0.0), |(a, b), c| (a + c.square, b + c.innovation)))
        .collect();
    let error = |quad: usize, place: usize| {
        let (width, distortion) = DISTORTIONS[place];
        let (square, innovation) = quads[quad];
        let leak = f32::from(leaks[quad]) / 256.0;
        // An error that leaks into the next prediction has to be coded there once more.
        let coded = innovation * distortion / (1.0 - leak * leak * distortion);
        weights[quad] * if width == 0 { square } else { coded }
    };
    let gain = |quad: usize, place: usize| {
        DISTORTIONS.get(place + 1).map(|(width, _)| {
            let cost = width - DISTORTIONS[place].0;
            ((error(quad, place) - error(quad, place + 1)) / f32::from(cost), usize::from(cost))
        })
    };
    let mut places = vec![0; leaks.len()];
    let mut gains: Vec<_> = (0..leaks.len()).map(|quad| gain(quad, 0)).collect();
    let mut left = bits;
    while left > 0 {
        let fits = |quad: &usize| gains[*quad].is_some_and(|(_, cost)| cost <= left);
        let better = |a: &usize, b: &usize| {
            let of = |quad: &usize| gains[*quad].map_or(f32::NEG_INFINITY, |(gain, _)| gain);
            // Of equals the first.
            of(a).total_cmp(&of(b)).then(b.cmp(a))
        };
        let Some(quad) = (0..leaks.len()).filter(fits).max_by(better) else { break };
        left -= gains[quad].map_or(0, |(_, cost)| cost);
        places[quad] += 1;
        gains[quad] = gain(quad, places[quad]);
    }
    places.iter().map(|place| DISTORTIONS[*place].0).collect()
}

/// The expected squared error of a key whose channels have these variances, in the order of its quads, with that many bits per
/// channel on average: what sharing them out by the trellis's own distortions leaves. What prediction gains is not counted.
pub fn expected_error(variances: &[f32], bits: f64) -> f64 {
    let mut channels: Vec<Statistics> = variances
        .iter()
        .map(|x| Statistics { square: *x, innovation: *x, ..Statistics::default() })
        .collect();
    channels.resize(channels.len().next_multiple_of(QUAD), Statistics::default());
    let quads = channels.len() / QUAD;
    let total = (bits * quads as f64 + 1e-9) as usize;
    let widths = allocate(&channels, &vec![0; quads], &vec![1.0; quads], total);
    let distortion = |bits: u8| DISTORTIONS.iter().find(|(width, _)| *width == bits).map_or(1.0, |(_, d)| *d);
    variances.iter().enumerate().map(|(c, x)| f64::from(x * distortion(widths[c / QUAD]))).sum()
}

/// The scale of a channel: that of what it codes, and large enough that the largest level reaches the largest of it.
fn wanted_scale(channel: &Statistics, bits: u8, leak: u8) -> f32 {
    let rho = f32::from(leak) / 256.0;
    // Means are stored in half steps of the scale, and 127 of them must be enough.
    let for_mean = channel.mean.abs() / 63.0;
    let Some(table) = TrellisTable::of(bits) else { return for_mean };
    let top = table.unit * f32::from(REACH[usize::from(bits)]);
    let distortion = DISTORTIONS.iter().find(|(width, _)| *width == bits).map_or(1.0, |(_, d)| *d);
    let deviation = (channel.innovation / (TRELLIS_TOKENS - 1) as f32).sqrt();
    let coded = deviation / (1.0 - rho * rho * distortion).sqrt();
    let first = channel.first / (first_steps(leak)[0] * top);
    coded.max(channel.largest / top).max(first).max(for_mean)
}

/// The largest level that there is on both sides of zero, by width.
static REACH: [u8; 9] = [0, 121, 122, 123, 125, 126, 124, 0, 127];

/// Finds the codes of all channels, a quad at a time.
fn code(format: &TrellisFormat, kernels: &TrellisKernels, y: &[f32], stride: usize, page: &mut [u8]) {
    let quads: Vec<_> = format.quads(page).collect();
    let (scales, zeros) = (format.scales(), format.scales() + format.padded());
    let ones = [1.0; TRELLIS_TOKENS];
    let (mut x, mut codes) = ([[0.0f32; QUAD]; TRELLIS_TOKENS], [0; TRELLIS_TOKENS * QUAD]);
    let mut room = SearchRoom::default();
    for (q, quad) in quads.iter().enumerate() {
        let Some(table) = TrellisTable::of(quad.bits) else { continue };
        let scale: [f32; QUAD] = std::array::from_fn(|i| scale(page[scales + QUAD * q + i]));
        let zero: [f32; QUAD] =
            std::array::from_fn(|i| 0.5 * f32::from(page[zeros + QUAD * q + i] as i8) * scale[i]);
        let inverse = scale.map(|scale| if scale > 0.0 { 1.0 / (scale * table.unit) } else { 0.0 });
        for (x, row) in x.iter_mut().zip(y.chunks_exact(stride)) {
            let row = &row[QUAD * q..QUAD * q + QUAD];
            *x = std::array::from_fn(|i| (row[i] - zero[i]) * inverse[i]);
        }
        let numbers = ChannelQuad {
            x: x.as_flattened(),
            leak: f32::from(quad.leak) / 256.0,
            first: first_steps(quad.leak),
            token: &ones,
            inverse: &ones,
        };
        // SAFETY: the table of kernels belongs to this CPU.
        unsafe { (kernels.search)(table, &numbers, &mut room, &mut codes) };
        for channel in 0..QUAD.min(format.dim - QUAD * q) {
            stream::write(Side::Key, table.bits, &codes, channel, channel, &mut page[quad.codes..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_variances_are_and_one_bit_is_worth_having() {
        let even = expected_error(&[1.0; 64], 3.0);
        assert!((even - 64.0 * 0.0228).abs() < 1e-4, "{even}");
        let steep: Vec<f32> = (0..64).map(|c| 0.85f32.powi(c)).collect();
        let flat = vec![steep.iter().sum::<f32>() / 64.0; 64];
        let mut before = f64::INFINITY;
        for hundredths in (100..500).step_by(25) {
            let bits = f64::from(hundredths) / 100.0;
            let error = expected_error(&steep, bits);
            assert!(error < before && error < expected_error(&flat, bits), "{bits} bits: {error}");
            before = error;
        }
        // Half of the quads with a bit each beat none with any.
        assert!(expected_error(&[1.0; 64], 0.5) < 0.7 * 64.0);
    }
}
