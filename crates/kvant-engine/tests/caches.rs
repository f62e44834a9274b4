//! The compressed cache under every architecture that has a fixture, beside the exact cache of the model crate.

use kvant_engine::{KvCache, Policy};
use kvant_model::blocks::Chunk;
use kvant_model::cache::{Cache, ExactCache};
use kvant_model::{Checkpoint, LoadOptions, Model};
use std::path::Path;

const TOKENS: usize = 150;

/// Every fixture that loads, by name.
fn models() -> Vec<(String, Model)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let load = |path: &Path| Model::load(&Checkpoint::open(path).ok()?, LoadOptions::default()).ok();
    let models: Vec<_> = names
        .iter()
        .filter_map(|path| Some((path.file_name()?.to_string_lossy().into_owned(), load(path)?)))
        .collect();
    assert!(models.len() >= 10, "{} fixtures were found in {}", models.len(), folder.display());
    models
}

fn ids(model: &Model) -> Vec<u32> {
    let room = model.position_limit().unwrap_or(TOKENS).min(TOKENS);
    (0..room).map(|i| ((i * 37 + 11) % model.vocabulary()) as u32).collect()
}

/// Logits of every position, read in chunks of `size`.
fn logits(model: &Model, ids: &[u32], cache: &mut dyn Cache, size: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for tokens in ids.chunks(size) {
        let chunk = Chunk { tokens, cache: &mut *cache, wanted: 0..tokens.len() };
        let rows = model.forward(&mut [chunk]).unwrap();
        (0..tokens.len()).for_each(|row| all.extend_from_slice(rows.row(row)));
    }
    all
}

fn kv(policy: &str, model: &Model) -> KvCache {
    KvCache::new(policy.parse::<Policy>().unwrap(), model.states(), TOKENS).unwrap()
}

/// The largest difference of every row, relative to the spread of the expected logits, smallest first.
fn distances(got: &[f32], expected: &[f32], vocabulary: usize) -> Vec<f32> {
    let spread = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    let rows = got.chunks_exact(vocabulary).zip(expected.chunks_exact(vocabulary));
    let row = |(a, b): (&[f32], &[f32])| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let mut all: Vec<f32> = rows.map(|rows| row(rows) / spread).collect();
    assert!(all.iter().all(|x| x.is_finite()));
    all.sort_by(f32::total_cmp);
    all
}

#[test]
fn wide_specs_follow_the_exact_cache_in_every_architecture() {
    for (name, model) in models() {
        let ids = ids(&model);
        let expected = logits(&model, &ids, &mut ExactCache::<f32>::new(model.states(), TOKENS), ids.len());
        // Rounding may send a token to another expert, after which its logits are others: the median does not mind.
        for (policy, largest, median) in
            [("f32", 2e-4, 2e-4), ("f16", f32::MAX, 5e-3), ("int8", f32::MAX, 0.1)]
        {
            let mut kv = kv(policy, &model);
            let far = distances(&logits(&model, &ids, kv.cache_mut(), 64), &expected, model.vocabulary());
            kv.check().unwrap();
            let (worst, middle) = (far[far.len() - 1], far[far.len() / 2]);
            assert!(worst < largest && middle < median, "{name}, {policy}: worst {worst}, median {middle}");
        }
    }
}

#[test]
fn chunks_and_rollbacks_change_no_logit_in_any_architecture() {
    for (name, model) in models() {
        let ids = ids(&model);
        let whole = logits(&model, &ids, kv("int4", &model).cache_mut(), ids.len());
        let mut cut = kv("int4", &model);
        assert!(logits(&model, &ids, cut.cache_mut(), 13) == whole, "{name}: chunks of 13");
        let left = cut.truncate(ids.len() * 2 / 3);
        let again = logits(&model, &ids[left..], cut.cache_mut(), 29);
        assert!(again == whole[left * model.vocabulary()..], "{name}: after going back to {left}");
    }
}
