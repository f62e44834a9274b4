//! Recurrent state on the device: chunks, batches, forks, the way back, and the numbers it is stored in.

mod common;

use common::gpu;
use kvant_attention::KvCache;
use kvant_cache::{Policy, StateType};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_gpu::{Gpu, GpuBackend};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

/// One of each mixer: a short convolution, a gated DeltaNet, Mamba-2.
const MIXERS: [&str; 3] = ["lfm2", "qwen3_5", "falcon_h1_norm"];

fn checkpoint(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    Checkpoint::open(folder.join(name)).unwrap()
}

fn load(gpu: &Gpu, name: &str) -> (GpuBackend, Model) {
    let backend = GpuBackend::new(gpu);
    let model = Model::load(&backend, &checkpoint(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    (backend, model)
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + i * 13 + 5) % 251).collect()
}

fn cache(backend: &GpuBackend, model: &Model, policy: &str) -> KvCache {
    KvCache::in_arena(policy.parse::<Policy>().unwrap(), model.slots(), 256, backend.store()).unwrap()
}

/// Logits of all tokens, read in chunks of these sizes, the last again and again.
fn read(model: &Model, cache: &mut KvCache, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let (mut left, mut logits, mut sizes) = (tokens, Vec::new(), chunks.iter().copied());
    let last = *chunks.last().unwrap();
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(sizes.next().unwrap_or(last).min(left.len()));
        let chunk = Chunk::new(chunk, 0..chunk.len());
        let pass = model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap();
        logits.extend_from_slice(pass.into_logits().data());
        left = rest;
    }
    logits
}

#[test]
fn bits_do_not_depend_on_chunks_batches_forks_or_the_way_back() {
    let Some(gpu) = gpu() else { return };
    for name in MIXERS {
        let (backend, model) = load(&gpu, name);
        let (ids, width) = (tokens(200), model.vocabulary());
        let whole = read(&model, &mut cache(&backend, &model, "f16"), &ids, &[200]);
        let mut other = cache(&backend, &model, "f16");
        assert!(whole == read(&model, &mut other, &ids, &[9, 70, 1, 3, 60]), "{name}: other chunks");
        // Back within the open chunk, and over its start.
        for back in [195, 140] {
            let left = other.truncate(back);
            assert!(left <= back, "{name}: {left} tokens are left of {back}");
            let again = read(&model, &mut other, &ids[left..], &[11, 1]);
            assert!(again == whole[left * width..], "{name}: after going back to {back}");
        }
        // A fork and a prefix in one pass, at different places of their chunks.
        let mut alone = cache(&backend, &model, "f16");
        read(&model, &mut alone, &ids[..100], &[100]);
        let mut fork = alone.over(alone.sequence().fork().unwrap());
        let mut earlier = alone.over(alone.sequence().prefix(64).unwrap());
        let held = earlier.sequence().len();
        assert!(held <= 64, "{name}: a prefix of {held} tokens");
        let chunks = [Chunk::new(&ids[held..69], 68 - held..69 - held), Chunk::new(&ids[100..130], 29..30)];
        let mut batch = [&mut earlier, &mut fork].map(KvCache::sequence_mut);
        let both = model.forward(Pass::new(&chunks), &mut batch).unwrap().into_logits();
        assert!(both.data()[..width] == whole[68 * width..69 * width], "{name}: a prefix beside a fork");
        assert!(both.data()[width..] == whole[129 * width..130 * width], "{name}: a fork");
    }
}

/// Narrow states are another result, but the CPU's, and the same one however tokens came.
#[test]
fn narrow_states_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for name in ["qwen3_5", "falcon_h1_norm"] {
        let (backend, model) = load(&gpu, name);
        let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint(name)).unwrap();
        let ids = tokens(150);
        for state in [StateType::Bf16, StateType::Int8] {
            let policy = format!("f32;state={}", state.name());
            let mut own = cache(&backend, &model, &policy);
            let found = read(&model, &mut own, &ids, &[150]);
            let other = read(&model, &mut cache(&backend, &model, &policy), &ids, &[40, 50, 1]);
            assert!(found == other, "{name} {state}: other chunks");
            let arena = kvant_cache::Arena::new();
            let policy: Policy = policy.parse().unwrap();
            let mut there = KvCache::in_arena(policy, model.slots(), 256, arena).unwrap();
            let truth = read(&host, &mut there, &ids, &[150]);
            let off = found.iter().zip(&truth).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            println!("{name} {state}: off by {off:.1e}");
            assert!(off <= 2e-3, "{name} {state}: {off:e}");
        }
    }
}
