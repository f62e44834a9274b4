//! Packed matrices on the card.

use crate::buffer::Buffer;
use crate::device::CudaGpu;
use crate::params::Address;
use crate::weights::WeightType;
use kvant_model::error::{LoadError, Result};
use std::sync::Arc;

/// Bytes of zeros after a matrix: `linear_few` reads up to three parts past the last one, and does not use them.
const AFTER: usize = 3 * 2048;

/// A matrix `(rows, channels)` on the card.
pub(crate) struct Matrix {
    pub kind: WeightType,
    pub rows: usize,
    pub channels: usize,
    /// What its numbers are multiplied by: a power of two that puts wide numbers into f16, else 1.
    pub scale: f32,
    pub buffer: Buffer,
}

impl Matrix {
    /// Memory for packed weights.
    pub(crate) fn room(card: &Arc<CudaGpu>, bytes: usize) -> Result<Buffer> {
        let buffer = Buffer::new(card, bytes + AFTER).map_err(on_card)?;
        buffer.clear(bytes..bytes + AFTER).map_err(on_card)?;
        Ok(buffer)
    }

    /// A matrix of numbers without a meaning, of the size of a trained one's, for measuring speed.
    pub(crate) fn noise(
        card: &Arc<CudaGpu>,
        kind: WeightType,
        rows: usize,
        channels: usize,
        seed: u64,
    ) -> Result<Matrix> {
        let bytes = kind.packed_bytes(rows, channels);
        let buffer = Matrix::room(card, bytes)?;
        let few = kind.packed_bytes(rows.min(256), channels);
        let part = kind.noise(channels, few, seed);
        buffer.upload(0, &part).map_err(on_card)?;
        let mut done = few;
        while done < bytes {
            let more = done.min(bytes - done);
            buffer.repeat(0, done, more).map_err(on_card)?;
            done += more;
        }
        Ok(Matrix { kind, rows, channels, scale: 1.0, buffer })
    }

    pub(crate) fn address(&self) -> Address {
        self.buffer.address()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

pub(crate) fn on_card(error: crate::device::OpenError) -> LoadError {
    LoadError::unsupported(error.to_string())
}
