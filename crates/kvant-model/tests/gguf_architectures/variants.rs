//! Files that today's converter would write otherwise: made out of its own, tensor by tensor.

use crate::llama_cpp::kept_bytes;
use crate::mtp::{combine, with_head};
use crate::{config, difference, gguf, logits, safetensors};
use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::gguf::{Gguf, Value, ValueType, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk, Rows, Tensor};

fn owned(value: &Value<'_>) -> WriterValue {
    match *value {
        Value::U32(n) => WriterValue::U32(n),
        Value::I32(n) => WriterValue::I32(n),
        Value::F32(n) => WriterValue::F32(n),
        Value::Bool(flag) => WriterValue::Bool(flag),
        Value::String(text) => WriterValue::String(text.to_owned()),
        Value::Array(ref items) => {
            WriterValue::Array(items.element(), items.iter().map(|item| owned(&item)).collect())
        }
        ref other => panic!("{other:?}"),
    }
}

/// A file under another architecture's name, without some of its keys, with `tensors` in place of every tensor.
fn rewritten(
    file: &Gguf,
    architecture: &str,
    without: &[&str],
    tensors: impl Fn(Tensor) -> Vec<Tensor>,
) -> Writer {
    let mut writer = Writer::new(architecture);
    let own = format!("{}.", file.metadata().architecture().unwrap());
    for (key, value) in file.metadata().iter() {
        if let Some(rest) = key.strip_prefix(&own).filter(|rest| !without.contains(rest)) {
            writer.set(&format!("{architecture}.{rest}"), owned(&value));
        }
    }
    for info in file.tensors() {
        for tensor in tensors(file.tensor(&info.name).unwrap()) {
            writer.tensor(tensor);
        }
    }
    writer
}

fn read(writer: &Writer) -> Checkpoint {
    Checkpoint::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap())
}

fn renamed(tensor: &Tensor, name: String, shape: Vec<usize>) -> Tensor {
    Tensor::from_f32(name, shape, &tensor.to_f32().unwrap()).unwrap()
}

/// The first files of mixtures had a tensor for each expert.
#[test]
fn a_mixture_with_a_tensor_for_each_expert_loads() {
    let file = gguf("mixtral");
    let apart = rewritten(&file, "llama", &[], |tensor| {
        let name = tensor.name().to_owned();
        if !name.contains("_exps") {
            return vec![tensor];
        }
        let expert = |index: usize| {
            let part = tensor.index(index).unwrap();
            renamed(&part, name.replace("_exps", &format!(".{index}")), part.shape().to_vec())
        };
        (0..tensor.shape()[0]).map(expert).collect()
    });
    let whole = logits("mixtral", &Checkpoint::from_gguf(file));
    assert_eq!(difference(&logits("mixtral", &read(&apart)), &whole), 0.0);
}

/// Quantising a file drops extents of one: what was `(1, channels)` becomes `(channels)`.
#[test]
fn extents_of_one_may_be_missing() {
    for (name, architecture) in [("granitemoehybrid", "granitehybrid"), ("ernie4_5_moe", "ernie4_5-moe")] {
        let file = gguf(name);
        assert!(file.tensors().any(|tensor| matches!(tensor.shape[..], [1, _])), "{name} has no such tensor");
        let dropped = rewritten(&file, architecture, &[], |tensor| match *tensor.shape() {
            [1, width] => vec![renamed(&tensor, tensor.name().to_owned(), vec![width])],
            _ => vec![tensor],
        });
        let whole = logits(name, &Checkpoint::from_gguf(file));
        assert_eq!(difference(&logits(name, &read(&dropped)), &whole), 0.0, "{name}");
    }
}

/// The first files of latent attention had the ways to keys and to values of all heads in one matrix.
#[test]
fn latent_attention_with_keys_and_values_in_one_matrix_loads() {
    let file = gguf("deepseek_v3");
    let number = |key: &str| match file.metadata().value(&format!("deepseek2.attention.{key}")) {
        Some(Value::U32(n)) => n,
        other => panic!("{key}: {other:?}"),
    };
    let (key, value) = (number("key_length_mla"), number("value_length_mla"));
    let absent = ["attention.key_length_mla", "attention.value_length_mla"];
    let mut old = rewritten(&file, "deepseek2", &absent, |tensor| {
        let name = tensor.name().to_owned();
        if name.contains("attn_v_b") {
            return vec![];
        }
        if !name.contains("attn_k_b") {
            return vec![tensor];
        }
        let values = file.tensor(&name.replace("attn_k_b", "attn_v_b")).unwrap();
        let [heads, latent, nope] = *tensor.shape() else { panic!("{name}") };
        let (keys, values) = (tensor.to_f32().unwrap(), values.to_f32().unwrap());
        let of_values = values.len() / heads;
        let mut both = Vec::new();
        for head in 0..heads {
            let keys = &keys[head * latent * nope..][..latent * nope];
            both.extend((0..nope).flat_map(|row| keys[row..].iter().step_by(nope)));
            both.extend_from_slice(&values[head * of_values..][..of_values]);
        }
        let shape = vec![both.len() / latent, latent];
        vec![Tensor::from_f32(name.replace("attn_k_b", "attn_kv_b"), shape, &both).unwrap()]
    });
    old.set("deepseek2.attention.key_length", WriterValue::U32(key));
    old.set("deepseek2.attention.value_length", WriterValue::U32(value));
    let whole = logits("deepseek_v3", &Checkpoint::from_gguf(gguf("deepseek_v3")));
    assert_eq!(difference(&logits("deepseek_v3", &read(&old)), &whole), 0.0);
}

