//! Sequences that go through the network together get the bits that each gets alone.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_threads::Pool;
use std::path::Path;

const CONTEXT: usize = 400;

fn model(name: &str) -> Model {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    kvant_cpu::load(&Checkpoint::open(fixtures.join(name)).unwrap(), LoadOptions::default()).unwrap()
}

fn cache(model: &Model, policy: &str) -> KvCache {
    KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), CONTEXT).unwrap()
}

/// The tokens of sequence `number`; all differ, in length too.
fn tokens(model: &Model, number: usize) -> Vec<u32> {
    let count = model.position_limit().unwrap_or(CONTEXT).min(90 + 13 * number);
    (0..count).map(|i| ((i * 7919 + number * 104_729 + 13) % model.vocabulary()) as u32).collect()
}

/// Bits of the logits after every token, in one pass.
fn alone(model: &Model, policy: &str, tokens: &[u32]) -> Vec<u32> {
    let mut kv = cache(model, policy);
    let chunk = Chunk::new(tokens, 0..tokens.len());
    model
        .forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()])
        .unwrap()
        .into_logits()
        .data()
        .iter()
        .map(|z| z.to_bits())
        .collect()
}

/// How many tokens sequence `number` brings to a pass: stretches of a prompt and single tokens by turns, so that every
/// pass holds both; sometimes nothing.
fn share(number: usize, pass: usize) -> usize {
    match (number + pass) % 5 {
        0 => 31 + number,
        1 => 0,
        _ => 1,
    }
}

/// The same bits, with all sequences in each pass that have something to bring.
fn together(model: &Model, policy: &str, all: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut caches: Vec<KvCache> = all.iter().map(|_| cache(model, policy)).collect();
    let mut bits: Vec<Vec<u32>> = vec![Vec::new(); all.len()];
    let mut pass = 0;
    while caches.iter().zip(all).any(|(kv, tokens)| kv.len() < tokens.len()) {
        let (mut chunks, mut brought) = (Vec::new(), Vec::new());
        let mut owners = Vec::new();
        for (number, (kv, tokens)) in caches.iter_mut().zip(all).enumerate() {
            let at = kv.len();
            let count = share(number, pass).min(tokens.len() - at);
            if count > 0 {
                chunks.push(Chunk::new(&tokens[at..at + count], 0..count));
                brought.push(kv.sequence_mut());
                owners.extend(std::iter::repeat_n(number, count));
            }
        }
        pass += 1;
        if chunks.is_empty() {
            continue;
        }
        let logits = model.forward(Pass::new(&chunks), &mut brought).unwrap().into_logits();
        assert_eq!(logits.tokens(), owners.len());
        for (row, owner) in owners.into_iter().enumerate() {
            bits[owner].extend(logits.row(row).iter().map(|z| z.to_bits()));
        }
    }
    bits
}

#[test]
fn a_sequence_gets_the_same_bits_alone_and_among_any_number_of_others() {
    let model = model("smollm2");
    let all: Vec<Vec<u32>> = (0..16).map(|number| tokens(&model, number)).collect();
    for policy in ["int4", "f16", "k=ch4:p128,v=rot4g32;recent=70;sinks=1"] {
        let expected: Vec<Vec<u32>> = all.iter().map(|tokens| alone(&model, policy, tokens)).collect();
        for count in [1, 2, 3, 7, 16] {
            let got = together(&model, policy, &all[..count]);
            for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(got == expected, "{policy}: sequence {number} of {count}");
            }
        }
    }
}

#[test]
fn windows_experts_and_rotations_by_context_do_not_mix_sequences_up() {
    for name in ["gemma3", "qwen3_moe", "phi3_longrope", "gpt2", "qwen2_yarn", "mistral"] {
        let model = model(name);
        let all: Vec<Vec<u32>> = (0..5).map(|number| tokens(&model, number)).collect();
        for threads in [1, 2] {
            let got = Pool::new(threads).install(|| together(&model, "int4", &all));
            for (number, (got, tokens)) in got.iter().zip(&all).enumerate() {
                assert!(
                    *got == alone(&model, "int4", tokens),
                    "{name}: sequence {number}, {threads} threads"
                );
            }
        }
    }
}
