//! Perplexity of tiny models against a naive sum over the logits a reference implementation recorded for them.

#[path = "../../kvant-model/tests/support/expected.rs"]
mod expected;

use expected::expected;
use kvant_cpu::LoadOptions;
use kvant_engine::KvCache;
use kvant_eval::{Estimate, EvalError, PassLimits, Score, Windows, perplexity};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
}

fn load(folder: &Path) -> Model {
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap()
}

/// The recorded prompts one after another, their length, and their logits `(prompts, tokens, vocabulary)`.
fn recorded(name: &str) -> (Vec<u32>, usize, Vec<f32>) {
    let expected = expected(&fixture(name));
    let ids = expected.tensor("input_ids").unwrap().unwrap();
    let logits = expected.tensor("prefill_logits").unwrap().unwrap().to_f32().unwrap();
    let list = ids.to_i64().unwrap().into_iter().map(|id| id as u32).collect();
    (list, ids.columns(), logits)
}

fn measure(model: &Model, windows: &Windows, limits: PassLimits, kv: &str) -> Result<Estimate, EvalError> {
    perplexity(model, windows, &kv.parse().unwrap(), limits, &mut |_| ())
}

/// ln Σ exp z − z_id with no care taken, in f64: the logits of these models are small.
fn naive_surprise(logits: &[f32], id: u32) -> f64 {
    logits.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln() - f64::from(logits[id as usize])
}

#[test]
fn agrees_with_the_recorded_logits() {
    for name in ["llama", "gemma2", "gpt2", "mixtral", "phi3_longrope"] {
        let model = load(&fixture(name));
        let (ids, length, logits) = recorded(name);
        for (score, first_logit) in [(Score::SecondHalf, length / 2), (Score::All, 0)] {
            let windows = Windows::of_ids(&[], &ids, length, ids.len() / length, score).unwrap();
            let found = measure(&model, &windows, PassLimits::default(), "f32").unwrap();

            let mut naive = Vec::new();
            for (prompt, ids) in ids.chunks(length).enumerate() {
                for position in first_logit..length - 1 {
                    let row = (prompt * length + position) * model.vocabulary();
                    naive.push(naive_surprise(&logits[row..][..model.vocabulary()], ids[position + 1]));
                }
            }
            let n = naive.len() as f64;
            let mean = naive.iter().sum::<f64>() / n;
            let variance = naive.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let stderr = mean.exp() * (variance / n).sqrt();
            assert_eq!(found.tokens(), naive.len(), "{name} {score}");
            assert!((found.ppl() / mean.exp() - 1.0).abs() < 2e-4, "{name} {score}: {}", found.ppl());
            assert!((found.ppl_stderr() / stderr - 1.0).abs() < 1e-3, "{name} {score}");
        }
    }
}

#[test]
fn a_prefix_replaces_the_first_token_of_every_window() {
    let model = load(&fixture("llama"));
    let (ids, length, _) = recorded("llama");
    let bos = 5;
    let windows = Windows::of_ids(&[bos], &ids[1..], length, 2, Score::All).unwrap();
    let found = measure(&model, &windows, PassLimits::default(), "f32").unwrap();

    let mut sum = 0.0;
    for window in ids.chunks(length) {
        let window = [&[bos], &window[1..]].concat();
        let mut cache = KvCache::reference(model.slots(), length).unwrap();
        let chunk = Chunk::new(&window, 0..length);
        let logits = model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits();
        sum += (1..length).map(|at| naive_surprise(logits.row(at - 1), window[at])).sum::<f64>();
    }
    // The two caches keep the same numbers and add them up in different orders.
    assert!((found.nll_mean() - sum / (2 * (length - 1)) as f64).abs() < 1e-5);
}

#[test]
fn the_result_does_not_depend_on_passes() {
    let model = load(&fixture("gemma3"));
    let (ids, length, _) = recorded("gemma3");
    for kv in ["f32", "f16"] {
        for score in [Score::SecondHalf, Score::All] {
            let windows = Windows::of_ids(&[], &ids, length, 2, score).unwrap();
            let whole = measure(&model, &windows, PassLimits::default(), kv).unwrap();
            for (tokens, rows) in [(1, 1), (7, 100), (512, 3), (5, 11)] {
                let limits = PassLimits { tokens, logit_bytes: rows * model.vocabulary() * 4 };
                assert_eq!(measure(&model, &windows, limits, kv).unwrap(), whole, "{tokens}, {rows}");
            }
        }
    }
}

