//! Every architecture against Hugging Face transformers, on tiny random checkpoints.
//!
//! Reads every folder under `KVANT_FIXTURES` (by default the project's own) and prints a line for each. A
//! folder holds `config.json` and perhaps `config_legacy.json`, `model.safetensors`, and the reference's
//! outputs in `expected.safetensors`.

use kvant_model::arch::{Architecture, Parts};
use kvant_model::blocks::{Chunk, Rows};
use kvant_model::cache::{Cache, CacheFull, ExactCache, LayerState, Queries, Scoring};
use kvant_model::error::LoadErrorKind;
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, DType, LoadError, LoadOptions, Model};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest absolute difference allowed anywhere.
const TOLERANCE: f32 = 2e-4;

/// An exact cache that also remembers what it was given, entry by entry: keys and values, token by token.
struct Recorder {
    cache: ExactCache<f32>,
    given: BTreeMap<usize, (Vec<f32>, Vec<f32>)>,
}

impl Cache for Recorder {
    fn capacity(&self) -> usize {
        self.cache.capacity()
    }
    fn len(&self) -> usize {
        self.cache.len()
    }
    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull> {
        self.cache.reserve(tokens)
    }
    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) {
        let given = self.given.entry(entry).or_default();
        given.0.extend_from_slice(keys);
        given.1.extend_from_slice(values);
        self.cache.append(entry, keys, values);
    }
    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]) {
        self.cache.attend(entry, queries, scoring, out);
    }
    fn advance(&mut self, tokens: usize) {
        self.cache.advance(tokens);
    }
}

struct Expected {
    tensors: Safetensors,
    prompt: usize,
    prompts: Vec<Vec<u32>>,
    greedy: Vec<Vec<u32>>,
}

impl Expected {
    fn open(folder: &Path) -> Self {
        let tensors = Safetensors::open(&folder.join("expected.safetensors")).unwrap();
        let ids = |name: &str| -> Vec<Vec<u32>> {
            let ids = tensors.tensor(name).unwrap().unwrap();
            let list = ids.to_i64().unwrap();
            list.chunks(ids.columns()).map(|row| row.iter().map(|&id| id as u32).collect()).collect()
        };
        let (prompts, greedy) = (ids("input_ids"), ids("greedy_ids"));
        Self { prompt: prompts[0].len(), prompts, greedy, tensors }
    }

    /// Part `index` of a tensor along its first extent, or all of it.
    fn values(&self, name: &str, index: Option<usize>) -> Vec<f32> {
        let whole = self.tensors.tensor(name).unwrap().unwrap_or_else(|| panic!("{name} is expected"));
        match index {
            Some(index) => whole.index(index).unwrap().to_f32().unwrap(),
            None => whole.to_f32().unwrap(),
        }
    }

    fn capacity(&self) -> usize {
        self.prompt + self.greedy[0].len()
    }
}

