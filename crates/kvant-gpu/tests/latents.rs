//! Attention over latents in compressed pages: against the CPU on the same codecs, and chunk by chunk.

mod common;

use common::gpu;
use kvant_attention::KvCache;
use kvant_cache::{Arena, Policy, Store};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_gpu::GpuBackend;
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

const TOKENS: usize = 150;

/// Logits of all tokens, in chunks of these sizes, the last again and again.
fn read(model: &Model, policy: &str, store: Store, chunks: &[usize]) -> Vec<f32> {
    let policy: Policy = policy.parse().unwrap();
    let mut cache = KvCache::in_arena(policy, model.slots(), 160, store).unwrap();
    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| (i * i * 7 + i * 13 + 5) % 251).collect();
    let (mut left, mut logits, mut sizes) = (&ids[..], Vec::new(), chunks.iter().copied());
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

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()))
}

/// MLA, and a value that serves keys too; codes in the model's basis and in one of their own.
#[test]
fn compressed_latents_agree_with_the_cpu_in_every_chunk() {
    let Some(gpu) = gpu() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    for (name, policy) in [("deepseek_v3", "int8"), ("gemma4_dense", "int4")] {
        let checkpoint = Checkpoint::open(folder.join(name)).unwrap();
        let backend = GpuBackend::new(&gpu);
        let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
        let found = read(&model, policy, backend.store(), &[TOKENS]);
        let other = read(&model, policy, backend.store(), &[31, 70, 1]);
        assert!(found == other, "{name} {policy}: chunks have other bits");
        let truth = read(&host, policy, Arena::new().into(), &[TOKENS]);
        let exact = read(&host, "f32", Arena::new().into(), &[TOKENS]);
        let (off, loss) = (apart(&found, &truth), apart(&truth, &exact));
        println!("{name} {policy}: off by {off:.1e} where the codec is off by {loss:.1e}");
        // Codes of numbers at a middle may differ; fitted scales of 4 bits make more of that than those of 8 do.
        let share = if policy == "int4" { 1.0 } else { 0.5 };
        assert!(off <= share * loss + 2e-4, "{name} {policy}: {off} of {loss}");
    }
}
