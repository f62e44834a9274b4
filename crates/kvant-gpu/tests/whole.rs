//! Whole models on the device: what every backend is held to, and what is peculiar to this one.
//!
//! The adapter is lavapipe, or what `KVANT_GPU` names; `cargo xtask test msl` runs the same tests on what Metal would be given.
//! `KVANT_GPU_TESTS=short` keeps lavapipe from taking half an hour in every run; `cargo xtask test gpu-wide` runs all.

mod common;

use common::{gpu, short_or_all};
use kvant_attention::KvCache;
use kvant_cache::{Arena, PageStore, SlotKind, StateType, Store};
use kvant_conformance::reading::{largest_difference, read, tokens};
use kvant_conformance::{Bounds, Fixture, ModelSet, Refused, Subject, policy};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_gpu::{Arithmetic, Gpu, GpuBackend};
use kvant_model::description::{Ffn, Mixer};
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass};
use std::path::{Path, PathBuf};
use std::sync::Arc;

kvant_conformance::conformance!(subject);

fn subject() -> Option<Subject> {
    let bounds = Bounds::F32(|_| 1e-4);
    let (device, short) = (Arc::new(gpu()?), short_or_all(true, false));
    Some(Subject { device, models: ModelSet::Fixtures, short, bounds, refuses: REFUSES })
}

/// Every model and every cache of the conformance kit runs.
const REFUSES: &[Refused] = &[];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
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

fn on_cpu(checkpoint: &Checkpoint) -> Model {
    Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), checkpoint).unwrap()
}

fn cache(model: &Model, text: &str, store: impl Into<Store>) -> KvCache {
    KvCache::in_arena(policy(text, model.slots()), model.slots(), 320, store).unwrap()
}

/// The input of the second layer: embeddings, and one attention over pages.
fn after_one_layer(model: &Model, mut cache: KvCache, tokens: &[u32], at_once: usize) -> Vec<f32> {
    let mut hidden = Vec::new();
    for tokens in tokens.chunks(at_once) {
        let chunk = [Chunk::new(tokens, 0..0)];
        let mut observer = |layer: usize, x: &kvant_model::Rows| {
            if layer == 1 {
                hidden.extend_from_slice(x.data());
            }
        };
        let pass = Pass::new(&chunk).observed(&mut observer);
        model.forward(pass, &mut [cache.sequence_mut()]).unwrap();
    }
    hidden
}

#[test]
fn the_table_of_models_says_what_runs() {
    let Some(gpu) = gpu() else { return };
    let backend = GpuBackend::new(&gpu);
    kvant_conformance::models_page("wgpu", |of, checkpoint| backend.check_model(of, checkpoint));
}

