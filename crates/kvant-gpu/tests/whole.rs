//! Whole models on the device: against the oracle, against the CPU on the same codecs, and against themselves.

mod common;

use common::gpu;
use kvant_attention::KvCache;
use kvant_cache::{KvSlot, Policy, Store};
use kvant_codec::Side;
use kvant_cpu::{Cpu, LoadOptions};
use kvant_gpu::{Arithmetic, Gpu, GpuBackend};
use kvant_model::{
    AcceptTopK, Backend, Checkpoint, Chunk, DType, Description, Form, Model, Output, Pass, TopK, TopTokens,
};
use kvant_oracle::Oracle;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
}

fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count).map(|_| (next() % vocabulary) as u32).collect()
}

/// A model with a cache, whichever device they are on.
struct Sequence<'m> {
    model: &'m Model,
    cache: KvCache,
}

impl<'m> Sequence<'m> {
    fn new(model: &'m Model, policy: &str, store: Option<Store>, capacity: usize) -> Sequence<'m> {
        let policy: Policy = policy.parse().unwrap();
        let store = store.unwrap_or_else(|| kvant_cache::Arena::new().into());
        let cache = KvCache::in_arena(policy, model.slots(), capacity, store).unwrap();
        Sequence { model, cache }
    }

    /// Logits of all tokens, read in chunks of these sizes, the last again and again.
    fn read(&mut self, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let (mut left, mut logits, mut sizes) = (tokens, Vec::new(), chunks.iter().copied());
        let last = *chunks.last().unwrap();
        while !left.is_empty() {
            let (chunk, rest) = left.split_at(sizes.next().unwrap_or(last).min(left.len()));
            let chunk = Chunk::new(chunk, 0..chunk.len());
            logits.extend_from_slice(
                self.model
                    .forward(Pass::new(&[chunk]), &mut [self.cache.sequence_mut()])
                    .unwrap()
                    .into_logits()
                    .data(),
            );
            left = rest;
        }
        logits
    }
}

struct Loaded {
    checkpoint: Checkpoint,
    backend: GpuBackend,
    model: Model,
}

fn load(gpu: &Gpu, name: &str) -> Loaded {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let backend = GpuBackend::new(gpu);
    let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
    Loaded { checkpoint, backend, model }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) })
}

/// Every architecture that runs.
const RUN: [&str; 53] = [
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone4_full",
    "falcon_h1",
    "falcon_h1_norm",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_linear",
    "gemma4_dense",
    "gemma4_e",
    "gemma4_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoehybrid",
    "granitemoehybrid_dense",
    "hunyuan_v1_dense",
    "lfm2",
    "lfm2_moe",
    "llama",
    "llama3_rope",
    "llama_hd",
    "llama_tied",
    "minimax_m2",
    "mistral",
    "mistral4",
    "mixtral",
    "nemotron_h",
    "nemotron_h_moe",
    "olmo2",
    "olmo3",
    "phi3",
    "phi3_longrope",
    "qwen2",
    "qwen2_moe",
    "qwen2_yarn",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl",
    "seed_oss",
    "smollm2",
    "smollm3",
    "starcoder2",
];

/// Nobody forgets a fixture: it runs, or it is refused by name.
#[test]
fn every_other_fixture_is_refused() {
    let Some(gpu) = gpu() else { return };
    let backend = GpuBackend::new(&gpu);
    for entry in std::fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !path.join("config.json").exists() {
            continue;
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = backend.check_model(&Description::of(&checkpoint).unwrap(), &checkpoint);
        println!("{name:24} {}", found.as_ref().map_or_else(ToString::to_string, |()| "runs".to_owned()));
        match found {
            Ok(()) => assert!(RUN.contains(&&*name), "{name} runs and nobody compares it"),
            Err(refusal) => {
                assert!(!RUN.contains(&&*name), "{name}: {refusal}");
                assert!(refusal.to_string().contains("--device cpu"), "{name}: {refusal}");
            }
        }
    }
}

#[test]
fn the_table_of_models_says_what_runs() {
    let Some(gpu) = gpu() else { return };
    let backend = GpuBackend::new(&gpu);
    kvant_conformance::models_page("wgpu", |of, checkpoint| backend.check_model(of, checkpoint));
}

