//! Writes small valid files into `corpus/gguf`, `corpus/safetensors`, `corpus/snapshot`, `corpus/plan` and `corpus/vocabulary`, from
//! which the fuzzer starts.

use kvant_cache::snapshot::{Record, write};
use kvant_cache::plan::{SideCalibration, Klt, PlannedSlot, PlannedHead};
use kvant_cache::{
    Arena, CacheLayout, KvShape, LatentShape, Plan, Policy, RecurrentShape, STATE_CHUNK, Sequence, Slots,
};
use kvant_codec::Dense;
use kvant_model::gguf::{ValueType, Writer, WriterValue};
use kvant_model::{DType, Tensor};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let seeds = gguf_seeds().into_iter().map(|seed| ("gguf", seed));
    let seeds = seeds.chain(safetensors_seeds().into_iter().map(|seed| ("safetensors", seed)));
    let seeds = seeds.chain([0, 3, 40, 130, 250].map(|tokens| ("snapshot", snapshot_seed(tokens))));
    let seeds = seeds.chain([("plan", plan_seed(false)), ("plan", plan_seed(true))]);
    let seeds = seeds.chain(["llama", "gpt2"].map(|model| ("vocabulary", vocabulary_seed(model))));
    for (number, (target, bytes)) in seeds.enumerate() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder).expect("the corpus folder can be made");
        fs::write(folder.join(format!("seed-{number:02}")), bytes).expect("the seed can be written");
    }
}

/// A file with every kind of value, and one small file for each tensor type.
fn gguf_seeds() -> Vec<Vec<u8>> {
    let mut values = Writer::new("llama");
    values
        .set("u8", WriterValue::U8(1))
        .set("i8", WriterValue::I8(-1))
        .set("u16", WriterValue::U16(2))
        .set("i16", WriterValue::I16(-2))
        .set("u32", WriterValue::U32(3))
        .set("i32", WriterValue::I32(-3))
        .set("u64", WriterValue::U64(4))
        .set("i64", WriterValue::I64(-4))
        .set("f32", WriterValue::F32(0.5))
        .set("f64", WriterValue::F64(-0.5))
        .set("bool", WriterValue::Bool(true))
        .set("string", WriterValue::String("text".to_owned()))
        .set("strings", WriterValue::strings(["a", "bc"]))
        .set("floats", WriterValue::f32s([1.0, 2.0]))
        .set(
            "nested",
            WriterValue::Array(ValueType::Array, vec![WriterValue::i32s([1]), WriterValue::i32s([])]),
        )
        .alignment(8);
    let typed = DType::ALL.into_iter().filter_map(|dtype| {
        let shape = vec![2, dtype.block_len()];
        let bytes = vec![0x11; dtype.tensor_bytes(&shape)?];
        let mut writer = Writer::new("llama");
        writer.tensor(Tensor::new("w", dtype, shape, bytes.into()).ok()?);
        writer.to_bytes().ok()
    });
    std::iter::once(values.to_bytes().expect("the values can be written")).chain(typed).collect()
}

/// A file with a vocabulary of this kind.
fn vocabulary_seed(model: &str) -> Vec<u8> {
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "<0x41>"];
    let mut writer = Writer::new("llama");
    writer
        .set("tokenizer.ggml.model", WriterValue::String(model.to_owned()))
        .set("tokenizer.ggml.tokens", WriterValue::strings(tokens))
        .set("tokenizer.ggml.scores", WriterValue::f32s([0.0; 7]))
        .set("tokenizer.ggml.token_type", WriterValue::i32s([2, 3, 3, 1, 1, 1, 6]))
        .set("tokenizer.ggml.merges", WriterValue::strings(["a b"]))
        .set("tokenizer.ggml.bos_token_id", WriterValue::U32(1))
        .set("tokenizer.ggml.eos_token_id", WriterValue::U32(2));
    writer.to_bytes().expect("the vocabulary can be written")
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0x3c);
        bytes
    };
    vec![
        file("{}", 0),
        file(r#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#, 24),
        file(
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[],"data_offsets":[8,10]},"c":{"dtype":"I64","shape":[1],"data_offsets":[10,18]}}"#,
            18,
        ),
        // Small floats with the scales beside them.
        file(
            r#"{"w":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]},"w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[6,10]},"x_blocks":{"dtype":"U8","shape":[2,1,16],"data_offsets":[10,42]},"x_scales":{"dtype":"U8","shape":[2,1],"data_offsets":[42,44]}}"#,
            44,
        ),
    ]
}

/// A sequence of the cache that the fuzz target loads into.
fn snapshot_seed(tokens: usize) -> Vec<u8> {
    let policy: Policy = "k=ch4:p32,v=rot4g32:p32;recent=20".parse().expect("a policy");
    let mut slots = Slots::new();
    let owner = slots.keys_values(0, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: Some(70) });
    slots.view(1, owner);
    let latents = slots.latent(2, LatentShape { kv_heads: 1, latent_dim: 8, rope_dim: 2, window: None });
    let state = slots.recurrent(3, RecurrentShape { state: 3, row: 2 });
    let layout = Arc::new(CacheLayout::new(&policy, &slots).expect("a layout"));
    let mut sequence = Sequence::new(layout, Arena::new());
    sequence.reserve(tokens).expect("there is no cap");
    let rows: Vec<f32> = (0..8 * tokens).map(|i| (i as f32 * 0.7).sin()).collect();
    sequence.append(owner, &rows, &rows).expect("the rows can be kept");
    sequence.append(latents, &rows[..2 * tokens], &rows).expect("the rows can be kept");
    let state = sequence.recurrent_mut(state).expect("a recurrent slot");
    for row in rows[..2 * tokens].chunks_exact(2) {
        state.push(row).expect("the row can be kept");
        if state.open_tokens() == STATE_CHUNK {
            state.close(|state, rows| state.copy_from_slice(&rows[..3])).expect("a full chunk");
        }
    }
    sequence.advance(tokens).expect("all slots have got them");
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let record = Record {
        signature: [7; 32],
        numerics: [8; 32],
        policy: &policy.to_string(),
        tokens: &ids,
        note: b"note",
    };
    let mut bytes = Vec::new();
    write(&sequence, &record, &mut bytes).expect("the sequence can be saved");
    bytes
}

/// A plan for the shapes that the fuzz target builds a cache of, with bases or without.
fn plan_seed(with_bases: bool) -> Vec<u8> {
    let one: Vec<f32> = (0..256).map(|n| if n % 17 == 0 { 1.0 } else { 0.0 }).collect();
    let basis = || Dense::of(16, one.clone()).expect("its own inverse").into();
    let key = SideCalibration {
        mean: Some(vec![0.5; 16]),
        range: Some([vec![-2.0; 16], vec![1.0; 16]]),
        klt: with_bases.then(|| Klt { basis: basis(), variances: vec![2.0; 16] }),
        balanced: with_bases.then(|| one.clone()),
        learned: Vec::new(),
        costs: Vec::new(),
    };
    let head = PlannedHead { key, value: SideCalibration::default() };
    let slot = PlannedSlot { key_dim: 16, value_dim: 8, heads: vec![head] };
    let policy = if with_bases { "k=klt4,v=rot4g32" } else { "k=srft4g32:lambda,mean,v=rot4g32" };
    let policy = policy.parse().expect("a policy");
    Plan::new([7; 32], policy, "a seed", vec![slot; 2]).expect("a plan").to_bytes()
}
