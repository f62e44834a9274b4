//! A tiny real model with a vocabulary, for the tests of the crates above.

use kvant_model::Tensor;
use kvant_model::gguf::{ValueType, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use std::path::Path;

/// Parts of a layer, by their Hugging Face and GGUF names.
const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

pub const TEMPLATE: &str =
    "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + '\n' }}{% endfor %}[assistant] ";

/// The qwen2 checkpoint of the model tests as a GGUF file, with 256 tokens of its own: characters and pairs.
pub fn model_bytes(template: bool) -> Vec<u8> {
    model_with(template.then_some(TEMPLATE))
}

/// The same with a template of one's own.
pub fn model_with(template: Option<&str>) -> Vec<u8> {
    model_with_tokens(template, &[])
}

/// The same with control tokens of one's own, and with words where they begin with `▁`.
pub fn model_with_tokens(template: Option<&str>, control: &[&str]) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/qwen2");
    let tensors = Safetensors::open(&folder.join("model.safetensors")).unwrap();
    let mut writer = Writer::new("qwen2");
    let sizes = [
        ("context_length", 512),
        ("embedding_length", 64),
        ("block_count", 2),
        ("feed_forward_length", 88),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    for (key, value) in sizes {
        writer.set(&format!("qwen2.{key}"), WriterValue::U32(value));
    }
    writer.set("qwen2.attention.layer_norm_rms_epsilon", WriterValue::F32(1e-6));
    writer.set("qwen2.rope.freq_base", WriterValue::F32(1e6));
    vocabulary(&mut writer, control);
    if let Some(template) = template {
        writer.set("tokenizer.chat_template", WriterValue::String(template.into()));
    }
    for name in tensors.names() {
        let tensor = tensors.tensor(name).unwrap().unwrap();
        let renamed = NAMES.iter().fold(name.to_owned(), |name, (hf, gguf)| name.replace(hf, gguf));
        let values = tensor.to_f32().unwrap();
        writer.tensor(Tensor::from_f32(renamed, tensor.shape().to_vec(), &values).unwrap());
    }
    writer.to_bytes().unwrap()
}

fn vocabulary(writer: &mut Writer, control: &[&str]) {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into(), "▁".into(), "\n".into()];
    tokens.extend((b'!'..=b'~').map(|c| char::from(c).to_string()));
    let letters = || "etaoinshrdlu".chars();
    let pairs = letters().flat_map(|a| letters().map(move |b| format!("{a}{b}")));
    tokens.extend(pairs);
    tokens.extend((tokens.len()..256).map(|i| format!("▁{}", char::from(b'a' + (i % 26) as u8))));
    let count = tokens.len();
    assert_eq!(count, 256);
    // In place of the last ones.
    let first = count - control.len();
    tokens.splice(first.., control.iter().map(|name| (*name).to_owned()));
    let kinds = (0..count).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        id if id >= first && !control[id - first].starts_with('▁') => 3,
        _ => 1,
    });
    writer.set("tokenizer.ggml.model", WriterValue::String("llama".into()));
    writer.set("tokenizer.ggml.tokens", WriterValue::strings(tokens));
    let scores = (0..count).map(|id| WriterValue::F32(-(id as f32))).collect();
    writer.set("tokenizer.ggml.scores", WriterValue::Array(ValueType::F32, scores));
    writer.set("tokenizer.ggml.token_type", WriterValue::i32s(kinds));
    for (key, id) in [("bos", 1), ("eos", 2), ("unknown", 0)] {
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), WriterValue::U32(id));
    }
}