#[test]
fn windows_are_sequences_of_their_own() {
    let model = load(&fixture("llama"));
    let (ids, length, _) = recorded("llama");
    let of = |ids: &[u32], chunks| {
        let windows = Windows::of_ids(&[], ids, length, chunks, Score::All).unwrap();
        measure(&model, &windows, PassLimits::default(), "f32").unwrap()
    };
    let apart = (of(&ids[..length], 1).nll_mean() + of(&ids[length..], 1).nll_mean()) / 2.0;
    assert!((of(&ids, 2).nll_mean() - apart).abs() < 1e-12);
}

#[test]
fn an_f16_cache_is_really_rounded() {
    let model = load(&fixture("llama"));
    let (ids, length, _) = recorded("llama");
    let windows = Windows::of_ids(&[], &ids, length, 2, Score::All).unwrap();
    let of = |kv| measure(&model, &windows, PassLimits::default(), kv).unwrap().nll_mean();
    let difference = (of("f16") - of("f32")).abs();
    assert!(difference > 0.0 && difference < 1e-2, "{difference}");
}

#[test]
fn progress_follows_the_windows() {
    let model = load(&fixture("llama"));
    let (ids, length, _) = recorded("llama");
    let windows = Windows::of_ids(&[], &ids, length, 2, Score::SecondHalf).unwrap();
    let mut seen = Vec::new();
    let last =
        perplexity(&model, &windows, &"f32".parse().unwrap(), PassLimits::default(), &mut |progress| {
            seen.push((progress.done, progress.windows, progress.so_far.tokens()));
        })
        .unwrap();
    assert_eq!(seen, [(1, 2, last.tokens() / 2), (2, 2, last.tokens())]);
}

#[test]
fn a_context_beyond_the_model_is_refused() {
    let model = load(&fixture("gpt2"));
    let limit = model.context().unwrap();
    let windows = Windows::of_ids(&[], &vec![1; limit + 1], limit + 1, 1, Score::All).unwrap();
    let refused = measure(&model, &windows, PassLimits::default(), "f32").unwrap_err();
    assert!(matches!(refused, EvalError::ContextTooLong { ctx, limit: l } if l == limit && ctx == limit + 1));
}

#[test]
fn an_id_outside_the_vocabulary_is_refused() {
    let model = load(&fixture("llama"));
    let windows = Windows::of_ids(&[], &[9999; 8], 8, 1, Score::All).unwrap();
    let refused = measure(&model, &windows, PassLimits::default(), "f32").unwrap_err();
    assert!(matches!(refused, EvalError::Forward(_)), "{refused}");
    // The last id is never run, but it is asked for.
    let windows = Windows::of_ids(&[], &[1, 1, 1, 1, 1, 1, 1, 9999], 8, 1, Score::All).unwrap();
    let refused = measure(&model, &windows, PassLimits::default(), "f32").unwrap_err();
    assert!(matches!(refused, EvalError::Forward(_)), "{refused}");
}

/// Copies the fixture with one tensor set to NaN.
fn poisoned(name: &str, tensor: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture(name).join("config.json"), folder.path().join("config.json")).unwrap();
    let mut file = fs::read(fixture(name).join("model.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
    let offset = |i: usize| data + header[tensor]["data_offsets"][i].as_u64().unwrap() as usize;
    assert_eq!(header[tensor]["dtype"], "F32");
    for value in file[offset(0)..offset(1)].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

#[test]
fn logits_that_are_not_numbers_end_the_measurement() {
    let folder = poisoned("llama", "model.norm.weight");
    let model = load(folder.path());
    let (ids, length, _) = recorded("llama");
    let windows = Windows::of_ids(&[], &ids, length, 2, Score::SecondHalf).unwrap();
    let refused = measure(&model, &windows, PassLimits::default(), "f32").unwrap_err();
    assert!(matches!(refused, EvalError::NotFinite { window: 0, position } if position == length / 2));
    assert!(refused.to_string().contains("NaN"));
}

#[test]
fn a_cache_that_does_not_exist_is_refused() {
    let model = load(&fixture("llama"));
    let windows = Windows::of_ids(&[], &[1; 8], 8, 1, Score::All).unwrap();
    let refused = measure(&model, &windows, PassLimits::default(), "klt").unwrap_err();
    assert!(matches!(refused, EvalError::Kv(_)), "{refused}");
}

#[test]
fn text_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let absent = kvant_eval::text::read(&folder.path().join("absent.txt")).unwrap_err().to_string();
    assert!(absent.contains("absent.txt") && absent.contains("cannot read"), "{absent}");
    let latin = folder.path().join("latin.txt");
    fs::write(&latin, b"caf\xe9").unwrap();
    let refused = kvant_eval::text::read(&latin).unwrap_err().to_string();
    assert!(refused.contains("UTF-8") && refused.contains("byte 3"), "{refused}");
    fs::write(&latin, "café\r\n").unwrap();
    assert_eq!(kvant_eval::text::read(&latin).unwrap(), "café\r\n");
}
