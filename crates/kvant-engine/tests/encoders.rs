//! Encoders by the fixtures of `make_encoders.py`: what they give is what the formulas give, whatever is read with it; what they cannot
//! give is refused by name.

use kvant_engine::scheduler::{Handle, Job, JobEvent, Listener, Pooling, Refused, Scheduler, Score};
use kvant_engine::{DeviceChoice, KvChoice, LoadedModel, OpenOptions, Request};
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, EncoderText, Tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(name)
}

fn options() -> OpenOptions {
    OpenOptions { device: DeviceChoice::Cpu, threads: Some(2), ..OpenOptions::default() }
}

fn open(name: &str) -> LoadedModel {
    options().open(folder(name)).unwrap()
}

fn expected(name: &str) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join("expected.json")).unwrap()).unwrap()
}

fn ids(of: &Value) -> Vec<u32> {
    serde_json::from_value(of["ids"].clone()).unwrap()
}

fn close(ours: &[f32], theirs: &Value, what: &str) {
    let theirs: Vec<f64> = match theirs[0].is_array() {
        true => serde_json::from_value::<Vec<Vec<f64>>>(theirs.clone()).unwrap().concat(),
        false => serde_json::from_value(theirs.clone()).unwrap(),
    };
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((f64::from(*ours) - theirs).abs() < 1e-4, "{what}: {ours} {theirs}");
    }
}

#[test]
fn rows_are_those_of_the_formulas_alone_and_together() {
    for name in ["bert", "nomic_bert"] {
        let opened = open(name);
        let (engine, expected) = (opened.engine(), expected(name));
        let all: Vec<Vec<u32>> = expected.iter().map(ids).collect();
        for (of, ids) in expected.iter().zip(&all) {
            assert_eq!(engine.text_prompt(of["text"].as_str().unwrap()).unwrap(), *ids, "{name}");
            let rows = engine.model().encode(&[EncoderText::alone(ids)]).unwrap();
            close(rows.data(), &of["rows"], name);
        }
        let texts: Vec<EncoderText<'_>> = all.iter().map(|ids| EncoderText::alone(ids)).collect();
        let apart: Vec<f32> =
            texts.iter().flat_map(|text| engine.model().encode(&[*text]).unwrap().into_vec()).collect();
        let together = engine.pool().install(|| engine.model().encode(&texts)).unwrap();
        assert_eq!(together.data(), apart, "{name}: bits of a text do not depend on the others");
    }
}

#[test]
fn pairs_are_joined_and_scored_as_the_formulas_score_them() {
    for name in ["bert_rank", "xlm_roberta_rank", "modernbert_rank"] {
        let opened = open(name);
        assert!(opened.engine().is_cross_encoder());
        for of in expected(name) {
            let text = |index: usize| of["text"][index].as_str().unwrap();
            let (pair, second) = opened.engine().prompts(64).pair(text(0), text(1)).unwrap();
            assert_eq!(pair, ids(&of), "{name}");
            let found = opened.engine().model().classify(&[EncoderText { ids: &pair, second }]).unwrap();
            close(found.data(), &of["logits"], name);
        }
    }
}

/// What parts are called in GGUF files, longest first.
const GGUF_NAMES: [(&str, &str); 25] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("emb_ln", "token_embd_norm"),
    ("encoder.layers.", "blk."),
    ("encoder.layer.", "blk."),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
    ("norm1", "attn_output_norm"),
    ("norm2", "layer_output_norm"),
    ("pooler.dense", "pooler"),
    ("classifier.dense", "cls"),
    ("classifier.out_proj", "cls.output"),
];

