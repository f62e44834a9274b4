//! What a policy costs a model, told from its slots alone: bytes per token, memory of a context, kernels.

use crate::session::PREFILL_CHUNK;
use kvant_attention::KvUnsupported;
use kvant_cache::{CacheLayout, Policy, SlotKind, Slots};

/// Bytes that a policy takes for each token of a long context, scales and all, over everything a model keeps.
///
/// # Errors
/// If a codec does not exist for the width of a head, or needs a plan.
pub fn bytes_per_token(kv: impl Into<Policy>, slots: &Slots) -> Result<f64, KvUnsupported> {
    Ok(layout(&kv.into(), slots)?.bytes_per_token())
}

/// Bytes that 16 bits a number would take for each token: what compression is measured against.
pub fn f16_bytes_per_token(slots: &Slots) -> u64 {
    let numbers = |kind: &SlotKind| match kind {
        SlotKind::KeysValues(shape) => shape.kv_heads * (shape.key_dim + shape.value_dim),
        SlotKind::Latent(shape) => shape.kv_heads * (shape.latent_dim + shape.rope_dim),
        // The state of a recurrent slot does not grow with the tokens.
        SlotKind::View(_) | SlotKind::Recurrent(_) => 0,
    };
    2 * slots.iter().map(|(_, slot)| numbers(&slot.kind)).sum::<usize>() as u64
}

/// The most bytes that a sequence takes while it grows to `context` tokens: its pages, and the exact rows of the pass that
/// is being made.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn memory(kv: impl Into<Policy>, slots: &Slots, context: usize) -> Result<usize, KvUnsupported> {
    Ok(layout(&kv.into(), slots)?.arena_bytes(context, PREFILL_CHUNK))
}

/// Bytes of memory that a sequence of `context` tokens comes to hold: [`memory`], and the handles of its pages.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn resident(kv: impl Into<Policy>, slots: &Slots, context: usize) -> Result<usize, KvUnsupported> {
    Ok(layout(&kv.into(), slots)?.resident_bytes(context, PREFILL_CHUNK))
}

/// A context that people have in mind.
const USUAL_CONTEXT: usize = 8192;

/// The part of f16's bytes that a cache has to stay below to be called compressed.
const COMPRESSED: f64 = 0.8;

/// What a context comes to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextCost {
    /// Its tokens.
    pub tokens: usize,
    /// Bytes, scales and all.
    pub bytes: u64,
    /// Bytes that 16 bits a number would take.
    pub f16_bytes: u64,
}

/// What people are told of a context of 8,192 tokens, where there is room for it, and of the whole one: what is stored, without the
/// room that a pass takes besides.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn context_costs(
    kv: impl Into<Policy>,
    slots: &Slots,
    context: usize,
) -> Result<Vec<ContextCost>, KvUnsupported> {
    let (own, f16) = (bytes_per_token(kv, slots)?, f16_bytes_per_token(slots));
    let lengths = if context > USUAL_CONTEXT { vec![USUAL_CONTEXT, context] } else { vec![context] };
    let cost = |tokens: usize| ContextCost {
        tokens,
        bytes: (tokens as f64 * own) as u64,
        f16_bytes: (tokens as u64).saturating_mul(f16),
    };
    Ok(lengths.into_iter().map(cost).collect())
}

/// Whether what is stored is worth showing beside what f16 would take. The newest tokens are exact, so a short text gains nothing
/// yet: people are told so, and of [`context_costs`].
pub fn is_compressed(stored: u64, f16: u64) -> bool {
    (stored as f64) < COMPRESSED * f16 as f64
}

/// How one slot of a cache is kept and read.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotKernels {
    /// Its place among the model's slots.
    pub slot: usize,
    /// Bits per number of the encoded keys and values.
    pub bits: [f64; 2],
    /// The instructions that make scores of encoded keys and sums of encoded values; `decode` where pages are decoded.
    pub kernels: [&'static str; 2],
}

/// What runs for every slot of a model's cache that lies in pages; heads whose codecs differ are told by the first.
///
/// # Errors
/// If no cache keeps keys and values that way.
pub fn kernels(kv: impl Into<Policy>, slots: &Slots) -> Result<Vec<SlotKernels>, KvUnsupported> {
    let layout = layout(&kv.into(), slots)?;
    let of_slot = |(index, slot): (usize, &kvant_cache::SlotLayout)| {
        let value = slot.heads().first()?.side(kvant_codec::Side::Value)?;
        // A latent without a rotated part is one side for both.
        let key = slot.heads().first()?.side(kvant_codec::Side::Key).unwrap_or(value);
        Some(SlotKernels {
            slot: index,
            bits: [key.codec().bits_per_value(), value.codec().bits_per_value()],
            kernels: [key.codec().kernels().scores, value.codec().kernels().accumulate],
        })
    };
    Ok(layout.slots().iter().enumerate().filter_map(of_slot).collect())
}

fn layout(policy: &Policy, slots: &Slots) -> Result<CacheLayout, KvUnsupported> {
    CacheLayout::new(policy, slots).map_err(|e| KvUnsupported::new(policy, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::KvShape;

    #[test]
    fn people_are_told_of_8k_and_of_the_whole_context() {
        let slots = {
            let mut slots = Slots::new();
            slots.keys_values(0, KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None });
            slots
        };
        let costs = |context| context_costs("int4".parse::<Policy>().unwrap(), &slots, context).unwrap();
        let lengths = |context| costs(context).iter().map(|cost| cost.tokens).collect::<Vec<_>>();
        assert_eq!((lengths(480), lengths(8192), lengths(32768)), (vec![480], vec![8192], vec![8192, 32768]));
        let whole = costs(32768)[1];
        assert_eq!(whole.f16_bytes, 32768 * 512);
        assert_eq!(whole.bytes, 32768 * 144);
        assert!(is_compressed(whole.bytes, whole.f16_bytes) && !is_compressed(9, 10) && !is_compressed(0, 0));
    }

    #[test]
    fn bytes_per_token_add_up_over_layers_heads_and_sides() {
        let slots = Slots::uniform(2, KvShape { kv_heads: 3, key_dim: 64, value_dim: 32, window: None });
        let bytes = |policy: &str| bytes_per_token(policy.parse::<Policy>().unwrap(), &slots).unwrap();
        assert_eq!(bytes("f16"), 2.0 * 3.0 * (64.0 + 32.0) * 2.0);
        assert_eq!(f16_bytes_per_token(&slots), 1152);
        assert_eq!(bytes("k=f32,v=f16"), 2.0 * 3.0 * (64.0 * 4.0 + 32.0 * 2.0));
        let packed = bytes("int4");
        assert!(packed < 0.3 * 1152.0 && packed > 0.25 * 1152.0, "{packed}");
    }
}
