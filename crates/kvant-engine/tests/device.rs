//! Models opened on a GPU as `kvant run --device gpu` opens them. They are no part of `cargo test`: `cargo xtask test gpu` runs them on
//! lavapipe.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_cpu::{Cpu, LoadOptions};
use kvant_engine::device::{self, BackendOptions, Device, DeviceChoice};
use kvant_engine::open::plan_path;
use kvant_engine::{
    ActivationType, Event, KvCache, LoadedModel, OpenNote, OpenOptions, Plan, Policy, Request,
    SamplingParams, Session, Snapshot,
};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn gpu() -> Arc<dyn Device> {
    match device::open(DeviceChoice::Gpu) {
        Ok(device) => device.expect("not the processor"),
        Err(error) => panic!("{error}; `cargo xtask test gpu` runs this test on lavapipe"),
    }
}

fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, tiny::model_bytes(true)).unwrap();
    (folder, path)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
}

fn options(device: DeviceChoice, kv: &str) -> OpenOptions {
    let policy: Policy = kv.parse().unwrap();
    OpenOptions {
        device,
        kv: Some(policy.into()),
        activations: ActivationType::F32,
        context: Some(400),
        ..OpenOptions::default()
    }
}

fn greedy(opened: &LoadedModel, session: &mut Session, more: &[u32], count: usize) -> Vec<u32> {
    let prompt = opened.engine().text_prompt("hello there").unwrap();
    let request = Request {
        prompt: [prompt, more.to_vec()].concat(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(count),
        ..Request::default()
    };
    session.generate(&request, &mut |_: Event<'_>| ControlFlow::Continue(())).unwrap().tokens
}

/// With caches whose pages the CPU reads without rounding queries to bytes; int4 is held to a bound below.
#[test]
fn greedy_tokens_are_those_of_the_cpu() {
    gpu();
    let (_folder, path) = model();
    for kv in ["f16", "int8"] {
        let [there, here] =
            [DeviceChoice::Gpu, DeviceChoice::Cpu].map(|device| options(device, kv).open(&path).unwrap());
        assert!(there.device().is_some() && here.device().is_none());
        assert!(there.engine().device().starts_with("gpu (") && here.engine().device() == "cpu");
        let [a, b] = [&there, &here].map(|of| greedy(of, &mut of.session().unwrap(), &[], 150));
        assert_eq!(a, b, "{kv}");
    }
}

/// Ids with the largest logit, read in chunks, and by how much they are ahead of the next.
fn likeliest(model: &Model, kv: &str, tokens: &[u32]) -> Vec<(usize, f32, Vec<f32>)> {
    let policy: Policy = kv.parse().unwrap();
    let mut cache = KvCache::in_arena(policy, model.slots(), tokens.len(), model.store()).unwrap();
    let mut found = Vec::new();
    for tokens in tokens.chunks(70) {
        let logits = model
            .forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [cache.sequence_mut()])
            .unwrap()
            .into_logits()
            .into_vec();
        for row in logits.chunks(model.vocabulary()) {
            let top = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            let others = row.iter().enumerate().filter(|(id, _)| *id != top).map(|(_, x)| *x);
            found.push((top, row[top] - others.fold(f32::MIN, f32::max), row.to_vec()));
        }
    }
    found
}

/// KL divergence of the second from the first, in nats.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let mass = |x: &[f32]| x.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
    let (mp, mq) = (mass(p), mass(q));
    p.iter()
        .zip(q)
        .map(|(p, q)| {
            let (p, q) = (f64::from(*p) - mp, f64::from(*q) - mq);
            p.exp() * (p - q)
        })
        .sum()
}

/// How far predictions are apart, in nats on average.
fn apart(truth: &[(usize, f32, Vec<f32>)], other: &[(usize, f32, Vec<f32>)]) -> f64 {
    truth.iter().zip(other).map(|(truth, other)| kl(&truth.2, &other.2)).sum::<f64>() / truth.len() as f64
}

/// With f16 predictions are the CPU's. With int4 they differ by a small part of what the codec costs: against int4 the CPU rounds
/// queries and weights to bytes, which these models of random weights feel.
#[test]
fn predictions_of_fixtures_are_those_of_the_cpu() {
    let device = gpu();
    for name in ["llama", "qwen3", "gemma3", "phi3", "gpt2"] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let here = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
        let there = Model::load(&*device.backend(BackendOptions::default()), &checkpoint).unwrap();
        let count = 200.min(here.position_limit().unwrap_or(usize::MAX)) as u32;
        let tokens: Vec<u32> = (0..count).map(|n| (n * 7919 + 13) % here.vocabulary() as u32).collect();
        let exact = likeliest(&here, "f32", &tokens);
        for (kv, part) in [("f16", 0.01), ("int4", 0.05)] {
            let (a, b) = (likeliest(&there, kv, &tokens), likeliest(&here, kv, &tokens));
            let (off, loss) = (apart(&b, &a), apart(&exact, &b));
            println!("{name:8} {kv:5} KL {off:.1e} where the codec costs {loss:.1e}");
            assert!(off <= part * loss + 1e-7, "{name} {kv}: {off:e} of {loss:e}");
            for (position, (a, b)) in a.iter().zip(&b).enumerate().filter(|_| kv == "f16") {
                assert!(a.0 == b.0 || b.1 < 1e-3, "{name} {kv}: {} and {} at {position}", a.0, b.0);
            }
        }
    }
}