/// A fixture as llama.cpp's converter would write it.
fn gguf_twin(name: &str, architecture: &str) -> Checkpoint {
    let read = |file: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder(name).join(file)).unwrap()).unwrap()
    };
    let (config, tokenizer) = (read("config.json"), read("tokenizer.json"));
    let size = |names: [&str; 2]| names.iter().find_map(|name| config[*name].as_u64()).unwrap() as u32;
    let mut writer = Writer::new(architecture);
    for (key, value) in [
        ("context_length", size(["max_position_embeddings", "n_positions"])),
        ("embedding_length", size(["hidden_size", "n_embd"])),
        ("block_count", size(["num_hidden_layers", "n_layer"])),
        ("feed_forward_length", size(["intermediate_size", "n_inner"])),
        ("attention.head_count", size(["num_attention_heads", "n_head"])),
        // 2: the first token.
        ("pooling_type", 2),
    ] {
        writer.set(&format!("{architecture}.{key}"), WriterValue::U32(value));
    }
    writer.set(&format!("{architecture}.attention.layer_norm_epsilon"), WriterValue::F32(1e-12));
    let theta = config["rotary_emb_base"].as_f64().unwrap_or(10000.0) as f32;
    writer.set(&format!("{architecture}.rope.freq_base"), WriterValue::F32(theta));
    let mut vocabulary: Vec<(&String, u64)> = tokenizer["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (text, id.as_u64().unwrap()))
        .collect();
    vocabulary.sort_by_key(|(_, id)| *id);
    let is_control = |text: &str| text.starts_with('[') && text.len() > 1;
    let spelled = |text: &str| match text.strip_prefix("##") {
        Some(continued) => continued.to_owned(),
        None if is_control(text) => text.to_owned(),
        None => format!("▁{text}"),
    };
    writer.set("tokenizer.ggml.model", WriterValue::String("bert".into()));
    writer
        .set("tokenizer.ggml.tokens", WriterValue::strings(vocabulary.iter().map(|(text, _)| spelled(text))));
    let kinds = vocabulary.iter().map(|(text, _)| if is_control(text) { 3 } else { 1 });
    writer.set("tokenizer.ggml.token_type", WriterValue::i32s(kinds));
    writer.set("tokenizer.ggml.unknown_token_id", WriterValue::U32(1));
    writer.set("tokenizer.ggml.seperator_token_id", WriterValue::U32(3));
    let tensors = Safetensors::open(&folder(name).join("model.safetensors")).unwrap();
    for name in tensors.names() {
        let tensor = tensors.tensor(name).unwrap().unwrap();
        let renamed = GGUF_NAMES.iter().fold(name.to_owned(), |name, (hf, gguf)| name.replace(hf, gguf));
        let values = tensor.to_f32().unwrap();
        writer.tensor(Tensor::from_f32(renamed, tensor.shape().to_vec(), &values).unwrap());
    }
    Checkpoint::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap())
}

#[test]
fn gguf_files_give_the_rows_of_their_twins() {
    for (name, architecture) in [("bert", "bert"), ("nomic_bert", "nomic-bert")] {
        let opened = options().open_checkpoint(gguf_twin(name, architecture)).unwrap();
        assert_eq!(opened.engine().pooling(), Ok(Pooling::First));
        for of in expected(name) {
            assert_eq!(
                opened.engine().text_prompt(of["text"].as_str().unwrap()).unwrap(),
                ids(&of),
                "{name}"
            );
            let rows = opened.engine().model().encode(&[EncoderText::alone(&ids(&of))]).unwrap();
            close(rows.data(), &of["rows"], name);
        }
    }
}

struct Sink(Sender<JobEvent>);

