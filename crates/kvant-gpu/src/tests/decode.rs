//! Whole models whose heads teams of threads attend with: 64 and 128 channels, token by token.

use super::{gpu, short_or_all};
use crate::arithmetic::Arithmetic;
use crate::backend::GpuBackend;
use crate::device::Gpu;
use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_model::gguf::Gguf;
use kvant_model::synth::{self, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, Model, Pass};

const TOKENS: usize = 210;

fn checkpoint(head_dim: usize, heads: usize, kv_heads: usize) -> Checkpoint {
    let shape = Shape {
        layers: 2,
        hidden: 128,
        heads,
        kv_heads,
        head_dim,
        ffn: 128,
        vocabulary: 320,
        ..Shape::LLAMA_3_2_1B
    };
    let bytes = synth::model(&shape, WeightType::Int8, 3).unwrap().to_bytes().unwrap();
    Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap())
}

struct Loaded {
    backend: GpuBackend,
    model: Model,
}

impl Loaded {
    fn new(gpu: &Gpu, checkpoint: &Checkpoint) -> Loaded {
        let backend = GpuBackend::new(gpu);
        let model = Model::load(&backend, checkpoint).unwrap();
        Loaded { backend, model }
    }

    /// The input of the second layer after one attention.
    fn after_one_layer(&self, policy: &str) -> Vec<f32> {
        let policy: Policy = policy.parse().unwrap();
        let store = self.backend.store();
        let mut cache = KvCache::in_arena(policy, self.model.slots(), TOKENS + 20, store).unwrap();
        let ids: Vec<u32> =
            kvant_codec::split_mix(5).take(TOKENS).map(|word| (word >> 40) as u32 % 320).collect();
        let mut hidden = Vec::new();
        for id in ids {
            let mut observer = |layer: usize, x: &kvant_model::Rows| {
                if layer == 1 {
                    hidden.extend_from_slice(x.data());
                }
            };
            let ids = [id];
            let chunk = [Chunk::new(&ids, 0..0)];
            let pass = Pass::new(&chunk).observed(&mut observer);
            self.model.forward(pass, &mut [cache.sequence_mut()]).unwrap();
        }
        hidden
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, off| if off.is_nan() { off } else { most.max(off) })
}

/// The logits of every token, so many at once in turns, and what the cache is then.
fn logits(of: &Loaded, policy: &str, ids: &[u32], chunks: &[usize]) -> Vec<f32> {
    let store = of.backend.store();
    let policy: Policy = policy.parse().unwrap();
    let mut cache = KvCache::in_arena(policy, of.model.slots(), TOKENS + 20, store).unwrap();
    let (mut all, mut at) = (Vec::new(), 0);
    for &count in chunks.iter().cycle() {
        let part = &ids[at..ids.len().min(at + count)];
        if part.is_empty() {
            return all;
        }
        let chunk = [Chunk::new(part, 0..part.len())];
        let outputs = of.model.forward(Pass::new(&chunk), &mut [cache.sequence_mut()]).unwrap();
        (0..part.len()).for_each(|row| all.extend_from_slice(outputs.row(row).logits()));
        at += part.len();
    }
    all
}

/// What speculative decoding stands on, in integers: norms, products of several weights, attention by teams, by fours and by the general
/// kernel, over pages that end between the tokens of a pass.
#[test]
fn few_tokens_have_the_bits_that_each_has_alone() {
    let Some(gpu) = gpu() else { return };
    let gpu = gpu.reopened(Arithmetic::FAST).unwrap();
    let ids: Vec<u32> = kvant_codec::split_mix(7).take(80).map(|word| (word >> 40) as u32 % 320).collect();
    for (head_dim, heads, kv_heads, policies) in [
        (64, 4, 1, &["int4", "f16", "k8v4"][..]),
        (32, 4, 2, &["int4", "int8"]),
        (128, 3, 1, &["int4;recent=40"]),
    ] {
        let loaded = Loaded::new(&gpu, &checkpoint(head_dim, heads, kv_heads));
        for policy in &policies[..short_or_all(1, policies.len())] {
            let alone = logits(&loaded, policy, &ids, &[1]);
            let together = logits(&loaded, policy, &ids, &[2, 8, 1, 5, 3]);
            let width = alone.len() / ids.len();
            for (token, (a, b)) in alone.chunks(width).zip(together.chunks(width)).enumerate() {
                assert!(a == b, "{head_dim} x {heads}/{kv_heads} {policy}: token {token} has other bits");
            }
            assert_eq!(alone.len(), together.len());
        }
    }
}

/// The token's own key in sinks, in the tail and at the start of a page; queries made by attention itself and before it.
#[test]
fn teams_decode_as_f32_does_within_the_rounding_to_bytes() {
    let Some(gpu) = gpu() else { return };
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    for (head_dim, heads, kv_heads) in [(64, 4, 1), (128, 3, 1), (64, 8, 1)] {
        let checkpoint = checkpoint(head_dim, heads, kv_heads);
        let [plain, fast] = ways.each_ref().map(|gpu| Loaded::new(gpu, &checkpoint));
        let policies = [("int4;sinks=0;recent=100", 2e-2), ("int4", 2e-2), ("f16", 5e-4)];
        for (policy, bound) in policies.into_iter().take(short_or_all(1, policies.len())) {
            let [truth, found] = [&plain, &fast].map(|of| of.after_one_layer(policy));
            let size = truth.iter().fold(0f32, |size, x| size.max(x.abs()));
            let off = largest_difference(&truth, &found) / size;
            println!("{head_dim} × {heads}/{kv_heads} {policy:24} off by {off:.1e}");
            assert!(off <= bound, "{head_dim} × {heads}/{kv_heads} {policy}: {off:e}");
        }
    }
}
