//! Compressed caches of 8 bits and more beside the exact one, under every architecture that has a fixture.

use kvant_attention::KvCache;
use kvant_cache::{Policy, SlotKind};
use kvant_cpu::LoadOptions;
use kvant_model::description::{Ffn, Mixer};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::{Path, PathBuf};

const TOKENS: usize = 150;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures")
}

fn load(path: &Path) -> Option<Model> {
    kvant_cpu::load(&Checkpoint::open(path).ok()?, LoadOptions::default()).ok()
}

/// Every fixture that loads, by name.
fn models() -> Vec<(String, Model)> {
    let folder = fixtures();
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
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
fn logits(model: &Model, ids: &[u32], kv: &mut KvCache, size: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for tokens in ids.chunks(size) {
        let rows = model
            .forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [kv.sequence_mut()])
            .unwrap()
            .into_logits();
        (0..tokens.len()).for_each(|row| all.extend_from_slice(rows.row(row)));
    }
    all
}

fn kv(policy: &str, model: &Model) -> KvCache {
    KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), TOKENS).unwrap()
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

/// Pages of keys and of values with different numbers of tokens, which latents cannot have: both parts are read together.
const PAGES_APART: &str = "k=ch8:p128,v=sym8:p32";

fn keeps_latents(model: &Model) -> bool {
    model.slots().iter().any(|(_, slot)| matches!(slot.kind, SlotKind::Latent(_)))
}

fn has_experts(model: &Model) -> bool {
    let mut mixers = model.description().layers.iter().flat_map(|layer| layer.mixers());
    mixers.any(|mixer| matches!(mixer, Mixer::Ffn(Ffn::Experts(_))))
}

/// Specs of 8 bits and more, and how far from the exact cache logits may be: by the largest difference of any row, in units
/// of the logits' root mean square. The fixtures are random and sharp: a trained model is nearer.
const WIDE: [(&str, f32); 10] = [
    ("f32", 2e-4),
    ("f16", 2e-2),
    ("bf16", 1e-1),
    ("int8", 2e-1),
    ("int8g32", 2e-1),
    ("q8_0", 2e-1),
    ("srft8", 2e-1),
    (PAGES_APART, 2e-1),
    ("k=f16,v=sym8g32", 1e-1),
    ("int8;recent=100;sinks=9", 2e-1),
];

#[test]
fn wide_specs_follow_the_exact_cache_in_every_architecture() {
    let mut beyond = Vec::new();
    for (name, model) in models() {
        let ids = ids(&model);
        let expected =
            logits(&model, &ids, &mut KvCache::reference(model.slots(), TOKENS).unwrap(), ids.len());
        for (policy, bound) in WIDE {
            if policy == PAGES_APART && keeps_latents(&model) {
                let refused = KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), TOKENS);
                assert!(refused.is_err_and(|e| e.to_string().contains("latents")), "{name}");
                continue;
            }
            let mut kv = kv(policy, &model);
            let far = distances(&logits(&model, &ids, &mut kv, 64), &expected, model.vocabulary());
            let (worst, middle) = (far[far.len() - 1], far[far.len() / 2]);
            // Rounding may send a token to another expert, or a gate of Gemma 3n below the cut, after which its logits are
            // others: the median does not mind.
            let jumps = has_experts(&model) || model.description().embedding.streams.is_some();
            if !(jumps || worst < bound) || middle >= bound / 2.0 {
                beyond.push(format!("{name}, {policy}: worst {worst}, median {middle}"));
            }
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// Mixtures of experts without the jump: where every token asks all experts, rounding can change no choice, and every
/// row has to stay within the bound.
#[test]
fn wide_specs_follow_the_exact_cache_in_mixtures_that_ask_all_experts() {
    for (name, count) in [("mixtral", 4), ("qwen2_moe", 6), ("qwen3_moe", 8)] {
        let fixture = fixtures().join(name);
        let folder = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
        let all = config.replace("\"num_experts_per_tok\": 2", &format!("\"num_experts_per_tok\": {count}"));
        assert!(all != config, "{name}");
        std::fs::write(folder.path().join("config.json"), all).unwrap();
        std::fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let model = load(folder.path()).unwrap();
        let ids = ids(&model);
        let expected =
            logits(&model, &ids, &mut KvCache::reference(model.slots(), TOKENS).unwrap(), ids.len());
        for (policy, bound) in WIDE {
            let mut kv = kv(policy, &model);
            let far = distances(&logits(&model, &ids, &mut kv, 64), &expected, model.vocabulary());
            let worst = far[far.len() - 1];
            assert!(worst < bound, "{name}, {policy}: worst {worst}");
        }
    }
}
