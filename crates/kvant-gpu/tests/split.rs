//! Models cut between two layers: the first on the device, the rest on the processor.

mod common;

use common::{gpu, short_or_all};
use kvant_attention::KvCache;
use kvant_cache::snapshot::{self, Record};
use kvant_cache::{Arena, Snapshot, Store};
use kvant_conformance::policy;
use kvant_conformance::reading::{largest_difference, read, tokens};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_device::{BackendOptions, Device, SplitDevice};
use kvant_model::{Backend, Checkpoint, Chunk, Description, Model, Pass};
use std::path::Path;
use std::sync::Arc;

/// Tokens that are read.
const TOKENS: usize = 150;

fn checkpoint(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    Checkpoint::open(folder.join(name)).unwrap()
}

fn cpu() -> Cpu {
    Cpu::new(LoadOptions::AS_STORED).unwrap()
}

/// The first layers of a model on the device.
fn split(device: Arc<dyn Device>, checkpoint: &Checkpoint, layers: usize) -> Model {
    let rest = |_: BackendOptions| Ok(Box::new(cpu()) as Box<dyn Backend + Sync>);
    let device = SplitDevice::new(device, Arc::new(rest), layers);
    device.check_model(&Description::of(checkpoint).unwrap(), checkpoint).unwrap();
    let backend = device.backend(BackendOptions::default());
    Model::load(&*backend, checkpoint).unwrap_or_else(|e| panic!("{e}"))
}

fn cache(model: &Model, text: &str) -> KvCache {
    KvCache::in_arena(policy(text, model.slots()), model.slots(), 2 * TOKENS, model.store()).unwrap()
}

/// Dense layers, windows, learned positions, experts and recurrent state, cut after every layer.
#[test]
fn every_cut_computes_what_the_processor_does() {
    let Some(gpu) = gpu() else { return };
    for name in ["llama", "gpt2", "mixtral", "qwen3_5"] {
        let checkpoint = checkpoint(name);
        let host = Model::load(&cpu(), &checkpoint).unwrap();
        let count = TOKENS.min(host.position_limit().unwrap_or(usize::MAX));
        let ids = tokens(count, host.vocabulary());
        let truth = read(&host, &mut cache(&host, "f32"), &ids, &[count]);
        let cuts = host.description().layers.len() - 1;
        for layers in (1..=cuts).step_by(short_or_all(cuts, 1)) {
            let model = split(Arc::new(gpu.clone()), &checkpoint, layers);
            let found = read(&model, &mut cache(&model, "f32"), &ids, &[60, 1, 7]);
            let off = largest_difference(&found, &truth);
            println!("{name} after {layers} layers: off by {off:.1e}");
            assert!(off <= 1e-3, "{name} after {layers} layers: {off:e}");
        }
    }
}

/// Sequences beside each other, forks, and files that move to the processor and back.
#[test]
fn sequences_of_two_places_are_sequences() {
    let Some(gpu) = gpu() else { return };
    let checkpoint = checkpoint("llama");
    let host = Model::load(&cpu(), &checkpoint).unwrap();
    let model = split(Arc::new(gpu), &checkpoint, 1);
    let ids = tokens(TOKENS, model.vocabulary());
    for text in ["int4", "int8;sinks=3;recent=70", "int8;window=64"] {
        let mut whole = cache(&model, text);
        let before = model.store().usage();
        let all = read(&model, &mut whole, &ids, &[90, 1]);
        let last = &all[all.len() - model.vocabulary()..];
        // The same tokens in two sequences of one pass.
        let mut one = cache(&model, text);
        read(&model, &mut one, &ids[..TOKENS - 4], &[90, 1]);
        let mut two = one.over(one.sequence().fork().unwrap());
        let (left, right) = (&ids[TOKENS - 4..], &ids[TOKENS - 4..]);
        let chunks = [Chunk::new(left, 3..4), Chunk::new(right, 3..4)];
        let outputs =
            model.forward(Pass::new(&chunks), &mut [one.sequence_mut(), two.sequence_mut()]).unwrap();
        assert_eq!(outputs.row(0).logits(), outputs.row(1).logits(), "{text}");
        let off = largest_difference(outputs.row(0).logits(), last);
        assert!(off < 1e-3, "{text}: {off:e}");
        drop((one, two));
        if text.contains("window") {
            continue;
        }
        // Back by some tokens and on again.
        let held = whole.sequence_mut().truncate(TOKENS - 9).unwrap();
        let again = read(&model, &mut whole, &ids[held..], &[9]);
        let off = largest_difference(&again[again.len() - last.len()..], last);
        assert!(off < 1e-3, "{text}: {off:e} after going back");
        let kept = policy(text, model.slots());
        let name = kept.to_string();
        let record = Record { signature: [1; 32], numerics: [2; 32], policy: &name, tokens: &ids, note: b"" };
        let file = |cache: &KvCache| {
            let mut bytes = Vec::new();
            snapshot::write(cache.sequence(), &record, &mut bytes).unwrap();
            bytes
        };
        let restored = |bytes: Vec<u8>, store: Store| {
            let mut fresh = KvCache::in_arena(kept.clone(), model.slots(), 2 * TOKENS, store).unwrap();
            fresh.restore(&Snapshot::from_bytes(bytes).unwrap(), &[1; 32]).unwrap();
            fresh
        };
        let saved = file(&whole);
        let mut on_host = restored(saved.clone(), Arena::new().into());
        assert!(file(&on_host) == saved, "{text}: the file changed on the processor");
        let mut back = restored(file(&on_host), model.store());
        assert!(file(&back) == saved, "{text}: the file changed on the way back");
        let next = read(&model, &mut whole, &ids[..3], &[3]);
        assert!(read(&model, &mut back, &ids[..3], &[3]) == next, "{text}: other bits after the way back");
        // The processor rounds queries and weights to bytes.
        let size = next.iter().fold(0f32, |size, x| size.max(x.abs()));
        let off = largest_difference(&read(&host, &mut on_host, &ids[..3], &[3]), &next);
        assert!(off < 0.1 * f64::from(size), "{text}: {off:e} of {size} on the processor");
        drop((whole, back));
        assert_eq!(model.store().usage().used, before.used, "{text}: pages are given back");
    }
}

#[test]
fn models_that_cannot_be_cut_are_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let checkpoint = checkpoint("llama");
    let description = Description::of(&checkpoint).unwrap();
    let layers = description.layers.len();
    let rest = |_: BackendOptions| Ok(Box::new(cpu()) as Box<dyn Backend + Sync>);
    let device = SplitDevice::new(Arc::new(gpu), Arc::new(rest), layers);
    let refused = device.check_model(&description, &checkpoint).unwrap_err().to_string();
    assert!(refused.contains(&format!("{layers} layers cannot be cut")), "{refused}");
}
