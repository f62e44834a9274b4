//! The cache a session keeps, by the spec a user named.

use half::f16;
use kvant_codec::{BuildError, KvSpec, Side};
use kvant_model::cache::{Cache, CacheFull, ExactCache, LayerState};

/// The cache of one sequence.
pub struct KvCache {
    spec: KvSpec,
    held: Held,
}

enum Held {
    F16(ExactCache<f16>),
    F32(ExactCache<f32>),
}

/// A spec that names codecs no cache uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no KV cache keeps {spec} in this version; f16 and f32 work")]
pub struct KvUnsupported {
    spec: String,
}

impl KvCache {
    /// An empty cache for at most `capacity` tokens of a model whose layers keep `states`.
    ///
    /// # Errors
    /// If no cache keeps keys and values that way: another codec is never put in its place.
    pub fn new(spec: &KvSpec, states: &[LayerState], capacity: usize) -> Result<Self, KvUnsupported> {
        let name = spec.to_string();
        let held = match name.as_str() {
            "f16" => Held::F16(ExactCache::new(states, capacity)),
            "f32" => Held::F32(ExactCache::new(states, capacity)),
            _ => return Err(KvUnsupported { spec: name }),
        };
        Ok(Self { spec: spec.clone(), held })
    }

    /// How keys and values are kept.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// The cache as a forward pass sees it.
    pub fn cache(&self) -> &dyn Cache {
        match &self.held {
            Held::F16(cache) => cache,
            Held::F32(cache) => cache,
        }
    }

    /// The same, to be filled.
    pub fn cache_mut(&mut self) -> &mut dyn Cache {
        match &mut self.held {
            Held::F16(cache) => cache,
            Held::F32(cache) => cache,
        }
    }

    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.held {
            Held::F16(cache) => cache.truncate(len),
            Held::F32(cache) => cache.truncate(len),
        }
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context
    /// to measure the speed of generation on, without reading one.
    ///
    /// # Errors
    /// If `len` is beyond the capacity.
    ///
    /// # Panics
    /// If nothing is held and `len` is not zero.
    pub fn fill(&mut self, len: usize) -> Result<(), CacheFull> {
        match &mut self.held {
            Held::F16(cache) => cache.fill(len),
            Held::F32(cache) => cache.fill(len),
        }
    }

    /// Bytes of the stored keys and values.
    pub fn bytes(&self) -> u64 {
        let bytes = match &self.held {
            Held::F16(cache) => cache.bytes(),
            Held::F32(cache) => cache.bytes(),
        };
        bytes as u64
    }
}

/// Bytes that `spec` takes for each token of a long context, scales and all, over everything a model keeps.
///
/// # Errors
/// If a codec of the spec does not exist for the width of a head, or needs a plan.
pub fn bytes_per_token(spec: &KvSpec, states: &[LayerState]) -> Result<f64, BuildError> {
    let mut bits = 0.0;
    for state in states {
        if let LayerState::KeysValues(shape) = state {
            for (side, dim) in [(Side::Key, shape.key_dim), (Side::Value, shape.value_dim)] {
                let values = (shape.heads * dim) as f64;
                bits += values * spec.side(side).bits_per_value(side, dim)?;
            }
        }
    }
    Ok(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::cache::KvShape;

    fn states() -> Vec<LayerState> {
        vec![LayerState::KeysValues(KvShape { heads: 3, key_dim: 64, value_dim: 32, window: None }); 2]
    }

    fn spec(text: &str) -> KvSpec {
        text.parse().unwrap()
    }

    #[test]
    fn bytes_per_token_add_up_over_layers_heads_and_sides() {
        assert_eq!(bytes_per_token(&spec("f16"), &states()).unwrap(), 2.0 * 3.0 * (64.0 + 32.0) * 2.0);
        let both = bytes_per_token(&spec("k=f32,v=f16"), &states()).unwrap();
        assert_eq!(both, 2.0 * 3.0 * (64.0 * 4.0 + 32.0 * 2.0));
        let packed = bytes_per_token(&spec("int4"), &states()).unwrap();
        assert!(packed < 0.3 * 1152.0 && packed > 0.25 * 1152.0, "{packed}");
    }

    #[test]
    fn a_spec_that_no_cache_keeps_is_refused_by_name() {
        let error = KvCache::new(&spec("int4"), &states(), 8).err().unwrap().to_string();
        assert!(error.contains("int4") && error.contains("f16 and f32"), "{error}");
        assert!(KvCache::new(&spec("k=f16,v=f32"), &states(), 8).is_err());
    }
}
