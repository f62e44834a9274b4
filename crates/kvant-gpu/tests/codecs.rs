//! Every codec that runs on the device, in whole models: against the CPU, against itself, and across files.

mod common;

use common::gpu;
use kvant_attention::KvCache;
use kvant_cache::plan::{Klt, Plan, PlannedHead, PlannedSlot, SideCalibration};
use kvant_cache::snapshot::{Record, Snapshot, write};
use kvant_cache::{KvSlot, PageStore, Policy, SlotKind, Store};
use kvant_codec::{Dense, PageFormat, Side};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_gpu::{Gpu, GpuBackend};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;
use std::sync::Arc;

/// A model on the device and on the host.
struct Both {
    backend: GpuBackend,
    model: Model,
    host: Model,
}

fn load(gpu: &Gpu, name: &str) -> Both {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name);
    let checkpoint = Checkpoint::open(path).unwrap();
    let backend = GpuBackend::new(gpu);
    let model = Model::load(&backend, &checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
    let host = Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), &checkpoint).unwrap();
    Both { backend, model, host }
}

impl Both {
    fn ids(&self, count: usize) -> Vec<u32> {
        let words = kvant_codec::split_mix(9);
        words.take(count).map(|word| ((word >> 33) as usize % self.model.vocabulary()) as u32).collect()
    }

    /// A policy; with a plan made up for the model where it needs one.
    fn policy(&self, text: &str) -> Policy {
        let policy: Policy = text.parse().unwrap();
        if !text.contains("klt") && !text.contains("lambda") {
            return policy;
        }
        let mut words = kvant_codec::split_mix(3);
        let mut number = || (words.next().unwrap() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let mut findings = |dim: usize, head: usize| {
            let mut basis: Vec<f32> = (0..dim * dim).map(|_| 0.05 * number()).collect();
            (0..dim).for_each(|c| basis[c * dim + (c + head) % dim] += 1.0);
            SideCalibration {
                mean: Some((0..dim).map(|_| 0.1 * number()).collect()),
                range: Some([(0..dim).map(|_| number() - 1.5).collect(), vec![1.0; dim]]),
                klt: Some(Klt {
                    basis: Arc::new(Dense::of(dim, basis).unwrap()),
                    variances: (0..dim).map(|c| (0.9 - 0.1 * head as f32).powi(c as i32)).collect(),
                }),
                ..SideCalibration::default()
            }
        };
        let mut slots = Vec::new();
        for (_, slot) in self.model.slots().iter() {
            let SlotKind::KeysValues(shape) = slot.kind else { panic!("keys and values") };
            let heads = (0..shape.kv_heads)
                .map(|head| PlannedHead {
                    key: findings(shape.key_dim, head),
                    value: findings(shape.value_dim, head + 1),
                })
                .collect();
            slots.push(PlannedSlot { key_dim: shape.key_dim, value_dim: shape.value_dim, heads });
        }
        let plan = Arc::new(Plan::new([7; 32], policy, "a test", slots).unwrap());
        plan.with(plan.policy())
    }

    fn on_device(&self, policy: &Policy) -> Sequence<'_> {
        Sequence::new(&self.model, policy, self.backend.store())
    }

    fn on_host(&self, policy: &Policy) -> Sequence<'_> {
        Sequence::new(&self.host, policy, kvant_cache::Arena::new().into())
    }
}

const CAPACITY: usize = 320;

struct Sequence<'m> {
    model: &'m Model,
    cache: KvCache,
}

