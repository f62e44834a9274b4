//! Whole models on a card: against the oracle, against the CPU on the same codecs, and against themselves.
//!
//! They are no part of `cargo test`: without a driver they fail. `cargo xtask test cuda` runs them on `tests/driver/libcuda.cpp`, which stands
//! in for a card, and `cargo xtask test card` on a card. `KVANT_CARD_TESTS=short` keeps the first from taking hours; `KVANT_CARD_FORM=ptx`
//! takes the PTX of the kernels where the card would take their cubins.

mod hybrids;
mod latent;
mod models;
mod prefill;
mod sampling;
mod strict;
mod tiles;
mod unread;

use kvant_attention::KvCache;
use kvant_cache::plan::{Klt, Plan, PlannedHead, PlannedSlot, SideCalibration};
use kvant_cache::snapshot::{self, Record};
use kvant_cache::{CacheLayout, KvShape, PageStore, Policy, SlotKind, Slots, Snapshot, Store};
use kvant_codec::{Dense, Side};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_cuda::kernels::Form;
use kvant_cuda::{CudaBackend, CudaGpu, PassOptions, WeightType};
use kvant_model::synth::{self, Shape};
use kvant_model::{Backend, Checkpoint, Chunk, DType, Description, Model, Pass, Rows};
use kvant_oracle::Oracle;
use models::{count, families, is_short, llama, models, shape, tokens};
use std::sync::{Arc, OnceLock};

/// The card of the tests, or the driver that stands in for one.
fn card() -> Arc<CudaGpu> {
    static CARD: OnceLock<Arc<CudaGpu>> = OnceLock::new();
    let form = std::env::var("KVANT_CARD_FORM").is_ok_and(|form| form == "ptx").then_some(Form::Ptx);
    let open = || match CudaGpu::open_as(0, form) {
        Ok(card) => {
            println!("{} on {} ({:?})", card.label(), card.name(), card.form());
            Arc::new(card)
        }
        Err(error) => {
            panic!("{error}; `cargo xtask test cuda` runs this test on a driver that stands in for a card")
        }
    };
    CARD.get_or_init(open).clone()
}

struct Loaded {
    backend: CudaBackend,
    model: Model,
}

fn load(card: &Arc<CudaGpu>, checkpoint: &Checkpoint) -> Loaded {
    let backend = CudaBackend::new(card).unwrap();
    let model = Model::load(&backend, checkpoint).unwrap();
    Loaded { backend, model }
}

fn on_cpu(checkpoint: &Checkpoint) -> Model {
    Model::load(&Cpu::new(LoadOptions::AS_STORED).unwrap(), checkpoint).unwrap()
}

fn cache(model: &Model, policy: &str, store: Option<Store>, capacity: usize) -> KvCache {
    let store = store.unwrap_or_else(|| kvant_cache::Arena::new().into());
    KvCache::in_arena(policy.parse::<Policy>().unwrap(), model.slots(), capacity, store).unwrap()
}

