//! What a saved session depends on, in 32 bytes.

use kvant_cache::Policy;
use kvant_cache::snapshot::{Numerics, Signature};
use kvant_codec::Tier;
use kvant_cpu::{ActivationType, LoadOptions};
use kvant_model::checkpoint::ConfigSource;
use kvant_model::{AdapterMix, Checkpoint, LoadError};
use sha2::{Digest, Sha256};

/// SHA-256 over everything that determines what a cache holds of given tokens: the checkpoint's own signature (its
/// description with the rules of positions, the tensor directory, and *samples* of the weights: a few flipped bits in a
/// large tensor go unnoticed), the tokenizer, how weights are packed, what activations are rounded to, and the policy with
/// its window and its plan, where it takes numbers from one. The context counts for models that rotate by it (LongRoPE, dynamic
/// scaling); other models may go on with a larger one.
///
/// # Errors
/// If a file beside the weights cannot be read.
pub fn signature(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    policy: &Policy,
    context: usize,
) -> Result<Signature, LoadError> {
    // In a GGUF file the tokenizer is part of the description.
    let tokenizer = match checkpoint.config() {
        ConfigSource::Gguf(_) => None,
        ConfigSource::Config(_) => checkpoint.companion_text("tokenizer.json")?,
    };
    let rotation = if rotates_by_context(checkpoint) { context as u64 } else { 0 };
    let packed = options.weights.map_or("", |dtype| dtype.name());
    let activations = match options.activations {
        ActivationType::Int8 => "int8",
        ActivationType::F32 => "f32",
    };
    let mut hash = Sha256::new();
    hash.update(b"kvant session signature 1\0");
    for part in [
        &checkpoint.signature().0[..],
        tokenizer.unwrap_or_default().as_bytes(),
        packed.as_bytes(),
        activations.as_bytes(),
        policy.to_string().as_bytes(),
        &(policy.rule.streaming.unwrap_or(0) as u64).to_le_bytes(),
        &rotation.to_le_bytes(),
    ]
    .into_iter()
    // Last and only where there is one, so that what was saved without a plan keeps its signature.
    .chain(policy.plan.iter().filter(|_| policy.needs_plan()).map(|plan| &plan.digest()[..]))
    {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Ok(hash.finalize().into())
}

/// What sequences are saved under that were read with adapters; without any, the signature itself.
pub(crate) fn adapted(signature: Signature, adapters: &AdapterMix) -> Signature {
    match adapters.digest() {
        None => signature,
        Some(digest) => {
            let hash = Sha256::new().chain_update(b"kvant adapted 1\0").chain_update(signature);
            hash.chain_update(digest).finalize().into()
        }
    }
}

/// Raised whenever results of the same model, policy and instruction set change their rounding. 2: scales of `int4` and `klt` are
/// fitted to the numbers.
const NUMERICS: u32 = 2;

/// The rounding that saved sequences were computed with: the version of kvant's arithmetic and the instruction set. A sequence of
/// other numerics may go on; what it says then may differ in a last bit from what it would have said, and one line tells.
pub fn numerics() -> Numerics {
    numerics_of(NUMERICS)
}

/// The same of the first version, which files are of that say nothing.
pub(crate) fn first_numerics() -> Numerics {
    numerics_of(1)
}

fn numerics_of(version: u32) -> Numerics {
    let mut hash = Sha256::new();
    hash.update(b"kvant numerics\0");
    hash.update(version.to_le_bytes());
    hash.update(Tier::select().map_or("", Tier::name));
    hash.finalize().into()
}

/// Raised whenever the portable GPU backend, whose devices are called `gpu (…)`, rounds in another way. 2: int4 pages meet queries and
/// weights of 8 bits, as on the CPU, where the adapter has integer dot products.
const GPU_NUMERICS: u32 = 2;

/// As [`NUMERICS`], of products on CUDA cards alone. 1: weights are f16 numbers in every product, summed in segments of 1,024 channels. 2:
/// squares of a head's numbers are rounded before they are added up. 3: the warps of decode attention are merged one after another.
const CUDA_NUMERICS: u32 = 3;

/// The same of a device, by its name and by which of its kernels compute: adapters differ, and so may versions of their drivers, which are
/// part of no name.
pub(crate) fn device_numerics(device: &str, arithmetic: &str) -> Numerics {
    let mut hash = Sha256::new();
    hash.update(b"kvant numerics\0");
    hash.update(NUMERICS.to_le_bytes());
    if device.starts_with("cuda") {
        hash.update(CUDA_NUMERICS.to_le_bytes());
    }
    hash.update(b"device ");
    hash.update(device);
    if device.starts_with("gpu (") {
        hash.update(GPU_NUMERICS.to_le_bytes());
        hash.update(arithmetic);
    }
    hash.finalize().into()
}

/// Whether the model's frequencies depend on the context: one set for short ones and one for long, or a growing base.
pub(crate) fn rotates_by_context(checkpoint: &Checkpoint) -> bool {
    match checkpoint.config() {
        ConfigSource::Gguf(_) => checkpoint.names().any(|name| name.contains("rope_factors_long")),
        ConfigSource::Config(config) => {
            let text = config.to_string();
            text.contains("\"long_factor\"") || text.contains("\"dynamic\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::Plan;
    use kvant_model::gguf::{Gguf, Writer};
    use kvant_model::{DType, Tensor};

    fn checkpoint(architecture: &str, name: &str, value: f32) -> Checkpoint {
        let mut writer = Writer::new(architecture);
        writer.tensor(Tensor::from_f32(name, vec![4], &[1.0, 2.0, 3.0, value]).unwrap());
        Checkpoint::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap())
    }

    #[test]
    fn whatever_changes_the_cache_changes_the_signature() {
        let usual = checkpoint("llama", "w", 4.0);
        let of = |checkpoint: &Checkpoint, weights, policy: &str, context| {
            let options = LoadOptions { weights, ..LoadOptions::default() };
            signature(checkpoint, &options, &policy.parse().unwrap(), context).unwrap()
        };
        let first = of(&usual, None, "int4", 100);
        assert_eq!(first, of(&checkpoint("llama", "w", 4.0), None, "int4", 200));
        for other in [
            of(&checkpoint("llama", "w", 4.5), None, "int4", 100),
            of(&checkpoint("qwen2", "w", 4.0), None, "int4", 100),
            of(&usual, Some(DType::Int8G32), "int4", 100),
            of(&usual, None, "int4;recent=64", 100),
        ] {
            assert_ne!(first, other);
        }
        let planned = |made: &str| {
            let policy = "k=klt4,v=rot4g32".parse().unwrap();
            let plan = Plan::new([0; 32], policy, made, Vec::new()).unwrap();
            let plan = std::sync::Arc::new(plan);
            signature(&usual, &LoadOptions::default(), &plan.with(plan.policy()), 100).unwrap()
        };
        assert_eq!(planned("once"), planned("once"));
        assert!(first != planned("once") && planned("once") != planned("twice"));
        let long = checkpoint("phi3", "rope_factors_long.weight", 4.0);
        assert_ne!(of(&long, None, "int4", 100), of(&long, None, "int4", 200));
    }
}
