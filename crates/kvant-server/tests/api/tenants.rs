//! Several keys on one server.

use crate::support::*;
use kvant_engine::Arena;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::{Keys, Limits, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

fn keyed() -> ServerOptions {
    ServerOptions { keys: Keys::new(["a", "b"]).with_admin("root"), ..options() }
}

impl Running {
    fn get_as(&self, key: &str, path: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: {key}\r\n\r\n");
        self.raw(head.as_bytes())
    }

    fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.raw(&request(path, body, &format!("x-api-key: {key}\r\n")))
    }

    /// Tokens of a prompt that were found.
    #[track_caller]
    fn cached(&self, key: &str) -> u64 {
        let body = json!({"prompt": "the rain in spain ".repeat(12), "max_tokens": 2, "seed": 3});
        let answer = self.post_as(key, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }
}

#[test]
fn a_key_does_not_learn_what_another_asked() {
    let server = start(keyed(), SchedulerOptions::default());
    assert_eq!((server.cached("a"), server.cached("b")), (0, 0));
    assert!(server.cached("a") > 0 && server.cached("b") > 0);
    let count = |key: &str| server.get_as(key, "/v1/kv").json()["prefixes"]["count"].as_u64().unwrap();
    assert_eq!((count("a"), count("root")), (count("b"), 2 * count("a")));
    let shared = ServerOptions { share_prefixes: true, ..keyed() };
    let server = start(shared, SchedulerOptions::default());
    assert!(server.cached("a") == 0 && server.cached("b") > 0, "shared by choice");
}

#[test]
fn a_key_does_not_find_the_files_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |folder: &Path| {
        let model = crate::tiny::model_bytes(true);
        serve_within(model, keyed(), SchedulerOptions::default(), Arena::new(), Some(folder))
    };
    let first = serve(folder.path());
    assert_eq!(first.cached("a"), 0);
    first.end();
    drop(first);
    let second = serve(folder.path());
    assert_eq!(second.get_as("b", "/v1/kv").json()["disk"], Value::Null, "files do not say whose they are");
    assert!(second.get_as("root", "/v1/kv").json()["disk"]["files"].as_u64() > Some(0));
    assert_eq!(second.cached("b"), 0);
    assert!(second.cached("a") > 0);
}