/// Codes of five bits and more, against which the CPU rounds queries and weights to 15 bits: so what is compared is attention over
/// the same bytes.
#[test]
fn one_attention_over_pages_is_the_cpus() {
    let Some(gpu) = gpu() else { return };
    for name in ["llama", "gemma3"] {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let host = on_cpu(&checkpoint);
        let ids = tokens(300, model.vocabulary());
        let exact = after_one_layer(&host, cache(&host, "f32", Arena::new()), &ids, 120);
        for policy in [
            "int8",
            "k=rot8g32,v=rot8g32",
            "k=sym5g32:p32,v=ch6:p128",
            "k=ch7:p128,v=asym5g32:p32",
            "k=ch5,v=f32",
            "delta6",
            "k=delta5:p32,v=polar5",
            "k=polar5,v=delta5:p32",
        ]
        .into_iter()
        .step_by(short_or_all(3, 1))
        {
            // Of a chain of differences a code that rounds the other way moves all that follow: `every_codec_agrees_with_the_cpu` bounds that.
            if name == "gemma3" && policy.contains("delta") {
                continue;
            }
            let truth = after_one_layer(&host, cache(&host, policy, Arena::new()), &ids, 120);
            let found = after_one_layer(&model, cache(&model, policy, backend.store()), &ids, 120);
            let (off, loss) = (largest_difference(&found, &truth), largest_difference(&truth, &exact));
            println!("{name:10} {policy:28} off by {off:.1e} where the codec is off by {loss:.1e}");
            // A number at the middle between two codes may round the other way on the device: then the few queries that look at its
            // token, seven here, are off by more than the others.
            let width = found.len() / ids.len();
            let rows = found.chunks(width).zip(truth.chunks(width));
            let far = rows.filter(|(found, truth)| largest_difference(found, truth) > 0.05 * loss + 1e-5);
            let far = far.count();
            assert!(far <= ids.len() / 30, "{name} {policy}: {far} rows far off, {off} of {loss}");
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
    for name in ["qwen2_yarn", "gemma"].into_iter().take(short_or_all(1, 2)) {
        let [plain, fast] = ways.each_ref().map(|gpu| load(gpu, name));
        let ids = tokens(210, plain.model.vocabulary());
        let policies = ["int4;sinks=0;recent=100", "f16", "int4"];
        for policy in policies.into_iter().take(short_or_all(2, 3)) {
            let [truth, found] = [&plain, &fast]
                .map(|of| after_one_layer(&of.model, cache(&of.model, policy, of.backend.store()), &ids, 1));
            let size = truth.iter().fold(0f32, |size, x| size.max(x.abs()));
            let off = largest_difference(&truth, &found) / f64::from(size);
            println!("{name:10} {policy:24} off by {off:.1e}");
            assert!(off <= 1e-4, "{name} {policy}: {off:e}");
        }
    }
}

/// The largest difference of logits between arithmetics, of the spread of a row: one token in 16-bit integers, tokens of a prompt in f16
/// where there are matrices.
const ARITHMETICS_APART: f64 = 0.02;

/// Logits that are closer than this, of the largest one of a row, may change places.
const TIE: f32 = 0.01;

/// Structures that differ in what products are fused with. A driver in software takes minutes to translate the kernels of all.
const FEW: [&str; 8] = ["llama", "gemma2", "gpt_oss", "qwen2", "qwen3", "gpt_neox", "phi3", "mixtral"];

/// Integers and matrices choose the tokens that f32 does, read at once and one by one, with packed weights.
#[test]
fn faster_arithmetic_chooses_the_same_tokens() {
    let Some(gpu) = gpu() else { return };
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    let all = Fixture::all().into_iter().map(|fixture| fixture.name);
    let runs = all.filter(|name| REFUSES.iter().all(|refused| !refused.names.contains(&name.as_str())));
    let few = FEW.iter().take(short_or_all(3, FEW.len())).map(|name| (*name).to_owned());
    let names: Vec<String> = if gpu.report().kind.is_gpu() { runs.collect() } else { few.collect() };
    for name in names {
        let checkpoint = Checkpoint::open(fixture(&name)).unwrap();
        let mut all = Vec::new();
        for gpu in &ways {
            let backend = GpuBackend::new(gpu).with_weights(Some(DType::Int8G32));
            let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ids = tokens(40.min(model.position_limit().unwrap_or(usize::MAX)), model.vocabulary());
            for chunks in [&[40][..], &[30, 1]] {
                let logits = read(&model, &mut cache(&model, "f16", backend.store()), &ids, chunks);
                all.push((logits, model.vocabulary()));
            }
        }
        let (truth, width) = &all[0];
        let mut most = 0f64;
        for (found, _) in &all[1..] {
            for (truth, found) in truth.chunks(*width).zip(found.chunks(*width)) {
                let spread = truth.iter().fold(0f32, |most, x| most.max(x.abs()));
                let off = largest_difference(truth, found);
                most = most.max(off / f64::from(spread));
                let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                let (a, b) = (best(truth), best(found));
                assert!(truth[a] - truth[b] <= TIE * spread, "{name}: token {b} in place of {a}");
            }
        }
        println!("{name:20} off by {most:.1e} of the largest logit");
        assert!(most <= ARITHMETICS_APART, "{name}: {most:e}");
    }
}

/// Passes of one token: six kernels of a layer, one of which puts attention's splits together. A token that ends pages costs two more, one for
/// the keys of all layers and one for their values.
#[test]
fn dispatches_are_few() {
    for name in ["llama", "qwen3"] {
        // A device of the test's own: others count too.
        let Some(gpu) = common::open() else { return };
        let Loaded { backend, model, .. } = load(&gpu, name);
        let layers = model.description().layers.len();
        let ids = tokens(70, model.vocabulary());
        let mut cache = cache(&model, "int4", backend.store());
        read(&model, &mut cache, &ids[..50], &[50]);
        let before = gpu.dispatches();
        read(&model, &mut cache, &ids[50..51], &[1]);
        let found = gpu.dispatches() - before;
        assert!(found <= 6 * layers + 8, "{name}: {found} dispatches of {layers} layers");
        // Four sinks and a page of 64.
        let count = |tokens: &[u32], cache: &mut KvCache| {
            let before = gpu.dispatches();
            read(&model, cache, tokens, &[1]);
            gpu.dispatches() - before
        };
        count(&ids[51..66], &mut cache);
        let (usual, last) = (count(&ids[66..67], &mut cache), count(&ids[67..68], &mut cache));
        assert_eq!((usual, last), (found, found + 2), "{name}");
    }
}

/// Nothing on the device has room for a decoded page: as the context grows, pages do, by their bytes, and hardly anything else.
#[test]
fn no_buffer_holds_a_decoded_page() {
    // A device of the test's own: others count too.
    let Some(gpu) = common::open() else { return };
    let Loaded { backend, model, .. } = load(&gpu, "llama");
    let ids = tokens(300, model.vocabulary());
    for text in
        ["srft4g32:lambda", "k=srft4g32,v=asym4g32", "v3", "tq3", "k=klt4.25,v=rot4g32", "k8v2;sinks=3"]
    {
        let others = || gpu.buffer_bytes() - backend.pages().usage().reserved;
        let mut cache = cache(&model, text, backend.store());
        read(&model, &mut cache, &ids[..80], &[40]);
        let short = others();
        read(&model, &mut cache, &ids[80..], &[40]);
        let (pages, held) = (backend.pages().usage(), cache.footprint().bytes());
        assert!(pages.used <= held + 16 * pages.pages, "{text}: {} bytes of pages, {held} held", pages.used);
        // All of it in 16 bits would be this much.
        let shapes = model.slots().iter().map(|(_, slot)| match slot.kind {
            SlotKind::KeysValues(shape) => shape.kv_heads * (shape.key_dim + shape.value_dim),
            _ => 0,
        });
        let decoded = 2 * 220 * shapes.sum::<usize>();
        let more = others().saturating_sub(short);
        assert!(8 * more < decoded, "{text}: {more} bytes more beside pages, decoded {decoded}");
    }
}

/// Experts in a narrower space, beside one in the full width, and a prompt long enough that visits are sorted.
#[test]
fn experts_in_a_narrower_space_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let is_narrow = |description: &kvant_model::Description| {
        let mut mixers = description.layers.iter().flat_map(|layer| layer.mixers());
        mixers.any(|mixer| matches!(mixer, Mixer::Ffn(Ffn::Experts(of)) if of.latent.is_some()))
    };
    let mut models = kvant_conformance::wide::attending(true);
    models.retain(|(_, checkpoint)| is_narrow(&kvant_model::Description::of(checkpoint).unwrap()));
    assert!(!models.is_empty(), "no model has experts in a narrower space");
    for (name, checkpoint) in models {
        let backend = GpuBackend::new(&gpu);
        let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let host = on_cpu(&checkpoint);
        let ids = tokens(80, model.vocabulary());
        let on_gpu =
            |chunks: &[usize]| read(&model, &mut cache(&model, "f32", backend.store()), &ids, chunks);
        let found = on_gpu(&[70, 9, 1]);
        assert!(found == on_gpu(&[3, 8, 1]), "{name}: other chunks");
        let truth = read(&host, &mut cache(&host, "f32", Arena::new()), &ids, &[80]);
        let off = largest_difference(&found, &truth);
        println!("{name}: off by {off:.1e}");
        assert!(off <= 1e-4, "{name}: {off:e}");
    }
}

/// Narrow states are another result, but the CPU's, and the same one however tokens came.
#[test]
fn narrow_states_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for name in ["qwen3_5", "falcon_h1_norm"] {
        let Loaded { checkpoint, backend, model } = load(&gpu, name);
        let (host, ids) = (on_cpu(&checkpoint), tokens(150, model.vocabulary()));
        for state in [StateType::Bf16, StateType::Int8] {
            let policy = format!("f32;state={}", state.name());
            let on_gpu =
                |chunks: &[usize]| read(&model, &mut cache(&model, &policy, backend.store()), &ids, chunks);
            let found = on_gpu(&[150]);
            assert!(found == on_gpu(&[40, 50, 1]), "{name} {state}: other chunks");
            let truth = read(&host, &mut cache(&host, &policy, Arena::new()), &ids, &[150]);
            let off = largest_difference(&found, &truth);
            println!("{name} {state}: off by {off:.1e}");
            assert!(off <= 2e-3, "{name} {state}: {off:e}");
        }
    }
}