/// Files of GLM 4.7 Flash do not say that their router has sigmoid scores.
#[test]
fn a_router_with_a_correction_bias_has_sigmoid_scores() {
    let file = gguf("glm4_moe_lite");
    assert!(file.metadata().value("deepseek2.expert_gating_func").is_some());
    let silent = rewritten(&file, "deepseek2", &["expert_gating_func"], |tensor| vec![tensor]);
    let whole = logits("glm4_moe_lite", &Checkpoint::from_gguf(file));
    assert_eq!(difference(&logits("glm4_moe_lite", &read(&silent)), &whole), 0.0);
}

/// Gates and ups in one tensor, as the converter writes them when asked to.
#[test]
fn experts_with_gates_and_ups_in_one_tensor_load() {
    let file = gguf("qwen2_moe");
    let fused = rewritten(&file, "qwen2moe", &[], |tensor| {
        let name = tensor.name().to_owned();
        if name.contains("ffn_up_exps") {
            return vec![];
        }
        if !name.contains("ffn_gate_exps") {
            return vec![tensor];
        }
        let ups = file.tensor(&name.replace("ffn_gate_exps", "ffn_up_exps")).unwrap();
        let [experts, inner, hidden] = *tensor.shape() else { panic!("{name}") };
        let part = |of: &Tensor, expert| of.index(expert).unwrap().to_f32().unwrap();
        let both: Vec<f32> =
            (0..experts).flat_map(|expert| [part(&tensor, expert), part(&ups, expert)].concat()).collect();
        let shape = vec![experts, 2 * inner, hidden];
        let name = name.replace("ffn_gate_exps", "ffn_gate_up_exps");
        vec![Tensor::from_f32(name, shape, &both).unwrap()]
    });
    let whole = logits("qwen2_moe", &Checkpoint::from_gguf(gguf("qwen2_moe")));
    assert!(difference(&logits("qwen2_moe", &read(&fused)), &whole) < 1e-5);
}

#[test]
fn ministral3_is_llama_within_its_first_context() {
    let expected = logits("llama_hd", &safetensors("llama_hd", config("llama_hd")));
    let mut writer = rewritten(&gguf("llama_hd"), "mistral3", &[], |tensor| vec![tensor]);
    let off = |writer: &Writer| difference(&logits("llama_hd", &read(writer)), &expected);
    assert!(off(&writer) < 1e-4);
    // Queries grow from the original context on: the fixture's are shorter.
    writer.set("mistral3.attention.temperature_scale", WriterValue::F32(0.1));
    writer.set("mistral3.rope.scaling.original_context_length", WriterValue::U32(4096));
    assert!(off(&writer) < 1e-4);
    writer.set("mistral3.rope.scaling.original_context_length", WriterValue::U32(2));
    assert!(off(&writer) > 1e-3, "an original context of two tokens changes the logits");
}

/// Keys that other converters write, and readers know.
#[test]
fn windows_and_multipliers_of_scores_are_read_where_files_have_them() {
    let scale = |scalar: f32| WriterValue::F32(1.0 / scalar.sqrt());
    let pattern = |layers: &[bool]| {
        WriterValue::Array(ValueType::Bool, layers.iter().map(|&slides| WriterValue::Bool(slides)).collect())
    };
    let (window, sliding) = ("attention.sliding_window", "attention.sliding_window_pattern");
    let cases = [
        ("gemma2", "gemma2", vec![("attention.scale", scale(24.0))]),
        ("gemma3", "gemma3", vec![("attention.scale", scale(48.0)), (sliding, WriterValue::U32(3))]),
        (
            "gemma3",
            "gemma3",
            vec![
                ("attention.scale", scale(48.0)),
                (sliding, pattern(&[true, true, false, true, true, false])),
            ],
        ),
        ("mistral", "llama", vec![(window, WriterValue::U32(13))]),
        ("starcoder2", "starcoder2", vec![(window, WriterValue::U32(18))]),
    ];
    for (name, architecture, keys) in cases {
        let mut writer = rewritten(&gguf(name), architecture, &[], |tensor| vec![tensor]);
        for (key, value) in keys {
            writer.set(&format!("{architecture}.{key}"), value);
        }
        let off = difference(&logits(name, &read(&writer)), &logits(name, &safetensors(name, config(name))));
        assert!(off < 1e-4, "{name}: off by {off}");
    }
}