impl<'m> Sequence<'m> {
    fn new(model: &'m Model, policy: &Policy, store: Store) -> Sequence<'m> {
        let cache = KvCache::in_arena(policy.clone(), model.slots(), CAPACITY, store).unwrap();
        Sequence { model, cache }
    }

    /// The logits of all tokens.
    fn read(&mut self, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut logits = Vec::new();
        for tokens in tokens.chunks(chunk) {
            let chunk = Chunk::new(tokens, 0..tokens.len());
            logits.extend_from_slice(
                self.model
                    .forward(Pass::new(&[chunk]), &mut [self.cache.sequence_mut()])
                    .unwrap()
                    .into_logits()
                    .data(),
            );
        }
        logits
    }

    fn file(&self, tokens: &[u32]) -> Vec<u8> {
        let policy = self.cache.policy().to_string();
        let record = Record { signature: [1; 32], numerics: [2; 32], policy: &policy, tokens, note: b"" };
        let mut bytes = Vec::new();
        write(self.cache.sequence(), &record, &mut bytes).unwrap();
        bytes
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    off.fold(0.0, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) })
}

/// What is new beside int4, int8 and f16, which `whole.rs` has.
const POLICIES: [&str; 7] = [
    "srft4g32:lambda",
    "k=srft4g32,v=asym4g32",
    "v3",
    "tq3",
    "k=klt4.25,v=rot4g32",
    "k=klt3:p32,v=klt4:p64;sinks=0;recent=100",
    "k8v2;sinks=3",
];

#[test]
fn every_codec_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (name, policies) in [
        ("llama", &POLICIES[..]),
        ("gemma3", &["k=klt4:p64,v=klt5", "srft4g32"]),
        ("mistral", &["k=klt5,v=tq4"]),
    ] {
        let both = load(&gpu, name);
        let ids = both.ids(300);
        let exact = both.on_host(&both.policy("f32")).read(&ids, 300);
        for text in policies {
            let policy = both.policy(text);
            let truth = both.on_host(&policy).read(&ids, 300);
            let found = both.on_device(&policy).read(&ids, 130);
            let (off, loss) = (largest_difference(&found, &truth), largest_difference(&truth, &exact));
            println!("{name:10} {text:42} off by {off:.1e} where the codec is off by {loss:.1e}");
            // Codes are the same but for roundings at a middle; what is left is the CPU's rounding of queries and weights to bytes.
            assert!(off <= 0.35 * loss + 2e-4, "{name} {text}: {off} of {loss}");
        }
    }
}

#[test]
fn forks_prefixes_and_rollback_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let both = load(&gpu, "llama");
    let (ids, width) = (both.ids(200), both.model.vocabulary());
    for text in POLICIES {
        let policy = both.policy(text);
        let mut sequence = both.on_device(&policy);
        let whole = sequence.read(&ids, 200);
        let left = sequence.cache.truncate(190);
        assert!(sequence.read(&ids[left..], 7) == whole[left * width..], "{text}: rollback to {left}");
        drop(sequence);
        let mut sequence = both.on_device(&policy);
        sequence.read(&ids[..170], 50);
        for part in
            [sequence.cache.sequence().fork().unwrap(), sequence.cache.sequence().prefix(136).unwrap()]
        {
            let (model, from) = (&both.model, part.len());
            let mut other = Sequence { model, cache: sequence.cache.over(part) };
            assert!(other.read(&ids[from..], 11) == whole[from * width..], "{text}: from {from} on");
        }
        drop(sequence);
        assert_eq!(both.backend.pages().usage().used, 0, "{text}");
    }
}