/// A policy whose keys are in bases of a plan made up for it: another basis, mean and widths for every head.
fn planned(slots: &Slots, policy: &str) -> Policy {
    let mut words = kvant_codec::split_mix(5);
    let mut number = move || (words.next().unwrap() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    let mut planned = Vec::new();
    for slot in slots.kv_slots() {
        let SlotKind::KeysValues(shape) = slots.get(slot.index()).unwrap().kind else {
            panic!("keys and values")
        };
        let dim = shape.key_dim;
        let mut findings = |head: usize| {
            let mut basis: Vec<f32> = (0..dim * dim).map(|_| 0.02 * number()).collect();
            (0..dim).for_each(|c| basis[c * dim + (c + 3 * head + 1) % dim] += 1.0);
            SideCalibration {
                mean: Some((0..dim).map(|_| 0.1 * number()).collect()),
                klt: Some(Klt {
                    basis: Arc::new(Dense::of(dim, basis).unwrap()),
                    variances: (0..dim).map(|c| (0.98 - 0.02 * head as f32).powi(c as i32)).collect(),
                }),
                ..SideCalibration::default()
            }
        };
        let heads = (0..shape.kv_heads)
            .map(|head| PlannedHead { key: findings(head), value: findings(head) })
            .collect();
        planned.push(PlannedSlot { key_dim: dim, value_dim: dim, heads });
    }
    let plan = Arc::new(Plan::new([7; 32], policy.parse().unwrap(), "a test", planned).unwrap());
    plan.with(plan.policy())
}

/// Keys of a plan as `kvant calibrate` makes it, in pages of 128 tokens beside values of 64, and in pages of 64.
const KLT: [&str; 2] = ["k=klt4.25,v=rot4g32", "k=klt4.25:p64,v=rot4g32"];

#[test]
fn keys_of_a_plan_agree_with_the_cpu_and_with_themselves() {
    let card = card();
    let [wide, narrow] = KLT;
    let shapes = [(wide, 4, 2, 64), (narrow, 2, 1, 128), (wide, 2, 1, 128), (narrow, 4, 2, 64)];
    for (klt, heads, kv_heads, dim) in shapes.into_iter().take(count(4, 2)) {
        let checkpoint = llama(&shape(heads, kv_heads, dim), synth::WeightType::F16);
        let Loaded { backend, model } = load(&card, &checkpoint);
        let host = on_cpu(&checkpoint);
        let ids = tokens(count(300, 150), model.vocabulary());
        let policy = planned(model.slots(), klt);
        let open = |model: &Model, store: Store| {
            KvCache::in_arena(policy.clone(), model.slots(), 320, store).unwrap()
        };
        let mut there = open(&host, kvant_cache::Arena::new().into());
        let truth = read(&host, &mut there, &ids, &[300]);
        let exact = read(&host, &mut cache(&host, "f32", None, 320), &ids, &[300]);
        let mut here = open(&model, backend.store());
        let found = read(&model, &mut here, &ids, &[100, 7, 1]);
        let recent = planned(model.slots(), &format!("{klt};recent=128"));
        let mut kept = KvCache::in_arena(recent, model.slots(), 320, backend.store()).unwrap();
        read(&model, &mut kept, &ids[..150], &[150]);
        let (off, loss) = (distance(&found, &truth), distance(&truth, &exact));
        println!("{klt} d{dim}: off by {off:.1e} where the codec is off by {loss:.1e}");
        assert!(off <= 0.5 * loss + 2e-2, "{klt} d{dim}: {off:.1e} of {loss:.1e}");
        // Pages that stay exact for a while, in chunks and step by step.
        let recently = planned(model.slots(), &format!("{klt};recent=70;sinks=0"));
        let open_recently =
            || KvCache::in_arena(recently.clone(), model.slots(), 320, backend.store()).unwrap();
        let whole = read(&model, &mut open_recently(), &ids, &[ids.len()]);
        assert_eq!(whole, read(&model, &mut open_recently(), &ids, &[90, 64, 3, 1]), "{klt} d{dim}: recent");
        assert_eq!(
            found,
            read(&model, &mut open(&model, backend.store()), &ids, &[ids.len()]),
            "other chunks"
        );
        for slot in model.slots().kv_slots() {
            for head in 0..kv_heads {
                let side = here.sequence().side(slot, head, Side::Key).unwrap();
                let layout = there.sequence().layout();
                let codec = layout.slots()[slot.index()].heads()[head].side(Side::Key).unwrap().codec();
                // The first page of the first layer, whose keys do not depend on the cache, is what the codec makes of its exact rows.
                let exact = kept.sequence().side(slot, head, Side::Key).unwrap().exact_id(0).unwrap();
                let coded = side.encoded_id(0).unwrap();
                let page_tokens = codec.page_tokens();
                let (mut halves, mut found) = (vec![0; 2 * page_tokens * dim], vec![0; codec.page_bytes()]);
                backend.pages().read(exact, &mut halves);
                backend.pages().read(coded, &mut found);
                let number = |i: usize| half::f16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]).to_f32();
                let number = |n: usize| number(n % dim * page_tokens + n / dim);
                let rows: Vec<f32> = (0..page_tokens * dim).map(number).collect();
                let mut want = vec![0; codec.page_bytes()];
                codec.encode(&rows, &mut want).unwrap();
                assert!(slot.index() > 0 || found == want, "d{dim} head {head}: not the CPU's bytes");
                let page = side.pages().next().unwrap();
                let before = last_logits(&model, &here, &ids);
                let (id, bytes) = (page.id().unwrap(), page.canonical().into_owned());
                for at in [1, bytes.len() / 4, bytes.len() / 2 + 1, bytes.len() - 3] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 0x35;
                    backend.pages().write(id, &flipped);
                    assert_ne!(before, last_logits(&model, &here, &ids), "d{dim} head {head} byte {at}");
                    backend.pages().write(id, &bytes);
                }
                assert_eq!(before, last_logits(&model, &here, &ids));
            }
        }
    }
}