#[test]
fn streams_of_one_key_do_not_starve_another() {
    let work = SchedulerOptions { most_running: 2, most_waiting: 1, ..SchedulerOptions::default() };
    let server = start(keyed(), work);
    let endless = json!({"prompt": "on and on", "max_tokens": 400, "stream": true, "ignore_eos": true});
    let head = "x-api-key: a\r\n";
    let streams: Vec<_> = (0..3)
        .map(|number| {
            let mut stream = server.connect();
            stream.write_all(&request("/v1/completions", &endless, head)).unwrap();
            server.wait_until(|counters| counters.accepted > number);
            stream
        })
        .collect();
    server.wait_until(|counters| counters.generated_tokens > 0);
    let answer = server.post_as("b", "/v1/completions", &json!({"prompt": "me too", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    for mut stream in streams {
        assert!(Answer::read(&mut stream).body.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn what_concerns_all_needs_the_admin_key() {
    let unload = json!({"model": MODEL});
    let server = start(keyed(), SchedulerOptions::default());
    let refused = server.post_as("a", "/models/unload", &unload).fails(403, "--admin-key");
    assert_eq!(refused["code"], "admin_key_required");
    server.post_as("root", "/models/unload", &unload).fails(409, "cannot be unloaded");
    server.get_as("a", "/metrics").fails(403, "--admin-key");
    assert_eq!(server.get_as("root", "/metrics").status, 200);
    let ollama = server.post_as("a", "/api/generate", &json!({"model": MODEL, "keep_alive": 0}));
    assert_eq!(ollama.status, 403);
    let kept = json!({"prompt": "x", "max_tokens": 1, "keep_alive": -1});
    let answer = server.post_as("a", "/v1/completions", &kept);
    assert!(answer.status == 200 && answer.head.contains("x-kvant-ignored-fields: keep_alive"), "{answer:?}");
    assert!(!server.post_as("root", "/v1/completions", &kept).head.contains("x-kvant-ignored-fields"));
    // Keys without an admin's: nobody unloads, and everybody with a key counts.
    let keys = Keys::new(["a"]);
    let server = start(ServerOptions { keys, ..options() }, SchedulerOptions::default());
    server.post_as("a", "/models/unload", &unload).fails(403, "--admin-key");
    assert_eq!(server.get_as("a", "/metrics").status, 200);
    // An admin's key alone: everybody may ask.
    let keys = Keys::default().with_admin("root");
    let server = start(ServerOptions { keys, ..options() }, SchedulerOptions::default());
    assert_eq!(server.get("/v1/models").status, 200);
    server.post("/models/unload", &unload).fails(403, "--admin-key");
}

#[test]
fn idle_connections_do_not_shut_out_others() {
    let limits = Limits { connections: 4, head: Duration::from_secs(600), ..Limits::default() };
    let server = start(ServerOptions { limits, ..options() }, SchedulerOptions::default());
    let idle: Vec<_> = (0..40).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.post("/tokenize", &json!({"content": "x"})).status, 200);
    drop(idle);
    // All at work: only /health is answered.
    let endless = json!({"prompt": "on and on", "max_tokens": 400, "stream": true, "ignore_eos": true});
    let mut work: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&request("/v1/completions", &endless, "")).unwrap();
            // The head of the answer: it has begun.
            stream.read_exact(&mut [0; 12]).unwrap();
            stream
        })
        .collect();
    assert_eq!(server.get("/health").status, 200);
    let refused = server.get("/v1/models");
    // The answers may be over by now on a fast machine.
    if refused.status != 200 {
        refused.fails(503, "connections are busy");
    }
    work.iter_mut().for_each(|stream| drop(Answer::read(stream)));
    assert_eq!(server.get("/v1/models").status, 200);
}

#[test]
fn a_server_that_others_reach_needs_a_key() {
    let bind = |options: ServerOptions| {
        let file = kvant_model::gguf::Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap();
        let checkpoint = kvant_model::Checkpoint::from_gguf(file);
        let engine = kvant_engine::Engine::load(&checkpoint, kvant_engine::LoadOptions::default()).unwrap();
        let policy: kvant_engine::Policy = "int4".parse().unwrap();
        let empty = kvant_engine::KvCache::new(&policy, engine.model().slots(), 64).unwrap();
        let work = SchedulerOptions::default();
        let scheduler = kvant_engine::scheduler::Scheduler::new(engine.into(), empty, work);
        kvant_server::Server::bind("0.0.0.0:0", scheduler.handle(), options)
    };
    let refused = bind(options()).err().unwrap();
    assert!(refused.to_string().contains("without an API key"), "{refused}");
    assert!(bind(keyed()).is_ok());
    assert!(bind(ServerOptions { insecure: true, ..options() }).is_ok());
}

#[test]
fn limits_beyond_every_clock_are_no_fault() {
    let most = Duration::MAX;
    let limits = Limits { answer: Some(most), grace: most, preparation: most, ..Limits::default() };
    let server = start(ServerOptions { limits, ..options() }, SchedulerOptions::default());
    server.ask("/v1/completions", json!({"prompt": "x", "max_tokens": 2}));
    server.end();
}

#[test]
fn heads_beyond_their_bound_are_refused_also_just_beyond() {
    let server = usual();
    let with = |bytes: usize| {
        let text = format!(
            "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: {}\r\n\r\n",
            "y".repeat(bytes)
        );
        server.raw(text.as_bytes()).status
    };
    assert_eq!((with(60_000), with(65_536), with(100_000)), (200, 431, 431));
}
