//! Recurrent state in fewer bits than f32: what the CPU makes of it, and the same bits however tokens come.

use super::*;
use kvant_conformance::wide;

#[test]
fn narrow_states_are_rounded_once_at_the_end_of_a_chunk() {
    let card = card();
    let n = count(300, 150);
    for (name, checkpoint) in wide::recurrent(is_short()) {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let (host, ids) = (on_cpu(&checkpoint), tokens(n, model.vocabulary()));
        let here = |policy: &str, chunks: &[usize]| {
            read(&model, &mut cache(&model, policy, Some(backend.store()), n + 64), &ids, chunks)
        };
        let there = |policy: &str| read(&host, &mut cache(&host, policy, None, n + 64), &ids, &[n]);
        let exact = there("f16");
        for state in ["bf16", "int8"] {
            let policy = format!("f16;state={state}");
            let (found, truth) = (here(&policy, &[n]), there(&policy));
            let (off, loss) = (distance(&found, &truth), distance(&truth, &exact));
            println!("{name} {state}: off by {off:.1e} where the type is off by {loss:.1e}");
            assert!(off < 0.5 * loss + 5e-3, "{name} {state}: {off:.1e} of {loss:.1e}");
            // Token by token, by chunks, and both.
            for chunks in
                [&[1, 63, n - 66, 1][..], &[70, n - 72, 1], &[64], &[11]].into_iter().take(count(4, 3))
            {
                assert!(found == here(&policy, chunks), "{name} {state}: chunks of {chunks:?}");
            }
        }
    }
}

/// Sequences that bring many tokens go by chunks, others of the same pass token by token.
#[test]
fn a_batch_has_the_bits_of_its_sequences_alone() {
    let card = card();
    for (name, checkpoint) in wide::recurrent(is_short()) {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let (n, counts) = (100, [1, 70, 13, 5]);
        let ids = tokens(n + 70, model.vocabulary());
        let mut here = cache(&model, "f16", Some(backend.store()), n + 128);
        read(&model, &mut here, &ids[..n], &[n]);
        let fork = || here.over(here.sequence().fork().unwrap());
        let alone = counts.map(|count| read(&model, &mut fork(), &ids[n..n + count], &[count])).concat();
        let mut forks = counts.map(|_| fork());
        let chunks = counts.map(|count| Chunk::new(&ids[n..n + count], 0..count));
        let mut batch = forks.each_mut().map(KvCache::sequence_mut);
        let all = model.forward(Pass::new(&chunks), &mut batch).unwrap().into_logits();
        assert!(all.data() == alone, "{name}");
    }
}