/// Logits of one more token on a fork.
fn last_logits(model: &Model, cache: &KvCache, ids: &[u32]) -> Vec<f32> {
    let mut fork = cache.over(cache.sequence().fork().unwrap());
    read(model, &mut fork, &ids[..1], &[1])
}

/// Logits of all tokens, read in chunks of these sizes, the last again and again.
fn read(model: &Model, cache: &mut KvCache, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let (mut left, mut logits, mut sizes) = (tokens, Vec::new(), chunks.iter().copied());
    let last = *chunks.last().unwrap();
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(sizes.next().unwrap_or(last).min(left.len()));
        let chunk = Chunk::new(chunk, 0..chunk.len());
        logits.extend_from_slice(
            model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data(),
        );
        left = rest;
    }
    logits
}

/// ‖a − b‖ / ‖b‖.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let distance = (off / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

/// Rows of which both have the same largest logit, in percent.
fn same_choice(a: &[f32], b: &[f32], width: usize) -> usize {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    100 * rows.clone().filter(|(a, b)| largest(a) == largest(b)).count() / rows.count()
}

/// The inputs of all layers and the last output.
fn activations(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut seen = Vec::new();
    let mut observer = |_: usize, x: &Rows| seen.push(x.data().to_vec());
    model
        .forward(Pass::new(&[Chunk::new(tokens, 0..0)]).observed(&mut observer), &mut [cache.sequence_mut()])
        .unwrap();
    seen
}

