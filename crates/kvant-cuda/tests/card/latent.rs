//! Attention over latents (MLA, Gemma 4's global layers): bits in graphs, bytes of pages, and what does not run.

use crate::{Loaded, cache, card, count, is_short, load, read, tokens};
use kvant_attention::KvCache;
use kvant_cache::{CacheLayout, PageStore};
use kvant_codec::Side;
use kvant_conformance::wide::{folded, latents};
use kvant_cuda::{CudaBackend, PassOptions};
use kvant_model::{Checkpoint, Chunk, Model, Pass};

/// Logits of one more token after what a cache holds.
fn one_more(model: &Model, cache: &KvCache, ids: &[u32]) -> Vec<f32> {
    let mut fork = cache.over(cache.sequence().fork().unwrap());
    read(model, &mut fork, &ids[..1], &[1])
}

#[test]
fn latents_have_the_same_bits_in_batches_and_graphs() {
    for (name, checkpoint) in [latents(is_short()).remove(0), folded(is_short()).remove(0)] {
        have_the_same_bits(name, &checkpoint);
    }
}

fn have_the_same_bits(name: &str, checkpoint: &Checkpoint) {
    let card = card();
    let ids = tokens(count(150, 70), 300);
    let steps =
        [PassOptions::default(), PassOptions { early: false, graphs: false, fused: false }].map(|options| {
            let backend = CudaBackend::new(&card).unwrap().with_options(options);
            let model = Model::load(&backend, checkpoint).unwrap();
            let mut first = cache(&model, "int4", Some(backend.store()), 320);
            read(&model, &mut first, &ids, &[ids.len()]);
            let fork = first.sequence().fork().unwrap();
            let mut caches: Vec<KvCache> = vec![first.over(fork), first];
            let mut found = Vec::new();
            for step in 0..count(66, 6) as u32 {
                let (a, b) = ([step % 300], [7 * step % 300]);
                let chunks = [Chunk::new(&a, 0..1), Chunk::new(&b, 0..1)];
                let mut batch: Vec<_> = caches.iter_mut().map(KvCache::sequence_mut).collect();
                found.push(model.forward(Pass::new(&chunks), &mut batch).unwrap().into_logits().into_vec());
            }
            found
        });
    assert_eq!(steps[0], steps[1], "{name}");
    // The first of the two by itself.
    let Loaded { backend, model } = load(&card, checkpoint);
    let mut alone = cache(&model, "int4", Some(backend.store()), 320);
    read(&model, &mut alone, &ids, &[ids.len()]);
    for (step, both) in steps[0].iter().enumerate() {
        let found = read(&model, &mut alone, &[step as u32 % 300], &[1]);
        assert_eq!(found, both[..found.len()], "{name}: step {step}");
    }
}

#[test]
fn pages_of_values_and_turned_keys_are_the_codecs_and_a_corrupt_byte_is_seen() {
    let card = card();
    let (_, checkpoint) = folded(is_short()).remove(0);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let ids = tokens(80, model.vocabulary());
    // The global layer, the second one.
    let slot = model.slots().kv_slots().nth(1).unwrap();
    for policy in ["int8", "int4"] {
        let mut coded = cache(&model, policy, Some(backend.store()), 128);
        read(&model, &mut coded, &ids, &[ids.len()]);
        let mut kept = cache(&model, &format!("{policy};recent=70"), Some(backend.store()), 128);
        read(&model, &mut kept, &ids, &[ids.len()]);
        let before = one_more(&model, &coded, &ids);
        for (head, side) in [(0, Side::Key), (0, Side::Value), (1, Side::Key), (1, Side::Value)] {
            let layout = coded.sequence().layout();
            let codec = layout.slots()[slot.index()].heads()[head].side(side).unwrap().codec();
            let exact = kept.sequence().side(slot, head, side).unwrap().exact_id(0).unwrap();
            let page = coded.sequence().side(slot, head, side).unwrap().encoded_id(0).unwrap();
            let (page_tokens, dim) = (codec.page_tokens(), codec.dim());
            assert_eq!(dim, if side == Side::Key { 32 } else { 128 });
            let (mut halves, mut bytes) = (vec![0; 2 * page_tokens * dim], vec![0; codec.page_bytes()]);
            backend.pages().read(exact, &mut halves);
            backend.pages().read(page, &mut bytes);
            let number = |n: usize| {
                let i = if side == Side::Key { n % dim * page_tokens + n / dim } else { n };
                half::f16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]).to_f32()
            };
            let rows: Vec<f32> = (0..page_tokens * dim).map(number).collect();
            let mut want = vec![0; codec.page_bytes()];
            codec.encode(&rows, &mut want).unwrap();
            assert!(bytes == want, "{policy} head {head} {side:?}: not the CPU's bytes");
            // A byte of a key's scale is of every token. Codes, and scales of values, are of one, which may have no weight: so all of them.
            let (scale, codes) = (if side == Side::Key { 1..2 } else { 0..4 * dim }, 4 * dim..bytes.len());
            for part in [scale.step_by(2), codes.step_by(1)] {
                let (mut flipped, named) = (bytes.clone(), format!("{policy} head {head} {side:?} {part:?}"));
                part.for_each(|at| flipped[at] ^= 0x35);
                backend.pages().write(page, &flipped);
                assert!(before != one_more(&model, &coded, &ids), "{named}");
            }
            backend.pages().write(page, &bytes);
        }
        assert_eq!(before, one_more(&model, &coded, &ids), "{policy}");
    }
}

#[test]
fn latents_that_do_not_run_are_refused_by_name() {
    let card = card();
    let (_, checkpoint) = latents(is_short()).remove(0);
    let Loaded { backend, model } = load(&card, &checkpoint);
    for (policy, word) in
        [("ch3", "3 bits"), ("bf16", "f16"), ("k=f16,v=sym8g32", "f16 rotated part"), ("kivi4", "tokens")]
    {
        let layout = CacheLayout::new(&policy.parse().unwrap(), model.slots()).unwrap();
        let refused = backend.check_cache(&layout).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("layer 0"), "{policy}: {refused}");
    }
}
