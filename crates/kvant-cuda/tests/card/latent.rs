//! Attention over latents (MLA, Gemma 4's global layers) in whole models: against the oracle, against the CPU on the same codecs, and against themselves.

use crate::models::{count, folded, is_short, latents, tokens};
use crate::{Loaded, cache, card, distance, last_logits, load, on_cpu, read, same_choice};
use kvant_attention::KvCache;
use kvant_cache::{CacheLayout, PageStore};
use kvant_codec::Side;
use kvant_cuda::{CudaBackend, PassOptions};
use kvant_model::{Checkpoint, Chunk, Description, Model, Pass};
use kvant_oracle::Oracle;

/// Median and largest distance of rows. A token whose second and third expert are nearly alike may go to the other one, so one row says little.
fn by_row(a: &[f32], b: &[f32], width: usize) -> (f64, f64) {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    let mut offs: Vec<f64> = rows.map(|(a, b)| distance(a, b)).collect();
    offs.sort_by(f64::total_cmp);
    (offs[offs.len() / 2], offs[offs.len() - 1])
}

#[test]
fn latents_agree_with_the_oracle() {
    agree_with_the_oracle(latents());
}

#[test]
fn keys_made_of_values_agree_with_the_oracle() {
    agree_with_the_oracle(folded());
}

fn agree_with_the_oracle(models: Vec<(&'static str, Checkpoint)>) {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in models {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(count(200, 75), model.vocabulary());
        let oracle = Oracle::new(&Description::of(&checkpoint).unwrap(), &checkpoint).unwrap();
        let truth: Vec<f32> = oracle.run(&ids, 256).logits.iter().flatten().map(|x| *x as f32).collect();
        let open = || cache(&model, "f16", Some(backend.store()), 256);
        let found = read(&model, &mut open(), &ids, &[ids.len()]);
        let width = model.vocabulary();
        let (median, most) = by_row(&found, &truth, width);
        let same = same_choice(&found, &truth, width);
        let chunks = read(&model, &mut open(), &ids, &[9, 61, 1]) == found;
        println!(
            "{name:16} off by {median:.1e}, at most {most:.1e}, same choice {same} %, same bits in chunks {chunks}"
        );
        if median > 3e-3 || same < 95 || !chunks {
            wrong.push(format!("{name} {median:.1e} {same} {chunks}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn compressed_latents_agree_with_the_cpu() {
    agree_with_the_cpu(latents(), &["int8", "int4"]);
}

#[test]
fn compressed_values_as_keys_agree_with_the_cpu() {
    let mut models = folded();
    models.truncate(count(models.len(), 1)); // experts read no cache
    agree_with_the_cpu(models, &["int4"]);
}

fn agree_with_the_cpu(models: Vec<(&'static str, Checkpoint)>, short: &[&str]) {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in models {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let host = on_cpu(&checkpoint);
        let ids = tokens(count(300, 140), model.vocabulary());
        let policies: &[&str] =
            if is_short() { short } else { &["int8", "int4", "k8v4", "int8;sinks=20;recent=70"] };
        for policy in policies {
            let truth = read(&host, &mut cache(&host, policy, None, 320), &ids, &[300]);
            let exact = read(&host, &mut cache(&host, "f32", None, 320), &ids, &[300]);
            let open = || cache(&model, policy, Some(backend.store()), 320);
            let found = read(&model, &mut open(), &ids, &[100, 37, 1]);
            let width = model.vocabulary();
            let ((off, most), (loss, _)) = (by_row(&found, &truth, width), by_row(&truth, &exact, width));
            let same = same_choice(&found, &truth, width);
            let chunks = read(&model, &mut open(), &ids, &[64, 3, 70]) == found;
            println!(
                "{name:16} {policy:24} off by {off:.1e} (at most {most:.1e}) where the codec is off by {loss:.1e}, same choice {same} %, same bits in chunks {chunks}"
            );
            // As compressed_caches_agree_with_the_cpu has it.
            if off > 0.5 * loss + 2e-2 || !chunks {
                wrong.push(format!("{name} {policy} {off:.1e} of {loss:.1e} {chunks}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn latents_have_the_same_bits_in_batches_and_graphs() {
    for (name, checkpoint) in [latents().remove(0), folded().remove(0)] {
        have_the_same_bits(name, &checkpoint);
    }
}

fn have_the_same_bits(name: &str, checkpoint: &Checkpoint) {
    let card = card();
    let ids = tokens(count(150, 70), 300);
    let steps = [PassOptions::default(), PassOptions { graphs: false, early: false }].map(|options| {
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
    let (_, checkpoint) = folded().remove(0);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let ids = tokens(80, model.vocabulary());
    // The global layer, the second one.
    let slot = model.slots().kv_slots().nth(1).unwrap();
    for policy in ["int8", "int4"] {
        let mut coded = cache(&model, policy, Some(backend.store()), 128);
        read(&model, &mut coded, &ids, &[ids.len()]);
        let mut kept = cache(&model, &format!("{policy};recent=70"), Some(backend.store()), 128);
        read(&model, &mut kept, &ids, &[ids.len()]);
        let before = last_logits(&model, &coded, &ids);
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
                assert!(before != last_logits(&model, &coded, &ids), "{named}");
            }
            backend.pages().write(page, &bytes);
        }
        assert_eq!(before, last_logits(&model, &coded, &ids), "{policy}");
    }
}

#[test]
fn latents_that_do_not_run_are_refused_by_name() {
    let card = card();
    let (_, checkpoint) = latents().remove(0);
    let Loaded { backend, model } = load(&card, &checkpoint);
    for (policy, word) in
        [("ch3", "3 bits"), ("bf16", "f16"), ("k=f16,v=sym8g32", "f16 rotated part"), ("kivi4", "tokens")]
    {
        let layout = CacheLayout::new(&policy.parse().unwrap(), model.slots()).unwrap();
        let refused = backend.check_cache(&layout).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("layer 0"), "{policy}: {refused}");
    }
}
