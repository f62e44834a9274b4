//! Packed weights: the blocks of a model file in the order of A fragments (`kernels/weights.cuh`). Codes and scales are moved, never
//! rounded.
//!
//! Rows come in tiles of 16, channels in blocks of 64 or 256. Within a tile, row = 8r + g; within 16 channels (k-step ks),
//! channel = 2t + 8c + e; the lane is 4g + t. Rows past the last are zero.

mod pack;

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;

/// A type of weights that there are products for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// w = d·(n − 8) per 32 channels.
    Q4_0,
    /// w = d·n per 32 channels.
    Q8_0,
    /// binary16.
    F16,
    /// w = d·s·n − m·z per 32 channels, in blocks of 256.
    Q4K,
    /// w = d·s·(n − 32) per 16 channels, in blocks of 256.
    Q6K,
    /// w = d·n + m per 32 channels.
    Q4_1,
    /// As Q4_K with codes of 5 bits.
    Q5K,
    /// w = 2^(e − 127)·f per 32 channels, f of 4 bits.
    Mxfp4,
}

/// Weights that cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Rows are not whole blocks.
    #[error("rows of {channels} channels are not whole blocks of {block}")]
    Channels {
        /// Channels of a row.
        channels: usize,
        /// Channels of a block.
        block: usize,
    },
    /// The bytes are not those of the rows.
    #[error("{got} bytes of weights, {want} expected")]
    Size {
        /// Bytes given.
        got: usize,
        /// Bytes of the rows.
        want: usize,
    },
}

impl WeightType {
    /// What kernels of the type are called: `linear_{name}_few`.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::Q4_0 => "q4_0",
            WeightType::Q8_0 => "q8_0",
            WeightType::F16 => "f16",
            WeightType::Q4K => "q4_k",
            WeightType::Q6K => "q6_k",
            WeightType::Q4_1 => "q4_1",
            WeightType::Q5K => "q5_k",
            WeightType::Mxfp4 => "mxfp4",
        }
    }

    /// (channels, bytes) of a block in a file.
    fn file_block(self) -> (usize, usize) {
        match self {
            WeightType::Q4_0 => (32, 18),
            WeightType::Q8_0 => (32, 34),
            WeightType::F16 => (1, 2),
            WeightType::Q4K => (256, 144),
            WeightType::Q6K => (256, 210),
            WeightType::Q4_1 => (32, 20),
            WeightType::Q5K => (256, 176),
            WeightType::Mxfp4 => (32, 17),
        }
    }

    /// (channels, bytes of 16 rows) of a block on the device.
    pub fn device_block(self) -> (usize, usize) {
        match self {
            WeightType::Q4_0 => (64, 576),
            WeightType::Q8_0 => (64, 1088),
            WeightType::F16 => (64, 2048),
            WeightType::Q4K => (256, 2368),
            WeightType::Q6K => (256, 3360),
            WeightType::Q4_1 => (64, 640),
            WeightType::Q5K => (256, 2880),
            WeightType::Mxfp4 => (64, 544),
        }
    }

    /// Bytes of 16 rows and 64 channels in a block, and of what all parts of a block share, after the last.
    pub fn device_part(self) -> (usize, usize) {
        match self {
            WeightType::Q4K => (576, 64),
            WeightType::Q5K => (704, 64),
            WeightType::Q6K => (832, 32),
            _ => (self.device_block().1, 0),
        }
    }

    /// Bytes of a packed matrix.
    pub fn packed_bytes(self, rows: usize, channels: usize) -> usize {
        let (block, bytes) = self.device_block();
        rows.div_ceil(TILE_ROWS) * (channels / block) * bytes
    }

    /// Blocks of a packed matrix with numbers that mean nothing: random codes under scales that keep activations near unit variance.
    /// For measuring speed without a file.
    pub fn noise(self, channels: usize, bytes: usize, seed: u64) -> Vec<u8> {
        let mut noise: Vec<u8> =
            kvant_codec::split_mix(seed).flat_map(u64::to_le_bytes).take(bytes).collect();
        // Where a block has its scales in f16, and about how large a number is before they are applied.
        let (scales, size) = match self {
            WeightType::Q4_0 => (512..576, 4.6),
            WeightType::Q8_0 => (1024..1088, 74.0),
            WeightType::F16 => (0..2048, 1.5),
            WeightType::Q4K => (2304..2368, 180.0),
            WeightType::Q6K => (3328..3360, 1365.0),
            WeightType::Q4_1 => (512..640, 4.6),
            WeightType::Q5K => (2816..2880, 400.0),
            WeightType::Mxfp4 => (512..544, 3.0),
        };
        // 2⁻ᵏ as f16.
        let k = (size * (channels as f64).sqrt()).log2().round().clamp(0.0, 14.0) as u16;
        let one = (15 - k) << 10;
        let (_, block) = self.device_block();
        for block in noise.chunks_exact_mut(block) {
            if self == WeightType::Mxfp4 {
                block[scales.clone()].fill((127 - k) as u8);
                continue;
            }
            for (i, half) in block[scales.clone()].as_chunks_mut().0.iter_mut().enumerate() {
                // Of f16 weights the sign and the fraction stay random.
                let kept = if self == WeightType::F16 { u16::from_le_bytes(*half) & 0x83ff } else { 0 };
                // Minima of Q4_1 are eight times their scales, below zero.
                let minimum = if self == WeightType::Q4_1 && i % 2 == 1 { 0x8000 + (3 << 10) } else { 0 };
                *half = (one | kept).wrapping_add(minimum).to_le_bytes();
            }
            if matches!(self, WeightType::Q4K | WeightType::Q5K) {
                for part in block.chunks_exact_mut(self.device_part().0).take(4) {
                    part[512..576].iter_mut().for_each(|scale| *scale &= 63);
                }
            }
        }
        noise
    }
}