#[test]
fn models_agree_with_the_oracle() {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in models() {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(count(200, 80), model.vocabulary());
        let oracle = Oracle::new(&Description::of(&checkpoint).unwrap(), &checkpoint).unwrap();
        let truth: Vec<f32> = oracle.run(&ids, 256).logits.iter().flatten().map(|x| *x as f32).collect();
        let mut cache = cache(&model, "f16", Some(backend.store()), 256);
        let found = read(&model, &mut cache, &ids, &[70, 5, 1]);
        let width = model.vocabulary();
        let by_row = |from: usize, to: usize| {
            distance(&found[from * width..to * width], &truth[from * width..to * width])
        };
        let (off, same) = (distance(&found, &truth), same_choice(&found, &truth, width));
        println!(
            "{name:16} off by {off:.1e} (first {:.1e}, chunk {:.1e}, steps {:.1e}), same choice {same} %",
            by_row(0, 1),
            by_row(0, 70),
            by_row(70, ids.len())
        );
        // f16 between blocks: 2⁻¹¹ a rounding, some tens of them.
        if off > 3e-3 || same < 97 {
            wrong.push(format!("{name} {off:.1e} {same}"));
            let (host, mut exact) = (on_cpu(&checkpoint), cache_on_cpu(&on_cpu(&checkpoint)));
            let truth = activations(&host, &mut exact, &ids[..6]);
            let mut fresh =
                KvCache::in_arena("f16".parse::<Policy>().unwrap(), model.slots(), 256, backend.store())
                    .unwrap();
            for (layer, (a, b)) in activations(&model, &mut fresh, &ids[..6]).iter().zip(&truth).enumerate() {
                println!("    layer {layer}: input off by {:.1e}", distance(a, b));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn the_table_of_models_says_what_runs() {
    let card = card();
    kvant_conformance::models_page("CUDA", |of, _| CudaBackend::check_model(&card, of));
    for known in synth::KNOWN {
        let outline = Checkpoint::from_config(known.config(), DType::F16).unwrap();
        let found = CudaBackend::check_model(&card, &Description::of(&outline).unwrap());
        assert!(found.is_ok(), "{}: {found:?}", known.name);
    }
}

#[test]
fn families_agree_with_the_oracle_and_with_themselves() {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in families() {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(count(120, 40), model.vocabulary());
        let oracle = Oracle::new(&Description::of(&checkpoint).unwrap(), &checkpoint).unwrap();
        let truth: Vec<f32> = oracle.run(&ids, 256).logits.iter().flatten().map(|x| *x as f32).collect();
        let open = || cache(&model, "f16", Some(backend.store()), 256);
        let found = read(&model, &mut open(), &ids, &[ids.len()]);
        let width = model.vocabulary();
        let rows = || found.chunks_exact(width).zip(truth.chunks_exact(width));
        let mut offs: Vec<f64> = rows().map(|(found, truth)| distance(found, truth)).collect();
        offs.sort_by(f64::total_cmp);
        let (median, most) = (offs[offs.len() / 2], offs[offs.len() - 1]);
        let same = same_choice(&found, &truth, width);
        let chunks = read(&model, &mut open(), &ids, &[9, 20, 1]) == found;
        println!(
            "{name:16} off by {median:.1e}, at most {most:.1e}, same choice {same} %, same bits in chunks {chunks}"
        );
        // A token whose second and third expert are nearly alike may go to the other one.
        if median > 3e-3 || same < 95 || !chunks {
            wrong.push(format!("{name} {median:.1e} {same} {chunks}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn cache_on_cpu(model: &Model) -> KvCache {
    cache(model, "f32", None, 256)
}

#[test]
fn compressed_caches_agree_with_the_cpu() {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in models() {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let host = on_cpu(&checkpoint);
        let ids = tokens(count(300, 150), model.vocabulary());
        let policies: &[&str] = if is_short() {
            &["int4", "k8v4"]
        } else {
            &["int4", "int4;sinks=0;recent=100", "int8", "k8v4", "f16;sinks=7;recent=70"]
        };
        for policy in policies {
            let truth = read(&host, &mut cache(&host, policy, None, 320), &ids, &[300]);
            let exact = read(&host, &mut cache(&host, "f32", None, 320), &ids, &[300]);
            let found =
                read(&model, &mut cache(&model, policy, Some(backend.store()), 320), &ids, &[100, 37, 1]);
            let (off, loss) = (distance(&found, &truth), distance(&truth, &exact));
            let same = same_choice(&found, &truth, model.vocabulary());
            println!(
                "{name:16} {policy:24} off by {off:.1e} where the codec is off by {loss:.1e}, same choice {same} %"
            );
            // Codes are the same but for numbers at a middle; then the CPU's rounding of activations, queries and weights to bytes.
            if off > 0.5 * loss + 2e-2 {
                wrong.push(format!("{name} {policy} {off:.1e} of {loss:.1e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn bits_do_not_depend_on_chunks_batches_graphs_or_runs() {
    let card = card();
    let checkpoint = llama(&shape(4, 2, 64), synth::WeightType::Int4);
    let n = count(300, 112);
    let ids = tokens(n, 300);
    for policy in ["int4", "int8", "k8v4;sinks=0", "f16;recent=64"] {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let logits = |chunks: &[usize]| {
            read(&model, &mut cache(&model, policy, Some(backend.store()), 320), &ids, chunks)
        };
        let whole = logits(&[n]);
        assert_eq!(whole, logits(&[n]), "{policy}: another run");
        assert_eq!(whole, logits(&[7, 64, 3, 1]), "{policy}: other chunks");
        assert_eq!(whole, logits(&[n - 10, 1]), "{policy}: a chunk, then steps");
        for options in [(true, false), (false, true), (false, false)].into_iter().take(count(3, 1)) {
            let options = PassOptions { early: options.0, graphs: options.1 };
            let backend = CudaBackend::new(&card).unwrap().with_options(options);
            let model = Model::load(&backend, &checkpoint).unwrap();
            let mut own = cache(&model, policy, Some(backend.store()), 320);
            assert_eq!(whole, read(&model, &mut own, &ids, &[n - 10, 1]), "{policy}: {options:?}");
        }
        // Beside other sequences, one of which brings a chunk.
        let mut alone = cache(&model, policy, Some(backend.store()), 320);
        read(&model, &mut alone, &ids[..100], &[100]);
        let mut fork = alone.over(alone.sequence().fork().unwrap());
        let mut other = alone.over(alone.sequence().prefix(68).unwrap());
        let mut third = alone.over(alone.sequence().prefix(68).unwrap());
        let at = other.len();
        let width = model.vocabulary();
        for step in 0..4 {
            let (one, two, three) = (
                &ids[100 + step..101 + step],
                &ids[at + 5 * step..at + 5 * step + 5],
                &ids[at + step..at + step + 1],
            );
            let chunk = |tokens| Chunk::new(tokens, 0..1);
            let mut batch = [&mut other, &mut fork, &mut third].map(KvCache::sequence_mut);
            let all = model
                .forward(Pass::new(&[chunk(two), chunk(one), chunk(three)]), &mut batch)
                .unwrap()
                .into_logits();
            let row = |position: usize| &whole[position * width..(position + 1) * width];
            assert_eq!(all.row(0), row(at + 5 * step), "{policy}: a chunk in a batch, step {step}");
            assert_eq!(all.row(1), row(100 + step), "{policy}: a step in a batch, step {step}");
            assert_eq!(all.row(2), row(at + step), "{policy}: a third, step {step}");
        }
        for step in 4..8 {
            let chunk = |tokens| Chunk::new(tokens, 0..1);
            let mut batch = [&mut fork, &mut third].map(KvCache::sequence_mut);
            let both = model
                .forward(
                    Pass::new(&[chunk(&ids[100 + step..101 + step]), chunk(&ids[at + step..at + step + 1])]),
                    &mut batch,
                )
                .unwrap()
                .into_logits();
            assert_eq!(
                both.row(0),
                &whole[(100 + step) * width..(101 + step) * width],
                "{policy}: steps alone"
            );
            assert_eq!(both.row(1), &whole[(at + step) * width..(at + step + 1) * width]);
        }
    }
}

/// Two models on one card, each on a thread of its own: while one makes a graph of its launches the other launches.
#[test]
fn models_of_one_card_do_not_take_each_others_launches() {
    let card = card();
    let steps = count(40, 8) as u32;
    let decode = |heads: usize| {
        let checkpoint = llama(&Shape { layers: 2, ..shape(heads, 1, 64) }, synth::WeightType::F16);
        let Loaded { backend, model } = load(&card, &checkpoint);
        let mut cache = cache(&model, "int4", Some(backend.store()), 64);
        (0..steps).map(|step| read(&model, &mut cache, &[step % 300], &[1])).collect::<Vec<_>>()
    };
    let alone = [1, 2].map(decode);
    let together = std::thread::scope(|scope| {
        let threads = [1, 2].map(|heads| scope.spawn(move || decode(heads)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(alone == together, "steps differ where two models run at once");
}

#[test]
fn a_talk_goes_on_after_going_back_and_memory_is_given_back() {
    let card = card();
    let checkpoint = llama(&shape(2, 1, 64), synth::WeightType::F16);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let ids = tokens(140, model.vocabulary());
    let mut cache = cache(&model, "int4", Some(backend.store()), 160);
    let whole = read(&model, &mut cache, &ids, &[140]);
    for len in [135, 70, 139, 3] {
        let left = cache.truncate(len);
        assert_eq!(read(&model, &mut cache, &ids[left..], &[9]), whole[left * model.vocabulary()..], "{len}");
    }
    assert!(backend.pages().usage().used > 0);
    drop(cache);
    assert_eq!(backend.pages().usage().used, 0);
}

#[test]
fn a_corrupt_byte_changes_the_output() {
    let card = card();
    let layers = count(2, 1);
    let checkpoint = llama(&Shape { layers, ..shape(4, 2, 64) }, synth::WeightType::F16);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let ids = tokens(150, model.vocabulary());
    for policy in ["int4", "int8", "k8v4", "f16"] {
        let mut cache = cache(&model, policy, Some(backend.store()), 160);
        read(&model, &mut cache, &ids[..149], &[149]);
        let last = |cache: &KvCache| {
            let mut fork = cache.over(cache.sequence().fork().unwrap());
            read(&model, &mut fork, &ids[149..], &[1])
        };
        let before = last(&cache);
        for slot in model.slots().kv_slots() {
            for side in [Side::Key, Side::Value] {
                let page = cache.sequence().side(slot, 1, side).unwrap().pages().next().unwrap();
                let (id, bytes) = (page.id().unwrap(), page.canonical().into_owned());
                for at in [1, bytes.len() / 2 + 1, bytes.len() - 3] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 0x35;
                    backend.pages().write(id, &flipped);
                    assert_ne!(before, last(&cache), "{policy} {side:?} {at}");
                    backend.pages().write(id, &bytes);
                    assert_eq!(before, last(&cache), "{policy} {side:?} {at}");
                }
            }
        }
    }
}

#[test]
fn sessions_move_between_the_card_and_the_cpu() {
    let card = card();
    let checkpoint = llama(&shape(4, 2, 64), synth::WeightType::F16);
    let Loaded { backend, model } = load(&card, &checkpoint);
    let host = on_cpu(&checkpoint);
    let ids = tokens(160, model.vocabulary());
    for policy in ["int4", "int8", "k8v4", "f16", KLT[0], KLT[1]] {
        let cache = |model: &Model, policy: &str, store: Option<Store>, capacity| match policy.contains("klt")
        {
            false => cache(model, policy, store, capacity),
            true => {
                let store = store.unwrap_or_else(|| kvant_cache::Arena::new().into());
                KvCache::in_arena(planned(model.slots(), policy), model.slots(), capacity, store).unwrap()
            }
        };
        let mut here = cache(&model, policy, Some(backend.store()), 200);
        let mut there = cache(&host, policy, None, 200);
        read(&model, &mut here, &ids[..150], &[150]);
        read(&host, &mut there, &ids[..150], &[150]);
        let save = |cache: &KvCache| {
            let record =
                Record { signature: [1; 32], numerics: [2; 32], policy, tokens: &ids[..150], note: b"" };
            let mut bytes = Vec::new();
            snapshot::write(cache.sequence(), &record, &mut bytes).unwrap();
            bytes
        };
        let (from_card, from_host) = (save(&here), save(&there));
        assert_eq!(from_card.len(), from_host.len());
        let restored = |bytes: &[u8], model: &Model, store: Option<Store>| {
            let mut fresh = cache(model, policy, store, 200);
            fresh.restore(&Snapshot::from_bytes(bytes.to_vec()).unwrap(), &[1; 32]).unwrap();
            fresh
        };
        // The card's own goes on with the same bits, and is saved again as it was.
        let mut again = restored(&from_card, &model, Some(backend.store()));
        assert_eq!(save(&again), from_card, "{policy}: saved before anything was read");
        let on = read(&model, &mut here, &ids[150..], &[1]);
        assert_eq!(on, read(&model, &mut again, &ids[150..], &[1]), "{policy}: resumed on the card");
        // Both ways between card and CPU.
        let moved = read(&host, &mut restored(&from_card, &host, None), &ids[150..], &[1]);
        let brought =
            read(&model, &mut restored(&from_host, &model, Some(backend.store())), &ids[150..], &[1]);
        let stayed = read(&host, &mut there, &ids[150..], &[1]);
        let offs = [distance(&moved, &on), distance(&brought, &stayed), distance(&on, &stayed)];
        println!(
            "{policy}: card to CPU {:.1e}, CPU to card {:.1e}; apart from the start {:.1e}",
            offs[0], offs[1], offs[2]
        );
        assert!(offs[0] < 2e-2 && offs[1] < 2e-2, "{policy}: {offs:?}");
    }
}

#[test]
fn what_does_not_run_is_refused_by_name() {
    let card = card();
    let backend = CudaBackend::new(&card).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests/fixtures/gemma3n");
    let description = Description::of(&Checkpoint::open(folder).unwrap()).unwrap();
    let refused = backend.noise(&description, WeightType::Q4_0).err().expect("Gemma 3n runs").to_string();
    assert!(refused.contains("several residual streams") && refused.contains("cuda:0"), "{refused}");
    let slots = |dim| Slots::uniform(1, KvShape { kv_heads: 2, key_dim: dim, value_dim: dim, window: None });
    for (policy, dim, word) in [
        ("ch3", 64, "3 bits"),
        ("kivi4", 128, "tokens"),
        ("int4", 72, "72 channels"),
        ("int4", 320, "320 channels"),
        ("k=f16,v=rot4g32", 64, "f16 keys beside 4-bit values"),
        ("bf16", 64, "Bf16"),
    ] {
        let layout = CacheLayout::new(&policy.parse().unwrap(), &slots(dim)).unwrap();
        let refused = backend.check_cache(&layout).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("layer 0"), "{policy}: {refused}");
    }
    // Pages of the host are not a card's.
    let checkpoint = llama(&shape(2, 1, 64), synth::WeightType::F16);
    let model = Model::load(&backend as &dyn Backend, &checkpoint).unwrap();
    let mut host = cache(&model, "int4", None, 16);
    let refused =
        model.forward(Pass::new(&[Chunk::new(&[1], 0..1)]), &mut [host.sequence_mut()]).unwrap_err();
    assert!(refused.to_string().contains("host memory"), "{refused}");
}

#[test]
fn a_full_memory_is_said_and_loses_nothing() {
    let card = card();
    let checkpoint = llama(&shape(2, 1, 64), synth::WeightType::F16);
    let cap = Some(200_000);
    let backend = CudaBackend::new(&card).unwrap().with_cap(cap).unwrap();
    let model = Model::load(&backend, &checkpoint).unwrap();
    let ids = tokens(1000, model.vocabulary());
    let mut cache = cache(&model, "f16", Some(backend.store()), 1000);
    let mut before = Vec::new();
    let refused = loop {
        let at = cache.len();
        match model.forward(Pass::new(&[Chunk::new(&ids[at..at + 60], 0..1)]), &mut [cache.sequence_mut()]) {
            Ok(outputs) => before = outputs.into_logits().into_vec(),
            Err(refused) => break refused.to_string(),
        }
    };
    assert!(refused.contains("full"), "{refused}");
    let at = cache.len();
    assert!(at > 60);
    let left = cache.truncate(at - 60);
    let again = read(&model, &mut cache, &ids[left..at], &[60]);
    let width = model.vocabulary();
    let row = at - 60 - left;
    assert_eq!(before, again[row * width..(row + 1) * width]);
}
