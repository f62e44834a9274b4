//! Where the numbers of a block lie.
//!
//! Engines order a block by layer, side, head and token as their attention kernels want it. All of them are strides: a vector of a head
//! lies at its place for token 0, plus the token's share. Tokens come in *runs*, because an offloaded block may be several blocks of the
//! engine one after another.
//!
//! ```text
//! (layer, K|V, tokens, heads, dim)      run = all tokens,  token stride = heads · dim
//! (layer, heads, tokens, K and V)       run = all tokens,  token stride = 2 · dim
//! (layer, block, K|V, 16, heads, dim)   run = 16,          run stride = bytes of a block of the layer
//! ```

use crate::error::TierError;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The numbers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
}

impl Number {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
        }
    }

    /// How it is called in an entry.
    pub(crate) fn code(self) -> u8 {
        match self {
            Number::F32 => 1,
            Number::F16 => 2,
            Number::Bf16 => 3,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Number> {
        [Number::F32, Number::F16, Number::Bf16].into_iter().find(|number| number.code() == code)
    }

    /// Reads numbers from their bytes.
    pub(crate) fn read(self, bytes: &[u8], out: &mut [f32]) {
        debug_assert_eq!(bytes.len(), out.len() * self.bytes());
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(self.bytes());
        match self {
            Number::F16 if is_aligned => {
                // SAFETY: aligned, as many as there are bytes for, and every pattern is a number.
                let numbers = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<f16>(), out.len()) };
                numbers.convert_to_f32_slice(out);
            }
            Number::F16 => pairs(bytes, out, |bits| f16::from_bits(bits).to_f32()),
            Number::Bf16 => pairs(bytes, out, |bits| f32::from_bits(u32::from(bits) << 16)),
            Number::F32 => {
                for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                    *out = f32::from_ne_bytes(*bytes);
                }
            }
        }
    }

    /// Writes numbers as their bytes.
    pub(crate) fn write(self, numbers: &[f32], out: &mut [u8]) {
        debug_assert_eq!(out.len(), numbers.len() * self.bytes());
        let is_aligned = out.as_ptr().addr().is_multiple_of(self.bytes());
        match self {
            Number::F16 if is_aligned => {
                // SAFETY: as in `read`.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<f16>(), numbers.len()) };
                out.convert_from_f32_slice(numbers);
            }
            Number::F16 => {
                for (out, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
                    *out = f16::from_f32(*number).to_ne_bytes();
                }
            }
            Number::Bf16 => {
                for (out, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
                    *out = bf16::from_f32(*number).to_ne_bytes();
                }
            }
            Number::F32 => {
                for (out, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                    *out = number.to_ne_bytes();
                }
            }
        }
    }
}

fn pairs(bytes: &[u8], out: &mut [f32], number: impl Fn(u16) -> f32) {
    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = number(u16::from_ne_bytes(*bytes));
    }
}

/// Where a kv head begins, in bytes from the start of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPlace {
    /// Its first key.
    pub key: usize,
    /// Its first value.
    pub value: usize,
}

/// Where the numbers of a block lie, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockForm {
    /// What they are.
    pub number: Number,
    /// Tokens of a block.
    pub tokens: usize,
    /// Channels of a key.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Bytes from a token to the next of its run.
    pub token_stride: usize,
    /// Tokens of a run.
    pub run: usize,
    /// Bytes from a run to the next.
    pub run_stride: usize,
    /// The model's number of every layer in the block, and its kv heads.
    pub layers: Vec<(usize, Vec<HeadPlace>)>,
}

impl BlockForm {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// When a count is zero, layers differ in their heads, or tokens do not fill their runs.
    pub fn check(&self) -> Result<(), TierError> {
        let refuse = |what: String| Err(TierError::Form(what));
        let heads = self.heads();
        if self.tokens == 0 || self.key_dim == 0 || self.value_dim == 0 || heads == 0 {
            return refuse(format!(
                "a block of {} tokens, {} layers and {heads} kv heads of {}/{} channels has nothing in it",
                self.tokens,
                self.layers.len(),
                self.key_dim,
                self.value_dim
            ));
        }
        if self.run == 0 || !self.tokens.is_multiple_of(self.run) {
            return refuse(format!("{} tokens are not whole runs of {}", self.tokens, self.run));
        }
        if let Some((layer, other)) = self.layers.iter().find(|(_, places)| places.len() != heads) {
            return refuse(format!("layer {layer} has {} kv heads, and others {heads}", other.len()));
        }
        Ok(())
    }

    /// kv heads of a layer.
    pub fn heads(&self) -> usize {
        self.layers.first().map_or(0, |(_, places)| places.len())
    }

    /// Bytes of the numbers themselves.
    pub fn bytes(&self) -> usize {
        self.tokens * self.layers.len() * self.heads() * (self.key_dim + self.value_dim) * self.number.bytes()
    }

    /// Bytes from the start of a block to behind its last number.
    pub fn extent(&self) -> usize {
        let places = self.layers.iter().flat_map(|(_, places)| places);
        let ends = places.map(|place| {
            let size = self.number.bytes();
            (place.key + self.key_dim * size).max(place.value + self.value_dim * size)
        });
        ends.max().unwrap_or(0) + self.offset(self.tokens.saturating_sub(1))
    }

    /// Bytes from the first token to this one.
    pub(crate) fn offset(&self, token: usize) -> usize {
        token / self.run * self.run_stride + token % self.run * self.token_stride
    }
}