/// A byte of every part of a page: arrays of scales and zeros, codes of every width.
#[test]
fn a_corrupt_byte_of_every_part_changes_the_output() {
    let Some(gpu) = gpu() else { return };
    let both = load(&gpu, "llama");
    let ids = both.ids(180);
    let slot: KvSlot = both.model.slots().kv_slots().next().unwrap();
    for text in POLICIES {
        let mut sequence = both.on_device(&both.policy(text));
        sequence.read(&ids[..179], 179);
        let last = || {
            let fork = sequence.cache.sequence().fork().unwrap();
            Sequence { model: &both.model, cache: sequence.cache.over(fork) }.read(&ids[179..], 1)
        };
        let before = last();
        for side in [Side::Key, Side::Value] {
            let layout = Arc::clone(sequence.cache.sequence().layout());
            let format = layout.slots()[0].heads()[0].side(side).unwrap().codec().format();
            let parts: Vec<usize> = match &format {
                Some(PageFormat::Packed(format)) => {
                    let arrays = [
                        &format.channel_scale,
                        &format.channel_zero,
                        &format.token_scale,
                        &format.token_zero,
                    ];
                    let ranges = arrays.into_iter().flatten().map(|range| range.start + 1);
                    ranges.chain(format.spans.iter().map(|span| span.codes + 1)).collect()
                }
                _ => vec![1],
            };
            let page = sequence.cache.sequence().side(slot, 0, side).unwrap().pages().next().unwrap();
            let (id, bytes) = (page.id().unwrap(), page.canonical().into_owned());
            for at in parts {
                let mut corrupt = bytes.clone();
                corrupt[at] ^= 0x37;
                PageStore::write(&**both.backend.pages(), id, &corrupt);
                assert_ne!(before, last(), "{text} {side:?}: byte {at} of {}", bytes.len());
            }
            PageStore::write(&**both.backend.pages(), id, &bytes);
            assert_eq!(before, last(), "{text} {side:?}");
        }
    }
}

/// Nothing on the device has room for a decoded page: as the context grows, pages do, by their bytes, and hardly anything else.
#[test]
fn no_buffer_holds_a_decoded_page() {
    // A device of the test's own: others count too.
    let Some(gpu) = common::open() else { return };
    let both = load(&gpu, "llama");
    let ids = both.ids(300);
    for text in POLICIES {
        let others = || gpu.buffer_bytes() - both.backend.pages().usage().reserved;
        let mut sequence = both.on_device(&both.policy(text));
        sequence.read(&ids[..80], 40);
        let short = others();
        sequence.read(&ids[80..], 40);
        let (pages, held) = (both.backend.pages().usage(), sequence.cache.footprint().bytes());
        assert!(pages.used <= held + 16 * pages.pages, "{text}: {} bytes of pages, {held} held", pages.used);
        // All of it in 16 bits would be this much.
        let shapes = both.model.slots().iter().map(|(_, slot)| match slot.kind {
            SlotKind::KeysValues(shape) => shape.kv_heads * (shape.key_dim + shape.value_dim),
            _ => 0,
        });
        let decoded = 2 * 220 * shapes.sum::<usize>();
        let more = others().saturating_sub(short);
        assert!(8 * more < decoded, "{text}: {more} bytes more beside pages, decoded {decoded}");
    }
}

/// A file of the device's is one of the host's, to the byte, and a talk goes on from it on both.
#[test]
fn talks_move_from_the_device_to_the_host_and_back() {
    let Some(gpu) = gpu() else { return };
    let both = load(&gpu, "llama");
    let ids = both.ids(230);
    for text in POLICIES {
        let policy = both.policy(text);
        let mut device = both.on_device(&policy);
        device.read(&ids[..200], 90);
        let file = device.file(&ids[..200]);
        let saved = Snapshot::from_bytes(file.clone()).unwrap();
        let (mut host, mut back) = (both.on_host(&policy), both.on_device(&policy));
        host.cache.restore(&saved, &[1; 32]).unwrap();
        assert!(host.file(&ids[..200]) == file, "{text}: the file changed on the host");
        let saved = Snapshot::from_bytes(host.file(&ids[..200])).unwrap();
        back.cache.restore(&saved, &[1; 32]).unwrap();
        assert!(back.file(&ids[..200]) == file, "{text}: the file changed on the way back");
        let on = device.read(&ids[200..], 30);
        assert!(back.read(&ids[200..], 30) == on, "{text}: other bits after the way back");
        let (there, size) = (host.read(&ids[200..], 30), on.iter().fold(0.0f32, |size, x| size.max(x.abs())));
        let off = largest_difference(&there, &on);
        assert!(off < 0.1 * size, "{text}: {off} of {size} on the host");
    }
}
