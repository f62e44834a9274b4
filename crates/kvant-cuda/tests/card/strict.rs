//! Strict mode on a card against strict mode on the CPU: a query reads its own page as it was encoded. Where there is no card the test
//! says so and ends; `tests/driver/libcuda.cpp` stands in for one, and `KVANT_CARD_TESTS=short` keeps it from taking long.
#![cfg(feature = "cuda")]

use kvant_attention::KvCache;
use kvant_cache::{Arena, Mode, Policy, Store};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_cuda::{Card, CudaBackend};
use kvant_model::gguf::Gguf;
use kvant_model::synth::{self, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, Model};
use std::sync::Arc;

fn checkpoint() -> Checkpoint {
    let shape = Shape {
        layers: 1,
        hidden: 128,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        ffn: 128,
        vocabulary: 300,
        tied: false,
        rope_base: 10_000.0,
        context: 4096,
    };
    let bytes = synth::model(&shape, WeightType::F16, 5).unwrap().to_bytes().unwrap();
    Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap())
}

fn cache(model: &Model, policy: &str, mode: Mode, store: Store) -> KvCache {
    let mut policy: Policy = policy.parse().unwrap();
    policy.rule.mode = mode;
    KvCache::in_arena(policy, model.slots(), 400, store).unwrap()
}

/// Logits of all tokens, read in chunks that end where pages do.
fn read(model: &Model, mut cache: KvCache, tokens: &[u32]) -> Vec<f32> {
    let (head, tail) = tokens.split_at(4 + 64);
    let pass = |tokens: &[u32], cache: &mut KvCache| {
        model.forward(&[Chunk { tokens, wanted: 0..tokens.len() }], cache).unwrap().into_vec()
    };
    [pass(head, &mut cache), pass(tail, &mut cache)].concat()
}

/// |a − b| against |b|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (off / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn queries_read_their_own_pages_as_bytes() {
    let card = match Card::open(0) {
        Ok(card) => Arc::new(card),
        Err(error) => return println!("skipped: {error}"),
    };
    let checkpoint = checkpoint();
    let backend = CudaBackend::new(&card).unwrap();
    let model = Model::load(&backend, &checkpoint).unwrap();
    let cpu = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
    let exact = |mode| cache(&cpu, "f32", mode, Arena::new().into());
    // A last page of 20 tokens, which is padded.
    let tokens: Vec<u32> = (0..4 + 64 + 20).map(|n| 31 * n % 300).collect();
    let is_short = std::env::var("KVANT_CARD_TESTS").is_ok_and(|value| value == "short");
    let policies = if is_short { &["int4", "f16"][..] } else { &["int4", "k8v4", "int8", "f16"] };
    for policy in policies.iter().copied() {
        let [strict, deployed] = [Mode::Strict, Mode::Deployed].map(|mode| {
            let found = read(&model, cache(&model, policy, mode, backend.store()), &tokens);
            let want = read(&cpu, cache(&cpu, policy, mode, Arena::new().into()), &tokens);
            let (off, loss) = (distance(&found, &want), distance(&want, &read(&cpu, exact(mode), &tokens)));
            println!("{policy} {mode:?}: off by {off:.1e} where the codec is off by {loss:.1e}");
            // A key or value in the middle between two codes may get the other one.
            assert!(off < 0.25 * loss + 2e-3, "{policy} {mode:?}: {off:.1e} of {loss:.1e}");
            found
        });
        let off = distance(&strict, &deployed);
        println!("{policy}: strict mode moves logits by {off:.1e}");
        match policy {
            "f16" => assert_eq!(strict, deployed),
            "int4" => assert!(off > 4e-3, "{off}"),
            _ => assert!(off > 0.0),
        }
    }
    // Its codes are gone, so a page cannot be gone on with.
    let mut begun = cache(&model, "int4", Mode::Strict, backend.store());
    model.forward(&[Chunk { tokens: &tokens[..70], wanted: 0..1 }], &mut begun).unwrap();
    let refused = model.forward(&[Chunk { tokens: &[1], wanted: 0..1 }], &mut begun).unwrap_err();
    assert!(refused.to_string().contains("strict mode"), "{refused}");
}
