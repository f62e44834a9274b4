//! Whole models on a card: what every backend is held to, and what is peculiar to this one.
//!
//! They are no part of `cargo test`: without a driver they fail. `cargo xtask test cuda` runs them on `tests/driver/libcuda.cpp`, which stands
//! in for a card, and `cargo xtask test card` on a card. `KVANT_CARD_TESTS=short` keeps the first from taking hours; `KVANT_CARD_FORM=ptx`
//! takes the PTX of the kernels where the card would take their cubins.

mod general;
mod latent;
mod prefill;
mod sampling;
mod sparse;
mod states;
mod strict;
mod tiles;
mod unread;
mod upload;
mod wide;

use kvant_attention::KvCache;
use kvant_cache::{Arena, CacheLayout, KvShape, PageStore, Slots, Store};
use kvant_codec::Side;
use kvant_conformance::reading::{distance, read, tokens};
use kvant_conformance::wide::{llama, shape};
use kvant_conformance::{Bounds, ModelSet, Refused, Subject, policy};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_cuda::kernels::Form;
use kvant_cuda::{CudaBackend, CudaDevice, CudaGpu, PassOptions, WeightType};
use kvant_model::synth::{self, Known, Shape};
use kvant_model::{Checkpoint, Chunk, DType, Description, Model, Pass};
use std::sync::{Arc, OnceLock};

kvant_conformance::conformance!(subject);

fn subject() -> Option<Subject> {
    let device = Arc::new(CudaDevice::new(card()));
    Some(Subject { device, models: ModelSet::Wide, short: is_short(), bounds: Bounds::F16, refuses: REFUSES })
}

/// Kernels are for heads of 64 channels and more, and for recurrent states of whole 16: the wide models stand for fixtures with narrower ones.
const REFUSES: &[Refused] = &[
    Refused {
        because: "latents of 24 and 8 channels",
        names: &["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"],
    },
    Refused {
        because: "heads of 24 and 24 channels",
        names: &["ernie4_5", "glm4_moe", "hunyuan_v1_dense", "minimax_m2", "seed_oss"],
    },
    Refused {
        because: "heads of 16 and 16 channels",
        names: &[
            "ernie4_5_moe",
            "exaone4",
            "exaone4_full",
            "gemma3n",
            "gemma4_dense",
            "gemma4_e",
            "gemma4_moe",
            "gpt2",
            "gpt_neox",
            "gpt_oss",
            "granite",
            "granitemoehybrid_dense",
            "lfm2",
            "lfm2_moe",
            "llama",
            "llama_tied",
            "mistral",
            "mixtral",
            "olmo2",
            "olmo3",
            "phi3",
            "phi3_longrope",
            "qwen2",
            "qwen2_moe",
            "smollm3",
            "starcoder2",
        ],
    },
    Refused { because: "recurrent state of", names: &["falcon_h1_norm", "nemotron_h", "nemotron_h_moe"] },
    Refused { because: "heads of 16 and 8 channels", names: &["mimo_v2_flash"] },
    Refused { because: "heads of 20 and 20 channels", names: &["falcon_h1"] },
    Refused { because: "experts of 48 and 24 rows", names: &["granitemoehybrid"] },
    Refused { because: "experts of 64 and 24 rows", names: &["qwen3_5_moe", "qwen3_next"] },
    Refused {
        because: "heads of 32 and 32 channels",
        names: &[
            "gemma",
            "gemma2",
            "gemma3_linear",
            "llama3_rope",
            "llama_hd",
            "qwen2_yarn",
            "qwen3",
            "qwen3_5",
            "qwen3_moe",
            "qwen3_vl",
        ],
    },
    Refused { because: "rows of 48 numbers, not of whole 64", names: &["gemma3"] },
    Refused { because: "rows of 72 numbers, not of whole 64", names: &["smollm2"] },
    Refused { because: "streaming windows (StreamingLLM)", names: &["int8;window=96"] },
];

fn is_short() -> bool {
    std::env::var("KVANT_CARD_TESTS").is_ok_and(|value| value == "short")
}

/// This many tokens, or fewer where a card is only stood in for.
fn count(tokens: usize, short: usize) -> usize {
    if is_short() { short } else { tokens }
}

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

fn cache(model: &Model, text: &str, store: Option<Store>, capacity: usize) -> KvCache {
    let store = store.unwrap_or_else(|| Arena::new().into());
    KvCache::in_arena(policy(text, model.slots()), model.slots(), capacity, store).unwrap()
}

/// Keys of a plan as `kvant calibrate` makes it, in pages of 128 tokens beside values of 64, and in pages of 64.
const KLT: [&str; 2] = ["k=klt4.25,v=rot4g32", "k=klt4.25:p64,v=rot4g32"];

