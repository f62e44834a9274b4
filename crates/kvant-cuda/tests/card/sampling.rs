//! The beginnings of rankings that a card sends in place of logits, against the logits themselves.

use crate::card;
use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_conformance::wide::{llama, tiny};
use kvant_cuda::{CudaBackend, PassOptions};
use kvant_model::synth::{Shape, WeightType};
use kvant_model::{Chunk, Form, Model, Output, Pass, TopK, TopTokens};

/// A model of one layer with a vocabulary of more than one run of keys.
fn model(backend: &CudaBackend, vocabulary: usize) -> Model {
    Model::load(backend, &llama(&Shape { vocabulary, ..tiny() }, WeightType::F16)).unwrap()
}

fn cache(model: &Model, backend: &CudaBackend) -> KvCache {
    KvCache::in_arena("int4".parse::<Policy>().unwrap(), model.slots(), 400, backend.store()).unwrap()
}

#[test]
fn lists_are_the_beginnings_of_rankings() {
    let card = card();
    let backend = CudaBackend::new(&card).unwrap();
    let model = model(&backend, 4500);
    let tokens: Vec<u32> = (0..9).map(|n| 31 * n % 4500).collect();
    let chunks = [Chunk::new(&tokens, 3..9)];
    let logits = model
        .forward(Pass::new(&chunks), &mut [cache(&model, &backend).sequence_mut()])
        .unwrap()
        .into_logits();
    let of = |count, temperature| Some(TopK { count, temperature });
    let wanted = [of(1, None), None, of(40, None), of(256, Some(0.7)), of(1, Some(1.5)), of(256, None)];
    // The fifth is not enough, and comes as logits.
    let accept = |row: usize, _: &TopTokens| row != 4;
    let chunks = [Chunk::new(&tokens, 3..9).form(Form::Top(&wanted))];
    let pass = Pass::new(&chunks).accept(&accept);
    let outputs = model.forward(pass, &mut [cache(&model, &backend).sequence_mut()]).unwrap();
    assert_eq!(outputs.rows(), 6);
    for (row, wanted) in wanted.into_iter().enumerate() {
        match (outputs.row(row), wanted.filter(|_| row != 4)) {
            (Output::Top(top), Some(wanted)) => {
                assert_eq!(Some(top), TopTokens::of(logits.row(row), wanted).as_ref(), "row {row}");
            }
            (Output::Logits(found), None) => assert_eq!(found, logits.row(row), "row {row}"),
            (found, wanted) => panic!("row {row}: {found:?} for {wanted:?}"),
        }
    }
}

#[test]
fn a_step_gives_the_same_lists_in_a_batch_and_as_a_graph() {
    let card = card();
    let options = [PassOptions::default(), PassOptions { early: false, graphs: false, fused: false }];
    let found = options.map(|options| {
        let backend = CudaBackend::new(&card).unwrap().with_options(options);
        let model = model(&backend, 600);
        let mut first = cache(&model, &backend);
        let prompt: Vec<u32> = (0..70).map(|n| 17 * n % 600).collect();
        model.forward(Pass::new(&[Chunk::new(&prompt, 0..0)]), &mut [first.sequence_mut()]).unwrap();
        let mut caches: Vec<KvCache> = vec![first];
        for _ in 0..2 {
            let fork = caches[0].sequence().fork().unwrap();
            caches.push(caches[0].over(fork));
        }
        let (mut ids, mut chosen) = ([1u32, 1, 2], Vec::new());
        for _ in 0..6 {
            let top = [Some(TopK { count: 8, temperature: Some(1.0) })];
            let chunk = |id| Chunk::new(std::slice::from_ref(id), 0..1).form(Form::Top(&top));
            let chunks: Vec<Chunk<'_>> = ids.iter().map(chunk).collect();
            let mut batch: Vec<_> = caches.iter_mut().map(KvCache::sequence_mut).collect();
            let outputs = model.forward(Pass::new(&chunks), &mut batch).unwrap();
            for (row, id) in ids.iter_mut().enumerate() {
                let Output::Top(top) = outputs.row(row) else { panic!("a list") };
                assert_eq!(top.tokens.len(), 8);
                *id = top.tokens[0].0;
                chosen.push(top.clone());
            }
            let n = chosen.len();
            assert_eq!(chosen[n - 3], chosen[n - 2], "two sequences that are alike");
        }
        chosen
    });
    assert_eq!(found[0], found[1]);
}
