//! Attention over latents (MLA) in graphs, and what of it does not run.

use crate::{Loaded, cache, card, count, is_short, load, read, tokens};
use kvant_attention::KvCache;
use kvant_cache::CacheLayout;
use kvant_conformance::wide::latents;
use kvant_cuda::{CudaBackend, PassOptions};
use kvant_model::{Chunk, Model, Pass};

#[test]
fn latents_have_the_same_bits_in_batches_and_graphs() {
    let card = card();
    let (_, checkpoint) = latents(is_short()).remove(0);
    let ids = tokens(count(150, 70), 300);
    let steps = [PassOptions::default(), PassOptions { graphs: false, early: false }].map(|options| {
        let backend = CudaBackend::new(&card).unwrap().with_options(options);
        let model = Model::load(&backend, &checkpoint).unwrap();
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
    assert_eq!(steps[0], steps[1]);
    // The first of the two by itself.
    let Loaded { backend, model } = load(&card, &checkpoint);
    let mut alone = cache(&model, "int4", Some(backend.store()), 320);
    read(&model, &mut alone, &ids, &[ids.len()]);
    for (step, both) in steps[0].iter().enumerate() {
        let found = read(&model, &mut alone, &[step as u32 % 300], &[1]);
        assert_eq!(found, both[..found.len()], "step {step}");
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
