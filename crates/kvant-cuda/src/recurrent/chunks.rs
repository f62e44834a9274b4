//! Recurrent state by whole chunks: which sequences go that way, and what the kernels of `kernels/recurrent_chunks.cu` need.

use super::{KEY_PAD, Recurrent, TILE};
use crate::device::SCAN_SHARED;
use kvant_cache::STATE_CHUNK;

/// Tokens from which on a sequence goes by chunks.
pub(super) const MANY_TOKENS: usize = 12;

/// Shared memory of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkForm {
    /// Of `chunk_products`: keys and queries of a chunk.
    pub products: usize,
    /// Of `scan_chunks`, and chunks of keys that it has room for.
    pub scan: usize,
    pub stages: usize,
}

impl ChunkForm {
    /// For keys of so many channels where a CTA may take so many bytes; none where they do not suffice.
    fn new(keys: usize, is_delta: bool, shared: usize) -> Option<ChunkForm> {
        let row = keys + KEY_PAD;
        let products = 4 * 2 * STATE_CHUNK * row;
        [2, 1].into_iter().find_map(|stages| {
            let pairs = if is_delta { 2 } else { 1 };
            let matrices = keys * TILE + STATE_CHUNK * TILE + pairs * STATE_CHUNK * (STATE_CHUNK + KEY_PAD);
            let scan = 4 * (matrices + (1 + stages) * STATE_CHUNK * row);
            (scan.max(products) + SCAN_SHARED <= shared).then_some(ChunkForm { products, scan, stages })
        })
    }
}

impl Recurrent {
    /// How it goes by chunks where a CTA may take so many bytes; none where it goes token by token alone. Keys, queries and values are copied in
    /// fours of numbers.
    pub(super) fn chunk_form(&self, shared: usize) -> Option<ChunkForm> {
        let of = &self.places;
        let places = [self.conv.channels, of.query, of.key, of.value, self.value_dim];
        let fours = places.iter().all(|place| place.is_multiple_of(4));
        ChunkForm::new(self.key_dim, self.skip.is_none(), shared).filter(|_| fours)
    }

    /// Bytes of what `chunk_products` leaves of a piece: products with keys and with queries, decays and shares of every head.
    pub(crate) fn product_bytes(&self) -> usize {
        4 * 2 * (self.key_heads * STATE_CHUNK * STATE_CHUNK + self.heads * STATE_CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_take_what_a_cta_may_have() {
        let of = |keys, is_delta, shared: usize| {
            ChunkForm::new(keys, is_delta, shared << 10).map(|form| form.stages)
        };
        assert_eq!(of(128, true, 227), Some(2));
        assert_eq!(of(128, true, 163), Some(1));
        assert_eq!(of(128, true, 99), None);
        assert_eq!(of(64, false, 99), Some(1));
        assert_eq!(of(256, true, 227), None);
        let form = ChunkForm::new(128, true, 227 << 10).unwrap();
        assert_eq!(form.scan, 4 * (128 * 64 + 64 * 64 + 2 * 64 * 68 + 3 * 64 * 132));
    }
}