/// The same on a real model, one window of 512, where `KVANT_MODELS` lists it.
#[test]
fn int4_of_a_real_model_is_the_cpus() {
    let device = gpu();
    let models = std::env::var_os("KVANT_MODELS").unwrap_or_default();
    let is_small = |path: &PathBuf| path.to_string_lossy().contains("SmolLM2-135M");
    let Some(path) = std::env::split_paths(&models).find(is_small) else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let here = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
    let there = Model::load(&*device.backend(BackendOptions::default()), &checkpoint).unwrap();
    let text = std::fs::read_to_string(fixture("../../../kvant-eval/text/test.txt")).unwrap();
    let tokenizer = Tokenizer::of(&checkpoint).unwrap();
    let text: String = text.chars().take(6000).collect();
    let mut tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
    tokens.truncate(512);
    assert_eq!(tokens.len(), 512);
    for kv in ["f16", "int4"] {
        let (a, b) = (likeliest(&there, kv, &tokens), likeliest(&here, kv, &tokens));
        let mean = apart(&b, &a);
        let same = a.iter().zip(&b).filter(|(a, b)| a.0 == b.0).count();
        println!("SmolLM2-135M {kv}: KL {mean:.2e}, the likeliest token is the same at {same} of 512");
        assert!(mean <= 1e-4, "{kv}: {mean:e}");
    }
}

#[test]
fn a_talk_moves_from_the_gpu_to_the_cpu_and_back() {
    gpu();
    let (folder, path) = model();
    let [there, here] =
        [DeviceChoice::Gpu, DeviceChoice::Cpu].map(|device| options(device, "int8").open(&path).unwrap());
    let signature = there.signature().unwrap();
    assert_eq!(signature, here.signature().unwrap());
    let whole = greedy(&here, &mut here.session().unwrap(), &[], 240);
    let file = folder.path().join("talk.kvant");
    let mut said: Vec<u32> = Vec::new();
    for (step, opened) in [&there, &here, &there].into_iter().enumerate() {
        let mut session = opened.session().unwrap();
        if step > 0 {
            session.resume(&Snapshot::open(&file).unwrap(), &signature).unwrap();
            // It began on the GPU, which rounds otherwise than the CPU.
            assert_eq!(session.has_other_numerics(), step == 1);
            // Nothing but the last token is read again.
            assert!(session.tokens().len() >= said.len());
        }
        said.extend(greedy(opened, &mut session, &said.clone(), 80));
        session.save(&file, signature, b"").unwrap();
    }
    assert_eq!(said, whole);
}

#[test]
fn what_does_not_run_is_refused_or_stays_on_the_cpu() {
    let device = gpu();
    let (_folder, path) = model();
    let refused = |options: OpenOptions, path: &Path| options.open(path).err().unwrap().to_string();
    // By name: codecs. Every block runs.
    let apart = "int4;heads 0:k=f16";
    let words = refused(options(DeviceChoice::Gpu, apart), &path);
    assert!(words.contains("have different formats") && words.contains("int4, int8"), "{words}");
    // Streaming windows run.
    let windowed = OpenOptions { window: Some(64), context: None, ..options(DeviceChoice::Gpu, "int4") };
    assert!(windowed.open(&path).unwrap().device().is_some());
    let mut opened = options(DeviceChoice::Gpu, "int4").open(&path).unwrap();
    assert!(opened.stream(64, 0).is_ok());
    // A plan that does not run there keeps the model on the CPU, with a note.
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = Plan::new(checkpoint.signature().0, apart.parse().unwrap(), "now", Vec::new());
    plan.unwrap().save(&plan_path(&checkpoint)).unwrap();
    let planned = OpenOptions { device: DeviceChoice::Gpu, ..OpenOptions::default() }.open(&path).unwrap();
    assert!(planned.device().is_none());
    let told =
        |note: &OpenNote| matches!(note, OpenNote::OnCpu { device: name, .. } if name == device.name());
    assert!(planned.notes().iter().any(told), "{:?}", planned.notes());
}

#[test]
fn software_is_never_chosen_unless_asked_for() {
    assert!(gpu().is_software(), "`cargo xtask test gpu` runs this test on lavapipe");
    let (_folder, path) = model();
    let opened = OpenOptions { device: DeviceChoice::Auto, ..OpenOptions::default() }.open(&path).unwrap();
    assert!(opened.device().is_none());
    assert_eq!(opened.notes(), []);
}