#[test]
fn models_agree_with_the_oracle() {
    let Some(gpu) = gpu() else { return };
    let mut wrong = Vec::new();
    for name in RUN {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let count = 90.min(model.position_limit().unwrap_or(usize::MAX));
        let (ids, capacity) = (tokens(count, model.vocabulary()), 96.max(count));
        let description = Description::of(&checkpoint).unwrap();
        let truth = Oracle::new(&description, &checkpoint).unwrap().run(&ids, capacity);
        let truth: Vec<f32> = truth.logits.iter().flatten().map(|x| *x as f32).collect();
        let mut sequence = Sequence::new(&model, "f32", Some(backend.store()), capacity);
        let found = sequence.read(&ids, &[70, 5, 1]);
        let off = largest_difference(&found, &truth);
        println!("{name:20} off by {off:.1e}");
        if off > 1e-4 {
            wrong.push(format!("{name} {off:.1e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn compressed_caches_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (name, policies) in [
        (
            "llama",
            &["int8", "int4", "f16", "k8v2", "kivi2", "int4;layers 0:k=f16", "int4;sinks=0;recent=100"][..],
        ),
        ("gemma3", &["int4"]),
        ("mistral", &["int8"]),
        ("llama_hd", &["int4"]),
    ] {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
        let ids = tokens(300, model.vocabulary());
        for policy in policies {
            let Ok(_) = policy.parse::<Policy>() else { panic!("{policy}") };
            let truth = Sequence::new(&host, policy, None, 320).read(&ids, &[300]);
            let exact = Sequence::new(&host, "f32", None, 320).read(&ids, &[300]);
            let found = Sequence::new(&model, policy, Some(backend.store()), 320).read(&ids, &[200, 37, 1]);
            let (off, loss) = (largest_difference(&found, &truth), largest_difference(&truth, &exact));
            println!("{name:10} {policy:24} off by {off:.1e} where the codec is off by {loss:.1e}");
            // Codes are the same but for roundings at a middle; what is left is the CPU's rounding of queries and weights to bytes. Behind
            // the first layer numbers are apart by that, a hundredth or so, and of numbers a hundredth apart fitted scales of 4 bits
            // make codes that differ by three quarters of their own error: there this finds nonsense, and tests of pages the rest.
            let share = if policy.starts_with("int4") { 1.0 } else { 0.35 };
            assert!(off <= share * loss + 2e-4, "{name} {policy}: {off} of {loss}");
        }
    }
}

/// The input of the second layer: embeddings, and one attention over pages.
fn after_one_layer(sequence: &mut Sequence<'_>, tokens: &[u32], at_once: usize) -> Vec<f32> {
    let mut hidden = Vec::new();
    for tokens in tokens.chunks(at_once) {
        let chunk = [Chunk::new(tokens, 0..0)];
        let mut observer = |layer: usize, x: &kvant_model::Rows| {
            if layer == 1 {
                hidden.extend_from_slice(x.data());
            }
        };
        sequence
            .model
            .forward(Pass::new(&chunk).observed(&mut observer), &mut [sequence.cache.sequence_mut()])
            .unwrap();
    }
    hidden
}

/// Codes of five bits and more, against which the CPU rounds queries and weights to 15 bits: so what is compared is attention over
/// the same bytes.
#[test]
fn one_attention_over_pages_is_the_cpus() {
    let Some(gpu) = gpu() else { return };
    for name in ["llama", "gemma3"] {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
        let ids = tokens(300, model.vocabulary());
        let exact = after_one_layer(&mut Sequence::new(&host, "f32", None, 320), &ids, 120);
        for policy in [
            "int8",
            "k=rot8g32,v=rot8g32",
            "k=sym5g32:p32,v=ch6:p128",
            "k=ch7:p128,v=asym5g32:p32",
            "k=ch5,v=f32",
        ] {
            let truth = after_one_layer(&mut Sequence::new(&host, policy, None, 320), &ids, 120);
            let store = Some(backend.store());
            let found = after_one_layer(&mut Sequence::new(&model, policy, store, 320), &ids, 120);
            let (off, loss) = (largest_difference(&found, &truth), largest_difference(&truth, &exact));
            println!("{name:10} {policy:28} off by {off:.1e} where the codec is off by {loss:.1e}");
            // A number at the middle between two codes may round the other way on the device: then the few queries that look at its
            // token are off by more than the others.
            let width = found.len() / ids.len();
            let rows = found.chunks(width).zip(truth.chunks(width));
            let far = rows.filter(|(found, truth)| largest_difference(found, truth) > 0.05 * loss + 1e-5);
            assert!(far.count() <= ids.len() / 50, "{name} {policy}: {off} of {loss}");
            assert!(off <= 0.35 * loss, "{name} {policy}: {off} of {loss}");
        }
    }
}

/// Three and four queries to a kv head, token by token: the kernels that make queries themselves, over codes and numbers, with the
/// token's own key in sinks, in the tail and at the start of a page.
#[test]
fn attention_of_one_token_is_the_same_in_integers() {
    let Some(gpu) = gpu() else { return };
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    for name in ["gemma", "qwen2_yarn"] {
        let [plain, fast] = ways.each_ref().map(|gpu| load(gpu, name));
        let ids = tokens(210, plain.model.vocabulary());
        for policy in ["int4", "f16", "int4;sinks=0;recent=100"] {
            let [truth, found] = [&plain, &fast].map(|of| {
                let store = Some(of.backend.store());
                after_one_layer(&mut Sequence::new(&of.model, policy, store, 320), &ids, 1)
            });
            let size = truth.iter().fold(0f32, |size, x| size.max(x.abs()));
            let off = largest_difference(&truth, &found) / size;
            println!("{name:10} {policy:24} off by {off:.1e}");
            assert!(off <= 1e-4, "{name} {policy}: {off:e}");
        }
    }
}

/// The largest difference of logits between arithmetics, of the spread of a row: one token in 16-bit integers, tokens of a prompt in f16
/// where there are matrices.
const ARITHMETICS_APART: f32 = 0.02;

/// Logits that are closer than this, of the largest one of a row, may change places.
const TIE: f32 = 0.01;

/// Structures that differ in what products are fused with. A driver in software takes minutes to translate the kernels of all.
const FEW: [&str; 8] = ["llama", "qwen2", "qwen3", "gemma2", "gpt_neox", "phi3", "mixtral", "gpt_oss"];

/// Integers and matrices choose the tokens that f32 does, read at once and one by one, with packed weights.
#[test]
fn faster_arithmetic_chooses_the_same_tokens() {
    let Some(gpu) = gpu() else { return };
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    let names = if gpu.report().kind.is_gpu() { &RUN[..] } else { &FEW[..] };
    for name in names {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let mut all = Vec::new();
        for gpu in &ways {
            let backend = GpuBackend::new(gpu).with_weights(Some(DType::Int8G32));
            let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ids = tokens(40.min(model.position_limit().unwrap_or(usize::MAX)), model.vocabulary());
            for chunks in [&[40][..], &[30, 1]] {
                let logits = Sequence::new(&model, "f16", Some(backend.store()), 64).read(&ids, chunks);
                all.push((logits, model.vocabulary()));
            }
        }
        let (truth, width) = &all[0];
        let mut most = 0f32;
        for (found, _) in &all[1..] {
            for (truth, found) in truth.chunks(*width).zip(found.chunks(*width)) {
                let spread = truth.iter().fold(0f32, |most, x| most.max(x.abs()));
                let off = largest_difference(truth, found);
                most = most.max(off / spread);
                let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                let (a, b) = (best(truth), best(found));
                assert!(truth[a] - truth[b] <= TIE * spread, "{name}: token {b} in place of {a}");
            }
        }
        println!("{name:20} off by {most:.1e} of the largest logit");
        assert!(most <= ARITHMETICS_APART, "{name}: {most:e}");
    }
}

#[test]
fn bits_do_not_depend_on_chunks_batches_or_runs() {
    let Some(gpu) = gpu() else { return };
    // Fused kernels serve one token: with norms of rows and heads, before and after the rotation, with biases and without.
    for name in ["llama", "qwen2", "qwen3", "gpt_neox", "gemma2", "hunyuan_v1_dense", "mixtral", "gpt_oss"] {
        let Loaded { backend, model, .. } = load(&gpu, name);
        let ids = tokens(80, model.vocabulary());
        let read =
            |chunks: &[usize]| Sequence::new(&model, "int4", Some(backend.store()), 80).read(&ids, chunks);
        assert!(read(&[80]) == read(&[7, 40, 3, 1]), "{name}: other chunks");
    }
    let Loaded { backend, model, .. } = load(&gpu, "llama");
    let ids = tokens(150, model.vocabulary());
    let read =
        |chunks: &[usize]| Sequence::new(&model, "int4", Some(backend.store()), 160).read(&ids, chunks);
    let whole = read(&[150]);
    assert_eq!(whole, read(&[150]), "another run");
    assert_eq!(whole, read(&[7, 64, 3, 1]), "other chunks");
    // Beside another sequence.
    let mut alone = Sequence::new(&model, "int4", Some(backend.store()), 160);
    alone.read(&ids[..100], &[100]);
    let mut fork = alone.cache.over(alone.cache.sequence().fork().unwrap());
    let mut other = alone.cache.over(alone.cache.sequence().prefix(68).unwrap());
    let chunk = |tokens| Chunk::new(tokens, 0..1);
    let (one, two) = (&ids[100..101], &ids[68..73]);
    let both = {
        let mut batch = [&mut other, &mut fork].map(KvCache::sequence_mut);
        model.forward(Pass::new(&[chunk(two), chunk(one)]), &mut batch).unwrap().into_logits()
    };
    let width = model.vocabulary();
    assert_eq!(both.data()[..width], whole[68 * width..69 * width]);
    assert_eq!(both.data()[width..], whole[100 * width..101 * width]);
}

/// Passes of one token: six kernels of a layer, one of which puts attention's splits together.
#[test]
fn dispatches_are_few() {
    for name in ["llama", "qwen3"] {
        // A device of the test's own: others count too.
        let Some(gpu) = common::open() else { return };
        let Loaded { backend, model, .. } = load(&gpu, name);
        let layers = model.description().layers.len();
        let ids = tokens(70, model.vocabulary());
        let mut sequence = Sequence::new(&model, "int4", Some(backend.store()), 80);
        sequence.read(&ids[..50], &[50]);
        let before = gpu.dispatches();
        sequence.read(&ids[50..51], &[1]);
        let found = gpu.dispatches() - before;
        assert!(found <= 6 * layers + 8, "{name}: {found} dispatches of {layers} layers");
    }
}

#[test]
fn a_talk_goes_on_after_going_back() {
    let Some(gpu) = gpu() else { return };
    let Loaded { backend, model, .. } = load(&gpu, "llama");
    let ids = tokens(140, model.vocabulary());
    let mut sequence = Sequence::new(&model, "int4", Some(backend.store()), 160);
    let whole = sequence.read(&ids, &[140]);
    let left = sequence.cache.truncate(135);
    let again = sequence.read(&ids[left..], &[9]);
    assert_eq!(again, whole[left * model.vocabulary()..]);
    assert!(backend.pages().usage_bytes() > 0);
    drop(sequence);
    assert_eq!(backend.pages().usage_bytes(), 0);
}

trait UsedBytes {
    fn usage_bytes(&self) -> usize;
}

impl UsedBytes for kvant_gpu::GpuPages {
    fn usage_bytes(&self) -> usize {
        kvant_cache::PageStore::usage(self).used
    }
}

#[test]
fn a_corrupt_byte_changes_the_output() {
    let Some(gpu) = gpu() else { return };
    let Loaded { backend, model, .. } = load(&gpu, "llama");
    let ids = tokens(150, model.vocabulary());
    let mut sequence = Sequence::new(&model, "int4", Some(backend.store()), 160);
    sequence.read(&ids[..149], &[149]);
    let slot: KvSlot = model.slots().kv_slots().next().unwrap();
    for side in [Side::Key, Side::Value] {
        let last = |sequence: &Sequence<'_>| {
            let fork = sequence.cache.sequence().fork().unwrap();
            Sequence { model: &model, cache: sequence.cache.over(fork) }.read(&ids[149..], &[1])
        };
        let before = last(&sequence);
        let page = sequence.cache.sequence().side(slot, 0, side).unwrap().pages().next().unwrap();
        let (id, mut bytes) = (page.id().unwrap(), page.canonical().into_owned());
        let at = bytes.len() - 3;
        bytes[at] ^= 0x55;
        kvant_cache::PageStore::write(&**backend.pages(), id, &bytes);
        assert_ne!(before, last(&sequence), "{side:?}");
    }
}

/// Lists of the tokens that rank first are those of the logits, and rows that a list does not settle come as logits.
#[test]
fn best_tokens_come_in_place_of_logits() {
    let Some(gpu) = gpu() else { return };
    let Loaded { backend, model, .. } = load(&gpu, "llama");
    let ids = tokens(40, model.vocabulary());
    let sequence = || Sequence::new(&model, "int4", Some(backend.store()), 64);
    let logits = sequence().read(&ids, &[40]);
    let rows: Vec<&[f32]> = logits.chunks(model.vocabulary()).skip(37).collect();
    let wanted = [1, 5, 3].map(|count| Some(TopK { count, temperature: None }));
    let ranked = |top: &[Option<TopK>], accept: &AcceptTopK<'_>| {
        let chunk = [Chunk::new(&ids, 37..40).form(Form::Top(top))];
        model.forward(Pass::new(&chunk).accept(accept), &mut [sequence().cache.sequence_mut()]).unwrap()
    };
    let found = ranked(&wanted, &|row, _| row != 1);
    for (row, wanted) in wanted.into_iter().enumerate() {
        match (row, found.row(row)) {
            (1, Output::Logits(found)) => assert_eq!(found, rows[1]),
            (0 | 2, Output::Top(list)) => {
                assert_eq!(*list, TopTokens::of(rows[row], wanted.unwrap()).unwrap())
            }
            (row, _) => panic!("row {row} did not come as was asked for"),
        }
    }
    // A mass is the host's to compute.
    let weighed = wanted.map(|top| top.map(|top| TopK { temperature: Some(0.5), ..top }));
    let found = ranked(&weighed, &|_, _| true);
    assert!((0..3).all(|row| found.row(row) == Output::Logits(rows[row])));
}

/// StreamingLLM: sinks stay, and queries meet them as if they stood just before the window; against the CPU, and chunk by chunk.
#[test]
fn streaming_windows_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (name, kv) in [("llama", "f16"), ("qwen3", "f16;sinks=6"), ("llama", "int4"), ("llama", "srft4g32")] {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
        let ids = tokens(260, model.vocabulary());
        let read = |model: &Model, store: Store, kv: &str, window: Option<usize>, chunks: &[usize]| {
            let mut policy: Policy = kv.parse().unwrap();
            policy.rule.streaming = window;
            let capacity = if window.is_some() { usize::MAX } else { ids.len() };
            let cache = KvCache::in_arena(policy, model.slots(), capacity, store).unwrap();
            Sequence { model, cache }.read(&ids, chunks)
        };
        let on_host = |kv: &str| read(&host, kvant_cache::Arena::new().into(), kv, Some(96), &[50]);
        let (truth, exact) = (on_host(kv), on_host("f32"));
        let found = read(&model, backend.store(), kv, Some(96), &[50]);
        let other = read(&model, backend.store(), kv, Some(96), &[31, 1, 7]);
        assert!(other == found, "{name} {kv}: chunks have other bits");
        let (off, loss) = (largest_difference(&found, &truth), largest_difference(&truth, &exact));
        println!("{name} {kv}: off by {off:.1e} where the codec is off by {loss:.1e}");
        assert!(off <= 0.5 * loss + 2e-4, "{name} {kv}: {off} of {loss}");
        // The window counts.
        let all = read(&model, backend.store(), kv, None, &[50]);
        assert!(largest_difference(&found, &all) > 2.0 * off, "{name} {kv}: the window has no effect");
    }
}

#[test]
fn what_does_not_run_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let backend = GpuBackend::new(&gpu);
    let (name, word) = ("gemma3n", "AltUp");
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let refused = backend.compile(&Description::of(&checkpoint).unwrap(), &checkpoint).err();
    let refused = refused.unwrap_or_else(|| panic!("{name} runs")).to_string();
    assert!(refused.contains(word) && refused.contains("gpu"), "{name}: {refused}");
    // Pages of the host are not a device's.
    let Loaded { model, .. } = load(&gpu, "llama");
    let mut host = Sequence::new(&model, "int4", None, 16);
    let refused =
        model.forward(Pass::new(&[Chunk::new(&[1], 0..1)]), &mut [host.cache.sequence_mut()]).unwrap_err();
    assert!(refused.to_string().contains("host memory"), "{refused}");
}
