//! A batch gives every sequence the bits that it gets alone.

use crate::model::{Toy, WIDTH, bits};
use kvant_attention::{Attention, Batch, KvCache, PassState};
use kvant_threads::Pool;
use proptest::prelude::*;

/// Policies that sequences of one pass may have: layouts of the same slots.
const POLICIES: [&str; 4] =
    ["int4", "f16", "int4;recent=70;sinks=9", "k=ch4:p128,v=rot4g32:p32;sparse-v=1e-3"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn neither_the_batch_nor_threads_change_a_bit(
        sequences in prop::collection::vec((0..POLICIES.len(), prop::option::weighted(0.2, 50usize..90), 1usize..900), 1..5),
        passes in prop::collection::vec(prop::collection::vec(1usize..90, 5), 1..3),
        window in prop::option::of(40usize..200),
        threads in 1usize..5,
    ) {
        let toy = Toy::new(window);
        let begin = |(policy, streaming, held): &(usize, Option<usize>, usize), salt: usize| {
            let mut cache = toy.cache(POLICIES[*policy], *streaming);
            toy.read(&mut cache, salt as u64, *held);
            cache
        };
        let mut alone = Vec::new();
        for (salt, sequence) in sequences.iter().enumerate() {
            let mut cache = begin(sequence, salt);
            let rows: Vec<Vec<f32>> =
                passes.iter().map(|tokens| toy.read(&mut cache, salt as u64, tokens[salt])).collect();
            alone.push(rows);
        }
        let pool = Pool::new(threads);
        let mut caches: Vec<KvCache> =
            sequences.iter().enumerate().map(|(salt, sequence)| begin(sequence, salt)).collect();
        let salts: Vec<u64> = (0..caches.len() as u64).collect();
        let mut attention = Attention::new().unwrap();
        for (pass, tokens) in passes.iter().enumerate() {
            let tokens = &tokens[..caches.len()];
            let mut batch = Batch::new(&mut attention, caches.iter_mut().collect());
            let rows = pool.install(|| toy.pass(&mut batch, &salts, tokens, |_, _| {}).unwrap());
            prop_assert!(batch.sequences().iter().all(|pass| pass.tokens == 0));
            let mut row = 0;
            for (sequence, tokens) in tokens.iter().enumerate() {
                let own = &rows[row * WIDTH..(row + tokens) * WIDTH];
                prop_assert_eq!(bits(own), bits(&alone[sequence][pass]), "sequence {}, pass {}", sequence, pass);
                row += tokens;
            }
        }
    }
}

/// Long and short sequences together: the long ones' segments are shared between threads.
#[test]
fn a_long_sequence_among_short_ones_decodes_the_same_bits() {
    let toy = Toy::new(None);
    let lengths = [3000, 5, 700, 64];
    let mut steps = Vec::new();
    for threads in [1, 2, 3, 7] {
        let pool = Pool::new(threads);
        let mut caches: Vec<KvCache> = lengths.iter().map(|_| toy.cache("int4", None)).collect();
        for (salt, (cache, len)) in caches.iter_mut().zip(lengths).enumerate() {
            toy.read(cache, salt as u64, len);
        }
        let mut attention = Attention::new().unwrap();
        let mut batch = Batch::new(&mut attention, caches.iter_mut().collect());
        let mut step = || bits(&toy.pass(&mut batch, &[0, 1, 2, 3], &[1; 4], |_, _| {}).unwrap());
        let out: Vec<Vec<u32>> = pool.install(|| (0..3).map(|_| step()).collect());
        steps.push(out);
    }
    assert!(steps.iter().all(|step| *step == steps[0]));
}