/// The largest differences found, by what was compared.
#[derive(Default)]
struct Differences(BTreeMap<&'static str, f32>);

impl Differences {
    fn compare(&mut self, what: &'static str, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{what}");
        let worst = self.0.entry(what).or_default();
        for (a, b) in found.iter().zip(expected) {
            let difference = (a - b).abs();
            *worst = if difference.is_nan() { f32::INFINITY } else { worst.max(difference) };
        }
    }

    fn verdict(&self) -> (bool, String) {
        let shown: Vec<String> = self.0.iter().map(|(what, worst)| format!("{what} {worst:.1e}")).collect();
        (self.0.values().all(|&worst| worst <= TOLERANCE), shown.join(", "))
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap() as u32
}

fn all<'a>(tokens: &'a [u32], cache: &'a mut dyn Cache) -> Chunk<'a> {
    Chunk { tokens, cache, wanted: 0..tokens.len() }
}

/// `(tokens, heads, dim)` to `(heads, tokens, dim)`.
fn by_head(values: &[f32], heads: usize, dim: usize) -> Vec<f32> {
    let tokens = values.len() / heads / dim;
    (0..heads * tokens)
        .flat_map(|i| values[(i % tokens * heads + i / tokens) * dim..][..dim].to_vec())
        .collect()
}

fn check(model: &Model, expected: &Expected) -> (bool, String) {
    let mut differences = Differences::default();
    let mut greedy_agrees = true;
    for (sequence, prompt) in expected.prompts.iter().enumerate() {
        let cache = ExactCache::new(model.states(), expected.capacity());
        let mut cache = Recorder { cache, given: BTreeMap::new() };
        let mut hidden = Vec::new();
        let mut watch = |_: usize, x: &Rows| hidden.extend_from_slice(x.data());
        let prefill = model.forward_observed(&mut [all(prompt, &mut cache)], &mut watch).unwrap();
        differences.compare("prefill", prefill.data(), &expected.values("prefill_logits", Some(sequence)));
        if sequence == 0 {
            differences.compare("hidden", &hidden, &expected.values("hidden", None));
            compare_keys_values(&mut differences, model, expected, &cache);
        }

        let mut next = argmax(prefill.row(prompt.len() - 1));
        let mut steps = Vec::new();
        for &token in &expected.greedy[sequence] {
            greedy_agrees &= token == next;
            let logits = model.forward(&mut [all(&[token], &mut cache)]).unwrap();
            next = argmax(logits.row(0));
            steps.extend_from_slice(logits.data());
        }
        differences.compare("steps", &steps, &expected.values("step_logits", Some(sequence)));
    }
    let (within, shown) = differences.verdict();
    let same_bits = bits_do_not_depend_on_chunks(model, expected);
    let mut remarks = String::new();
    if !greedy_agrees {
        remarks += ", GREEDY IDS DIFFER";
    }
    if !same_bits {
        remarks += ", BITS DEPEND ON CHUNKS";
    }
    (within && greedy_agrees && same_bits, shown + &remarks)
}

fn compare_keys_values(d: &mut Differences, model: &Model, expected: &Expected, cache: &Recorder) {
    let mut compared = 0;
    for (entry, state) in model.states().iter().enumerate() {
        let LayerState::KeysValues(shape) = state else { continue };
        if expected.tensors.tensor(&format!("k.{entry}")).unwrap().is_none() {
            continue;
        }
        let (keys, values) = &cache.given[&entry];
        d.compare(
            "k",
            &by_head(keys, shape.heads, shape.key_dim),
            &expected.values(&format!("k.{entry}"), None),
        );
        d.compare(
            "v",
            &by_head(values, shape.heads, shape.value_dim),
            &expected.values(&format!("v.{entry}"), None),
        );
        compared += 1;
    }
    let recorded = expected.tensors.names().filter(|name| name.starts_with("k.")).count();
    assert_eq!(compared, recorded, "every recorded layer has an entry in the cache");
}

/// Both sequences in one pass, and one in odd chunks, against each sequence alone in one piece.
fn bits_do_not_depend_on_chunks(model: &Model, expected: &Expected) -> bool {
    let open = || ExactCache::<f32>::new(model.states(), expected.capacity());
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let alone: Vec<Rows> =
        expected.prompts.iter().map(|p| model.forward(&mut [all(p, &mut open())]).unwrap()).collect();

    let (mut first, mut second) = (open(), open());
    let mut pass = [all(&expected.prompts[0], &mut first), all(&expected.prompts[1][..1], &mut second)];
    pass[0].wanted.start = expected.prompt / 2;
    let together = model.forward(&mut pass).unwrap();
    let width = together.width();
    let last_half = &alone[0].data()[expected.prompt / 2 * width..];
    let mut same = bits(together.data()) == bits(&[last_half, alone[1].row(0)].concat());

    let mut at = 1;
    for size in [5, 1, 9, 2].into_iter().cycle() {
        let end = (at + size).min(expected.prompt);
        let logits = model.forward(&mut [all(&expected.prompts[1][at..end], &mut second)]).unwrap();
        same &= bits(logits.data()) == bits(&alone[1].data()[at * width..end * width]);
        at = end;
        if at == expected.prompt {
            return same;
        }
    }
    unreachable!("the sizes repeat without end")
}

/// The model of a folder under one of its configurations; the name of its architecture when that is unknown.
fn load(folder: &Path, config: &str) -> Result<Result<Model, String>, LoadError> {
    let config = serde_json::from_str(&fs::read_to_string(folder.join(config)).unwrap()).unwrap();
    let checkpoint =
        Checkpoint::from_safetensors(Safetensors::open(&folder.join("model.safetensors"))?, config);
    let parts = Parts::new(&checkpoint, LoadOptions::default())?;
    match Architecture::of(&parts) {
        Err(e) if e.kind() == LoadErrorKind::Unsupported => Ok(Err(parts.hyper().architecture()?.to_owned())),
        _ => Model::load(&checkpoint, LoadOptions::default()).map(Ok),
    }
}

#[test]
fn fixtures_agree_with_the_reference() {
    let root = std::env::var_os("KVANT_FIXTURES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), PathBuf::from);
    let mut folders: Vec<PathBuf> = fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").is_file())
        .collect();
    folders.sort();
    assert!(!folders.is_empty(), "{} holds no fixtures", root.display());

    let mut wrong = Vec::new();
    // Written past the test harness, which would swallow the lines of a test that passes.
    let mut out = std::io::stdout();
    writeln!(out).unwrap();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = Expected::open(&folder);
        for config in ["config.json", "config_legacy.json"].into_iter().filter(|c| folder.join(c).is_file()) {
            let (right, line) = match load(&folder, config) {
                Ok(Ok(model)) => check(&model, &expected),
                Ok(Err(architecture)) => {
                    writeln!(out, "{name:16} {config:18} unsupported architecture: {architecture}").unwrap();
                    continue;
                }
                Err(e) => (false, format!("does not load: {e}")),
            };
            writeln!(out, "{name:16} {config:18} {} {line}", if right { "ok   " } else { "WRONG" }).unwrap();
            if !right {
                wrong.push(format!("{name}/{config}"));
            }
        }
    }
    assert!(wrong.is_empty(), "off: {}", wrong.join(", "));
}

/// The share of prefill logits' power that packing the weights of a fixture adds as error.
fn packing_error(name: &str, weights: Option<DType>) -> f64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let config = serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let tensors = Safetensors::open(&folder.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::from_safetensors(tensors, config);
    let model = Model::load(&checkpoint, LoadOptions { weights, ..LoadOptions::default() }).unwrap();
    let expected = Expected::open(&folder);
    let mut cache = ExactCache::<f32>::new(model.states(), expected.capacity());
    let found = model.forward(&mut [all(&expected.prompts[0], &mut cache)]).unwrap();
    let reference = expected.values("prefill_logits", Some(0));
    let power = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let errors = found.data().iter().zip(&reference).map(|(a, b)| a - b);
    power(&mut { errors }) / power(&mut reference.iter().copied())
}

#[test]
fn fixtures_survive_packing_their_weights_on_load() {
    for name in ["llama", "gpt2", "qwen2_moe"] {
        let (exact, int8, int4) = (
            packing_error(name, None),
            packing_error(name, Some(DType::Int8G32)),
            packing_error(name, Some(DType::Int4G32)),
        );
        // A rounded activation may send a token to another expert, hence the room.
        assert!(exact < 1e-9 && int8 > exact && int8 < 5e-3, "{name}: {exact:.1e}, {int8:.1e}");
        assert!(int4 > 4.0 * int8 && int4 < 0.3, "{name}: {int8:.1e}, {int4:.1e}");
    }
}
