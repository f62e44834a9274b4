//! LoRA adapters: by the model's name, by llama.cpp's list, several in one batch, and never each other's prefixes.

use crate::lora_file::adapter_bytes;
use crate::support::*;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_engine::{Adapter, AppliedAdapter, Arena, Engine, LoadOptions, OpenedAdapter};
use kvant_model::gguf::Gguf;
use kvant_model::{Checkpoint, Description};
use kvant_server::{Keys, ServerOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// A server with an adapter `style` for all requests, and `tone` for those that name it.
fn adapted(options: ServerOptions) -> Running {
    let base = Checkpoint::from_gguf(Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap());
    let description = Description::of(&base).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let opened = |(seed, name, scale, on_request): (usize, &str, f32, bool)| {
        let file = folder.path().join(format!("{name}.gguf"));
        std::fs::write(&file, adapter_bytes(seed)).unwrap();
        let adapter = Arc::new(Adapter::open(&file, &base, &description).unwrap());
        OpenedAdapter { applied: AppliedAdapter { adapter, scale }, on_request }
    };
    let library = [(1, "style", 1.0, false), (2, "tone", 0.5, true)].map(opened).to_vec();
    let engine = Engine::load(&base, LoadOptions::default()).unwrap().with_library(library).unwrap();
    serve_engine(engine, options, SchedulerOptions::default(), Arena::new(), None)
}

fn text(server: &Running, more: Value) -> String {
    let mut body =
        json!({"prompt": "the rain in spain stays", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.ask("/v1/completions", body)["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_request_names_its_adapters_as_vllm_and_as_llama_cpp_have_it() {
    let (server, plain) = (adapted(options()), usual());
    let none = text(&server, json!({"lora": []}));
    assert_eq!(none, text(&plain, json!({})), "without adapters it has the bits it always had");
    let style = text(&server, json!({}));
    let tone = text(&server, json!({"model": "tone"}));
    assert!(none != style && style != tone && none != tone, "{none:?} {style:?} {tone:?}");
    for (more, expected) in [
        (json!({"model": MODEL}), &style),
        (json!({"model": "tiny:style"}), &style),
        (json!({"model": "tiny:tone"}), &tone),
        (json!({"lora": [{"id": 1}]}), &tone),
        (json!({"lora": [{"id": 1, "scale": 0.5}]}), &tone),
        (json!({"lora": [{"name": "style", "scale": 1}, {"name": "tone", "scale": 0}]}), &style),
    ] {
        assert_eq!(&text(&server, more.clone()), expected, "{more}");
    }
    let both = text(&server, json!({"lora": [{"id": 0}, {"id": 1}]}));
    assert!(![&none, &style, &tone].contains(&&both));
    // What is asked for by another protocol, and what the answer is called.
    let answer = server.ask(
        "/v1/messages",
        json!({"model": "tiny:tone", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}),
    );
    assert_eq!(answer["model"], "tiny:tone");
    let vector = |more: Value| {
        let mut body = json!({"input": "the rain"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/v1/embeddings", body)["data"][0]["embedding"].clone()
    };
    assert_ne!(vector(json!({"lora": []})), vector(json!({"model": "tone"})));
}

#[test]
fn adapters_answer_in_one_batch_and_never_find_each_others_prefixes() {
    let server = adapted(options());
    let prompt = "one two three four five six seven eight nine ten ".repeat(3);
    let models = ["tiny", "tiny:tone", "style"];
    let ask = |model: &str| {
        let body =
            json!({"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
        let answer = server.ask("/v1/completions", body);
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    };
    let alone: Vec<_> = models.map(ask).to_vec();
    assert_eq!(alone[0].0, alone[2].0, "the usual adapter, by its name");
    assert_ne!(alone[0].0, alone[1].0);
    assert_eq!(alone[1].1, 0, "read with another adapter: nothing is found");
    assert!(alone[2].1 > 0, "read with the same: found");
    // All at once: the same texts.
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads = models.map(|model| scope.spawn(move || ask(model)));
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    assert!(together.iter().zip(&alone).all(|(a, b)| a.0 == b.0));
}

#[test]
fn adapters_are_listed_and_the_admin_sets_the_usual_ones() {
    let server = adapted(options());
    let models = server.get("/v1/models").json();
    let named: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| (&m["id"], &m["parent"])).collect();
    assert_eq!(
        named,
        [(&json!("tiny"), &Value::Null), (&json!("style"), &json!("tiny")), (&json!("tone"), &json!("tiny"))]
    );
    assert_eq!(server.get("/v1/models/tone").json()["parent"], "tiny");
    let scales = || {
        let list = server.get("/lora-adapters").json();
        list.as_array().unwrap().iter().map(|of| of["scale"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(scales(), [1.0, 0.0]);
    let tone = text(&server, json!({"model": "tone"}));
    assert_ne!(text(&server, json!({})), tone);
    assert_eq!(server.ask("/lora-adapters", json!([{"id": 1, "scale": 0.5}])), json!({"success": true}));
    assert_eq!((scales(), text(&server, json!({}))), (vec![0.0, 0.5], tone));
    let locked = adapted(ServerOptions { keys: Keys::new(["user"]).with_admin("admin"), ..options() });
    let head = "authorization: Bearer user\r\n";
    locked.raw(&request("/lora-adapters", &json!([]), head)).fails(403, "LoRA");
}

#[test]
fn adapters_that_are_not_there_are_refused_by_name() {
    let server = adapted(options());
    for (more, status, param, words) in [
        (json!({"model": "tiny:toan"}), 404, Value::Null, "tiny:toan"),
        (json!({"lora": [{"id": 2}]}), 400, json!("lora[0]"), "there are style, tone"),
        (json!({"lora": [{"name": "x"}]}), 400, json!("lora[0]"), "there are style, tone"),
        (json!({"lora": [{}]}), 400, json!("lora[0]"), "needs an id or a name"),
        (json!({"lora": [{"id": 0}, {"name": "style"}]}), 400, json!("lora[1]"), "second time"),
        (json!({"lora": [{"id": 0, "scale": 1e9}]}), 400, json!("lora[0].scale"), "from -100 to 100"),
        (json!({"lora": {"id": 0}}), 400, json!("lora"), "an array"),
        (json!({"lora": [], "model": "tone"}), 400, json!("lora"), "leave out one"),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = server.post("/v1/completions", &body).fails(status, words);
        assert_eq!(error["param"], param, "{error}");
    }
    let error =
        usual().post("/completion", &json!({"prompt": "x", "lora": [{"id": 0}]})).fails(400, "--lora");
    assert_eq!(error["param"], "lora[0]");
}
