//! Codes as streams of bits: eight tokens of a channel are b bytes, the first token's bits on top. Byte j of the eight tokens
//! from 8·n on lies beside those of other channels and runs, so that a vector load has sixteen lanes of four.
//!
//! A window of eight bits that ends anywhere in a stream is then one funnel shift of two such vectors, whatever the width.

use crate::format::{QUAD, ROW, RUN, Side, TRELLIS_TOKENS};

/// Where byte `j` of run `n` of a channel lies, from the start of its quad's or row's codes on.
pub(crate) fn place(side: Side, bits: u8, channel: usize, n: usize, j: usize) -> usize {
    match side {
        // Runs in the lanes, the channels of a quad within: scores meet four channels of a query.
        Side::Key => 64 * j + QUAD * n + channel,
        // Channels in the lanes, the quarters of a page within: sums meet four tokens' weights.
        Side::Value => {
            let quarter = TRELLIS_TOKENS / RUN / 4;
            64 * (n % quarter * usize::from(bits) + j) + 4 * channel + n / quarter
        }
    }
}

/// Channels of a quad of keys or a row of values.
pub(crate) fn together(side: Side) -> usize {
    match side {
        Side::Key => QUAD,
        Side::Value => ROW,
    }
}

/// Writes the codes of one channel of a search, (tokens, 4), as that channel of a quad or row.
pub(crate) fn write(side: Side, bits: u8, codes: &[u8], searched: usize, channel: usize, out: &mut [u8]) {
    for (n, run) in codes.chunks_exact(RUN * QUAD).enumerate() {
        let word = run.chunks_exact(QUAD).fold(0u64, |word, codes| word << bits | u64::from(codes[searched]));
        for j in 0..usize::from(bits) {
            out[place(side, bits, channel, n, j)] = (word >> (8 * (usize::from(bits) - 1 - j))) as u8;
        }
    }
}

/// The windows of a channel, token by token.
pub(crate) fn windows(
    side: Side,
    bits: u8,
    start: u8,
    codes: &[u8],
    channel: usize,
) -> impl Iterator<Item = u8> {
    let mut before = u64::from(start);
    (0..TRELLIS_TOKENS / RUN).flat_map(move |n| {
        let first = before;
        let bytes = (0..usize::from(bits)).map(|j| u64::from(codes[place(side, bits, channel, n, j)]));
        let word = bytes.fold(0u64, |word, byte| word << 8 | byte);
        before = word & 255;
        // The window of token k ends after its code; what it reaches back beyond the run is in the byte before.
        (1..=RUN).map(move |k| {
            let below = usize::from(bits) * (RUN - k);
            let joined = u128::from(first) << (8 * bits) | u128::from(word);
            (joined >> below) as u8
        })
    })
}
