//! Strict mode on a card against strict mode on the CPU: a query reads its own page as it was encoded.

use crate::{Loaded, card, distance, is_short, load, on_cpu};
use kvant_attention::KvCache;
use kvant_cache::{Arena, Mode, Policy, Store};
use kvant_conformance::wide::{llama, tiny};
use kvant_model::synth::WeightType;
use kvant_model::{Chunk, Model, Pass};

fn cache(model: &Model, policy: &str, mode: Mode, store: Store) -> KvCache {
    let mut policy: Policy = policy.parse().unwrap();
    policy.rule.mode = mode;
    KvCache::in_arena(policy, model.slots(), 400, store).unwrap()
}

/// Logits of all tokens, read in chunks that end where pages do.
fn read(model: &Model, mut cache: KvCache, tokens: &[u32]) -> Vec<f32> {
    let (head, tail) = tokens.split_at(4 + 64);
    let pass = |tokens: &[u32], cache: &mut KvCache| {
        model
            .forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [cache.sequence_mut()])
            .unwrap()
            .into_logits()
            .into_vec()
    };
    [pass(head, &mut cache), pass(tail, &mut cache)].concat()
}

#[test]
fn queries_read_their_own_pages_as_bytes() {
    let card = card();
    let checkpoint = llama(&tiny(), WeightType::F16);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let cpu = on_cpu(&checkpoint);
    let exact = |mode| cache(&cpu, "f32", mode, Arena::new().into());
    // A last page of 20 tokens, which is padded.
    let tokens: Vec<u32> = (0..4 + 64 + 20).map(|n| 31 * n % 300).collect();
    let policies = if is_short() { &["int4", "f16"][..] } else { &["int4", "k8v4", "int8", "f16"] };
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
    model.forward(Pass::new(&[Chunk::new(&tokens[..70], 0..1)]), &mut [begun.sequence_mut()]).unwrap();
    let refused =
        model.forward(Pass::new(&[Chunk::new(&[1], 0..1)]), &mut [begun.sequence_mut()]).unwrap_err();
    assert!(refused.to_string().contains("strict mode"), "{refused}");
}