#[test]
fn keys_of_a_plan_are_the_cpus_bytes() {
    let card = card();
    let [wide, narrow] = KLT;
    let shapes = [(wide, 4, 2, 64), (narrow, 2, 1, 128), (wide, 2, 1, 128), (narrow, 4, 2, 64)];
    for (klt, heads, kv_heads, dim) in shapes.into_iter().take(count(4, 2)) {
        let checkpoint = llama(&shape(heads, kv_heads, dim), synth::WeightType::F16);
        let Loaded { backend, model } = load(&card, &checkpoint);
        let (n, host) = (count(300, 150), on_cpu(&checkpoint));
        let ids = tokens(n, model.vocabulary());
        let open = |text: &str| cache(&model, text, Some(backend.store()), 320);
        let on_host = |text: &str| read(&host, &mut cache(&host, text, None, 320), &ids, &[n]);
        let mut here = open(klt);
        let found = read(&model, &mut here, &ids, &[n - 10, 7, 1]);
        let (truth, exact) = (on_host(klt), on_host("f32"));
        let (off, loss) = (distance(&found, &truth), distance(&truth, &exact));
        println!("{klt} d{dim}: off by {off:.1e} where the codec is off by {loss:.1e}");
        assert!(off <= 0.5 * loss + 2e-2, "{klt} d{dim}: {off:.1e} of {loss:.1e}");
        // Pages that stay exact for a while, in chunks and step by step.
        let recently = format!("{klt};recent=70;sinks=0");
        let whole = read(&model, &mut open(&recently), &ids, &[n]);
        assert!(
            whole == read(&model, &mut open(&recently), &ids, &[90, n - 96, 3, 1]),
            "{klt} d{dim}: recent"
        );
        // The first page of the first layer, whose keys do not depend on the cache, is what the codec makes of its exact rows.
        let mut kept = open(&format!("{klt};recent=128"));
        read(&model, &mut kept, &ids[..150], &[150]);
        let slot = model.slots().kv_slots().next().unwrap();
        for head in 0..kv_heads {
            let coded = here.sequence().side(slot, head, Side::Key).unwrap().encoded_id(0).unwrap();
            let exact = kept.sequence().side(slot, head, Side::Key).unwrap().exact_id(0).unwrap();
            let layout = here.sequence().layout();
            let codec = layout.slots()[slot.index()].heads()[head].side(Side::Key).unwrap().codec();
            let page_tokens = codec.page_tokens();
            let (mut halves, mut found) = (vec![0; 2 * page_tokens * dim], vec![0; codec.page_bytes()]);
            backend.pages().read(exact, &mut halves);
            backend.pages().read(coded, &mut found);
            let number = |i: usize| half::f16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]).to_f32();
            let number = |n: usize| number(n % dim * page_tokens + n / dim);
            let rows: Vec<f32> = (0..page_tokens * dim).map(number).collect();
            let mut want = vec![0; codec.page_bytes()];
            codec.encode(&rows, &mut want).unwrap();
            assert!(found == want, "d{dim} head {head}: not the CPU's bytes");
        }
    }
}

/// Kernels that begin early, steps that are graphs, products that norm and gate, alone and in batches.
#[test]
fn bits_do_not_depend_on_graphs_early_starts_or_fusion() {
    let card = card();
    let checkpoint = llama(&shape(4, 2, 64), synth::WeightType::Int4);
    let n = count(300, 76);
    let ids = tokens(n, 300);
    for policy in ["int4", "int8", "k8v4;sinks=0", "f16;recent=64"].into_iter().take(count(4, 1)) {
        let ways = [(true, true, true), (false, false, false), (true, false, false), (false, true, true)];
        let found: Vec<Vec<f32>> = ways
            .into_iter()
            .take(count(4, 2))
            .map(|(early, graphs, fused)| {
                let options = PassOptions { early, graphs, fused };
                let backend = CudaBackend::new(&card).unwrap().with_options(options);
                let model = Model::load(&backend, &checkpoint).unwrap();
                let mut own = cache(&model, policy, Some(backend.store()), 320);
                let mut logits = read(&model, &mut own, &ids[..n - 4], &[n - 8, 1]);
                let mut fork = own.over(own.sequence().fork().unwrap());
                for step in n - 4..n {
                    let one = Chunk::new(&ids[step..=step], 0..1);
                    let mut batch = [&mut own, &mut fork].map(KvCache::sequence_mut);
                    let both =
                        model.forward(Pass::new(&[one.clone(), one]), &mut batch).unwrap().into_logits();
                    assert_eq!(both.row(0), both.row(1), "{policy}: two sequences that are alike");
                    logits.extend_from_slice(both.row(0));
                }
                logits
            })
            .collect();
        assert!(found.iter().all(|logits| *logits == found[0]), "{policy}");
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
fn the_table_of_models_says_what_runs() {
    let card = card();
    kvant_conformance::models_page("CUDA", |of, _| CudaBackend::check_model(&card, of));
    // Heads of 512 channels, of which 128 turn.
    let outline = Checkpoint::from_config(Known::named("gemma-4-31b").unwrap().config(), DType::F16).unwrap();
    CudaBackend::check_model(&card, &Description::of(&outline).unwrap()).unwrap();
}

#[test]
fn shapes_that_do_not_run_are_refused_by_name() {
    let card = card();
    let backend = CudaBackend::new(&card).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests/fixtures/gemma3n");
    let description = Description::of(&Checkpoint::open(folder).unwrap()).unwrap();
    let refused =
        backend.noise(&description, WeightType::Q4_0).err().expect("heads of 16 channels run").to_string();
    assert!(refused.contains("heads of 16 and 16 channels") && refused.contains("cuda:0"), "{refused}");
    let slots = |dim| Slots::uniform(2, KvShape { kv_heads: 2, key_dim: dim, value_dim: dim, window: None });
    for (policy, dim, word) in [
        ("int4", 72, "72 and 72 channels"),
        ("int4", 320, "320 and 320 channels"),
        ("turbo3", 512, "1024 channels"),
        ("trellis3;layers 0:int4", 64, "pages of other sizes"),
    ] {
        let layout = CacheLayout::new(&policy.parse().unwrap(), &slots(dim)).unwrap();
        let refused = backend.check_cache(&layout).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("layer "), "{policy}: {refused}");
    }
}