/// Files of later versions of MiMo-V2 have queries, keys and values in one matrix.
#[test]
fn projections_of_mimo_v2_may_be_one_matrix() {
    let name = "mimo_v2_flash";
    let file = gguf(name);
    let writer = rewritten(&file, "mimo2", &[], |tensor| {
        let Some(place) = tensor.name().strip_suffix("attn_q.weight").map(str::to_owned) else {
            let is_part = ["attn_k.weight", "attn_v.weight"].iter().any(|end| tensor.name().ends_with(end));
            return if is_part { vec![] } else { vec![tensor] };
        };
        let parts = ["q", "k", "v"].map(|part| file.tensor(&format!("{place}attn_{part}.weight")).unwrap());
        let rows = parts.iter().map(|part| part.shape()[0]).sum();
        let values: Vec<f32> = parts.iter().flat_map(|part| part.to_f32().unwrap()).collect();
        let shape = vec![rows, tensor.columns()];
        vec![Tensor::from_f32(format!("{place}attn_qkv.weight"), shape, &values).unwrap()]
    });
    let off = difference(&logits(name, &read(&writer)), &logits(name, &Checkpoint::from_gguf(gguf(name))));
    assert!(off < 1e-4, "off by {off}");
}

/// What the head of a file says after rows of numbers, as if a model had left them.
fn guesses(checkpoint: &Checkpoint) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions { mtp: true, ..LoadOptions::AS_STORED }).unwrap();
    let why = model.description().mtp.as_ref().expect("the file has a head").as_ref().err();
    assert_eq!(why, None);
    let (ids, hidden) = ([5, 90, 17, 200, 31], model.description().hidden);
    let rows = (0..ids.len() * hidden).map(|i| (i as f32 * 0.61).sin()).collect();
    let mut cache = KvCache::reference(&model.mtp().unwrap().slots, 16).unwrap();
    let chunk = Chunk::new(&ids, 0..ids.len());
    let found = model.guess(&[chunk], &Rows::from_vec(rows, hidden), &mut [cache.sequence_mut()]).unwrap();
    found.logits.into_vec()
}

fn is_expert(part: &str) -> bool {
    part.starts_with("ffn_") && part != "ffn_norm.weight" || part.starts_with("exp_probs")
}

/// Heads for further tokens stand behind the last layer, which the number of layers counts; norms have what Hugging Face leaves out.
#[test]
fn heads_for_further_tokens_are_those_of_the_folder() {
    for (name, from) in
        [("qwen3_5", 2), ("glm4_moe", 1), ("deepseek_v3", 1), ("mimo_v2_flash", 1), ("minimax_m2", 1)]
    {
        let file = gguf(name);
        let architecture = file.metadata().architecture().unwrap().to_owned();
        let layers = from + 1;
        let table = file.tensor("token_embd.weight").unwrap();
        let mut writer = rewritten(&file, &architecture, &["nextn_predict_layers"], |tensor| {
            let (own, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
            let copy = |part: &str| renamed(&tensor, format!("blk.{layers}.{part}"), shape.clone());
            let copies = match own.as_str() {
                "output_norm.weight" => ["enorm", "hnorm", "shared_head_norm"]
                    .map(|norm| copy(&format!("nextn.{norm}.weight")))
                    .to_vec(),
                "token_embd.weight" if name == "glm4_moe" => vec![copy("nextn.embed_tokens.weight")],
                "output.weight" if name == "glm4_moe" => vec![copy("nextn.shared_head_head.weight")],
                // The head of MiMo-V2 has the MLP of the first layer.
                own if own.starts_with("blk.0.ffn_") && name == "mimo_v2_flash" => own
                    .strip_prefix("blk.0.")
                    .filter(|own| !own.contains("norm"))
                    .map(&copy)
                    .into_iter()
                    .collect(),
                own => own
                    .strip_prefix(&format!("blk.{from}."))
                    .filter(|part| name != "mimo_v2_flash" || !is_expert(part))
                    .map(&copy)
                    .into_iter()
                    .collect(),
            };
            [vec![tensor], copies].concat()
        });
        let hidden = table.columns();
        writer.tensor(
            Tensor::from_f32(
                format!("blk.{layers}.nextn.eh_proj.weight"),
                vec![hidden, 2 * hidden],
                &combine(&table, false),
            )
            .unwrap(),
        );
        writer.set(&format!("{architecture}.block_count"), WriterValue::U32(layers + 1));
        writer.set(&format!("{architecture}.nextn_predict_layers"), WriterValue::U32(1));
        let (bytes, with) = with_head(&kept_bytes(name), &config(name));
        let folder = Checkpoint::from_safetensors(Safetensors::from_bytes(bytes).unwrap(), with);
        let off = difference(&guesses(&read(&writer)), &guesses(&folder));
        assert!(off < 1e-4, "{name}: off by {off}");
        let whole = logits(name, &Checkpoint::from_gguf(file));
        assert_eq!(difference(&logits(name, &read(&writer)), &whole), 0.0, "{name}");
    }
}