impl Listener for Sink {
    fn take(&mut self, event: JobEvent) {
        let _ = self.0.send(event);
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// A scheduler at work, and what it is asked through.
fn serve(opened: &LoadedModel) -> Handle {
    let empty = opened.shared_cache().unwrap();
    let scheduler = Scheduler::new(opened.engine().clone(), empty, Default::default());
    let handle = scheduler.handle();
    std::thread::spawn(move || scheduler.run());
    handle
}

fn job(prompt: Vec<u32>, change: impl Fn(&mut Job)) -> (Job, Receiver<JobEvent>) {
    let (sender, receiver) = channel();
    let mut job = Job::new(Request { prompt, ..Request::default() }, Box::new(Sink(sender)));
    change(&mut job);
    (job, receiver)
}

fn numbers(events: &Receiver<JobEvent>) -> Vec<f32> {
    let mut found = None;
    for event in events {
        match event {
            JobEvent::Embedded(numbers) | JobEvent::Scored(numbers) => found = Some(numbers),
            JobEvent::Finished { usage, .. } => {
                assert!(usage.prompt > 0 && usage.generated == 0);
                return found.unwrap();
            }
            JobEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("nobody answered")
}

#[test]
fn the_scheduler_pools_as_the_files_say_and_refuses_what_encoders_do_not_give() {
    for (name, pooling) in [("bert", Pooling::First), ("nomic_bert", Pooling::Mean)] {
        let opened = open(name);
        assert_eq!(opened.engine().pooling(), Ok(pooling), "{name}");
        let handle = serve(&opened);
        let all: Vec<Vec<u32>> = expected(name).iter().map(ids).collect();
        // More than are read at a time.
        let (jobs, waiting): (Vec<Job>, Vec<_>) =
            all.iter().cycle().take(40).map(|ids| job(ids.clone(), |job| job.embed = Some(pooling))).unzip();
        handle.submit(jobs).unwrap();
        for (ids, events) in all.iter().cycle().zip(&waiting) {
            let vector = numbers(events);
            assert_eq!(vector, opened.engine().embed_text(ids, pooling).unwrap());
            let length: f32 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5);
        }
        let refused =
            |change: &dyn Fn(&mut Job)| handle.submit(vec![job(all[0].clone(), change).0]).unwrap_err();
        assert!(matches!(refused(&|_| ()), Refused::OtherKind(why) if why.contains("no text")));
        let pair = |job: &mut Job| job.score = Some(Score::Classes { second: 1 });
        assert!(matches!(refused(&pair), Refused::OtherKind(_)));
        let long = job(vec![5; 73], |job| job.embed = Some(pooling)).0;
        assert!(matches!(handle.submit(vec![long]), Err(Refused::PromptTooLong { .. })));
        handle.stop(Instant::now());
    }
    let opened = open("bert_rank");
    let handle = serve(&opened);
    let of = &expected("bert_rank")[0];
    let second = 1 + ids(of).iter().position(|&id| id == 3).unwrap();
    let (asked, events) = job(ids(of), |job| job.score = Some(Score::Classes { second }));
    handle.submit(vec![asked]).unwrap();
    close(&numbers(&events), &of["logits"], "by the scheduler");
    let vector = job(ids(of), |job| job.embed = Some(Pooling::Mean)).0;
    assert!(
        matches!(handle.submit(vec![vector]), Err(Refused::OtherKind(why)) if why.contains("cross-encoder"))
    );
    handle.stop(Instant::now());
}

#[test]
fn what_encoders_have_no_use_for_is_refused_by_name() {
    let refused = |options: OpenOptions| options.open(folder("bert")).err().unwrap().to_string();
    let kv = refused(OpenOptions { kv: Some("int4".parse().unwrap()), ..options() });
    assert!(kv.contains("encoder") && kv.contains("--kv"), "{kv}");
    let auto = OpenOptions { kv: Some(KvChoice::Auto), ..options() };
    assert!(auto.open(folder("bert")).is_ok(), "`auto` asks for nothing");
    let window = refused(OpenOptions { window: Some(64), ..options() });
    assert!(window.contains("--window"), "{window}");
    let mut session = open("bert").session().unwrap();
    let error = session.prefill(&[2, 5, 3]).unwrap_err().to_string();
    assert!(error.contains("encoder") && error.contains("no text"), "{error}");
    let decoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/llama");
    let model = kvant_cpu::load(&Checkpoint::open(decoder).unwrap(), Default::default()).unwrap();
    let error = model.encode(&[EncoderText::alone(&[1, 2])]).unwrap_err().to_string();
    assert!(error.contains("decoder"), "{error}");
}
