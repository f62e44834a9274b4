//! Several models that come and go.

use crate::support::*;
use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
use kvant_engine::{Arena, Engine, KvCache, LoadOptions, Policy};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_server::{Keys, ModelFacts, ModelLoader, PullProgress, ServedModel, Server, ServerOptions};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

const PATH: &str = "/v1/chat/completions";

/// Tiny models of any name, and one that cannot be loaded.
struct Loader {
    loads: AtomicUsize,
    names: Mutex<Vec<String>>,
}

impl Default for Loader {
    fn default() -> Self {
        let names = ["a", "b", "c", "broken", "huge"].map(str::to_owned).to_vec();
        Self { loads: AtomicUsize::new(0), names: Mutex::new(names) }
    }
}

impl ModelLoader for Loader {
    fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().clone()
    }

    fn pull(&self, name: &str, report: &mut dyn FnMut(PullProgress<'_>)) -> Result<(), String> {
        if name == "nowhere" {
            return Err("nowhere is not to be had".into());
        }
        (0..=2).for_each(|done| report(PullProgress { file: "x.gguf", done, total: Some(2) }));
        self.names.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        self.names.lock().unwrap().retain(|other| other != name);
        Ok(())
    }

    fn copy(&self, _: &str, other: &str) -> Result<(), String> {
        self.names.lock().unwrap().push(other.to_owned());
        Ok(())
    }

    fn context(&self, name: &str) -> Option<usize> {
        (name == "a").then_some(480)
    }

    fn facts(&self, name: &str) -> Option<ModelFacts> {
        let facts = ModelFacts {
            file_bytes: 463,
            family: "qwen2".into(),
            parameters: 68_600,
            quantization: "Q4_K_M".into(),
            format: "gguf".into(),
        };
        (name == "a").then_some(facts)
    }

    fn size(&self, name: &str) -> Result<u64, String> {
        Ok(if name == "huge" { 21 } else { 6 })
    }

    fn load(&self, name: &str, room: Option<u64>) -> Result<ServedModel, String> {
        assert!(room.is_some_and(|room| room >= 6), "room was made: {room:?}");
        if name == "broken" {
            return Err("broken.gguf: it is broken".into());
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        let file = Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap();
        let engine = Arc::new(Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap());
        let policy: Policy = "int4".parse().unwrap();
        let empty = KvCache::in_arena(policy, engine.model().slots(), 480, Arena::new()).unwrap();
        let scheduler = Scheduler::new(engine, empty, SchedulerOptions::default());
        let handle = scheduler.handle();
        // Its cache may grow, which counts from now on.
        Ok(ServedModel { handle, worker: std::thread::spawn(move || scheduler.run()), bytes: 10 })
    }
}

/// A server with room for two of them.
fn server(idle: Option<Duration>) -> (Arc<Loader>, Running) {
    server_with(idle, options())
}

fn server_with(idle: Option<Duration>, options: ServerOptions) -> (Arc<Loader>, Running) {
    let loader = Arc::new(Loader::default());
    let given: Arc<dyn ModelLoader> = loader.clone();
    let server = Server::bind_on_demand(
        "127.0.0.1:0",
        given,
        Some(20),
        idle,
        ServerOptions { model: String::new(), ..options },
    )
    .unwrap();
    let address = server.address().unwrap();
    let (end, ends) = unbounded_channel();
    let threads = vec![std::thread::spawn(move || server.run(ends).unwrap())];
    // Only models have handles here.
    (loader, Running::of(address, end, threads))
}

fn ask(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4})
}

fn states(server: &Running) -> Vec<(String, String)> {
    let list = server.get("/v1/models").json();
    let state = |model: &Value| {
        (model["id"].as_str().unwrap().to_owned(), model["status"]["value"].as_str().unwrap().to_owned())
    };
    list["data"].as_array().unwrap().iter().map(state).collect()
}

fn loaded(server: &Running) -> Vec<String> {
    states(server).into_iter().filter(|(_, state)| state == "loaded").map(|(name, _)| name).collect()
}

#[test]
fn models_are_loaded_on_demand_and_the_least_recently_used_goes() {
    let (loader, server) = server(None);
    assert_eq!(states(&server).len(), 5);
    assert_eq!(loaded(&server), Vec::<String>::new());
    assert_eq!(server.get("/health").status, 200);
    let a = server.ask(PATH, ask("a"));
    assert_eq!(a["model"], "a");
    server.ask(PATH, ask("b"));
    server.ask(PATH, ask("a"));
    assert_eq!(
        (loaded(&server), loader.loads.load(Ordering::Relaxed)),
        (vec!["a".to_owned(), "b".into()], 2)
    );
    assert_eq!(server.ask(PATH, ask("c"))["model"], "c");
    assert_eq!(loaded(&server), ["a", "c"], "b was not used for longest");
    assert_eq!(server.ask(PATH, ask("b"))["choices"], a["choices"]);
    let error = server.post(PATH, &ask("d")).fails(404, "\"a\", \"b\"");
    assert_eq!(error["code"], "model_not_found");
    server.post(PATH, &ask("broken")).fails(500, "it is broken");
    let tags = server.get("/api/tags").json();
    assert_eq!(tags["models"].as_array().unwrap().len(), 5);
    server.post(PATH, &ask("huge")).fails(503, "not enough memory for huge");
}

#[test]
fn contexts_of_models_that_are_not_loaded_are_told_where_they_are_known() {
    let (_, server) = server(None);
    let contexts = || {
        let list = server.get("/v1/models").json();
        let context = |model: &Value| model["context_length"].as_u64();
        list["data"].as_array().unwrap().iter().take(2).map(context).collect::<Vec<_>>()
    };
    assert_eq!(contexts(), [Some(480), None]);
    let capabilities = || server.get("/v1/models").json()["data"][1]["capabilities"].clone();
    assert_eq!(capabilities(), Value::Null, "nobody knows before it is loaded");
    server.ask(PATH, ask("b"));
    assert!(capabilities().as_array().is_some_and(|all| !all.is_empty()));
    server.ask("/models/unload", json!({"model": "b"}));
    assert_eq!(contexts(), [Some(480), Some(480)], "what was loaded once is known");
}

#[test]
fn models_are_loaded_and_unloaded_when_told() {
    let (_, server) = server(None);
    assert_eq!(server.ask("/models/load", json!({"model": "b"}))["success"], true);
    assert_eq!(loaded(&server), ["b"]);
    // Without a name the one that is there answers.
    let mut body = ask("b");
    body.as_object_mut().unwrap().remove("model");
    assert_eq!(server.ask(PATH, body)["model"], "b");
    assert_eq!(server.ask("/models/unload", json!({"model": "b"}))["success"], true);
    assert_eq!(loaded(&server), Vec::<String>::new());
    server.post("/models/load", &json!({"model": "d"})).fails(404, "\"d\"");
    server.post("/models/load", &json!({})).fails(400, "model is required");
    usual().post("/models/unload", &json!({"model": MODEL})).fails(409, "cannot be unloaded");
}

#[test]
fn many_who_ask_for_one_model_wait_for_one_load() {
    let (loader, server) = server(None);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6).map(|_| scope.spawn(|| server.post(PATH, &ask("a")).status)).collect();
        assert!(asked.into_iter().all(|asked| asked.join().unwrap() == 200));
    });
    assert_eq!(loader.loads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_model_that_nobody_uses_goes_after_a_while() {
    let (_, server) = server(Some(Duration::from_millis(1)));
    server.ask(PATH, ask("a"));
    let start = std::time::Instant::now();
    while !loaded(&server).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.ask(PATH, ask("a"))["model"], "a");
}

/// Waits until nothing is loaded.
fn wait_until_empty(server: &Running) {
    let start = std::time::Instant::now();
    while !loaded(server).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", loaded(server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keep_alive_has_its_meaning() {
    // The server itself would unload at once; a request that wants its model to stay is heard.
    let (loader, server) = server(Some(Duration::from_millis(1)));
    let chat = |model: &str, keep: Value| {
        json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": false,
               "options": {"num_predict": 2}, "keep_alive": keep})
    };
    assert_eq!(server.ask("/api/chat", chat("a", json!(-1)))["done"], true);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(loaded(&server), ["a"]);
    assert_eq!(server.get("/api/ps").json()["models"][0]["expires_at"], "9999-12-31T23:59:59Z");
    // OpenAI's routes know it too.
    let mut body = ask("a");
    body["keep_alive"] = json!("10m");
    server.ask(PATH, body);
    let expires = server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    assert!(expires.as_str().unwrap().starts_with("20"), "{expires}");
    // An answer comes first, then the model goes.
    assert_eq!(server.ask("/api/chat", chat("a", json!(0)))["done"], true);
    wait_until_empty(&server);
    // Without anything to answer nothing is loaded, and what is loaded goes at once.
    let before = loader.loads.load(Ordering::Relaxed);
    let unload = json!({"model": "a", "keep_alive": 0});
    assert_eq!(server.ask("/api/generate", unload.clone())["done_reason"], "unload");
    assert_eq!(loader.loads.load(Ordering::Relaxed), before);
    let load = json!({"model": "a", "keep_alive": "5m"});
    assert_eq!(server.ask("/api/generate", load)["done_reason"], "load");
    assert_eq!(loaded(&server), ["a"]);
    assert_eq!(server.ask("/api/chat", unload)["done_reason"], "unload");
    assert_eq!(loaded(&server), Vec::<String>::new());
    // A request is checked even if it only unloads.
    for wrong in
        [json!({"format": true}), json!({"messages": {}}), json!({"stream": 1}), json!({"options": []})]
    {
        let mut body = json!({"model": "a", "keep_alive": 0});
        body.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert_eq!(server.post("/api/chat", &body).status, 400, "{body}");
    }
    let answer = server.post("/api/chat", &chat("a", json!("soon")));
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"].as_str().unwrap().contains("keep_alive must be seconds"), "{answer:?}");
    // A model that a server cannot load again stays.
    let one = usual();
    assert_eq!(one.ask("/api/generate", json!({"model": MODEL, "keep_alive": 0}))["done_reason"], "unload");
    assert_eq!(one.get("/v1/models").json()["data"][0]["status"]["value"], "loaded");
}

#[test]
fn sizes_and_details_are_those_of_files_and_of_memory_where_a_model_is_loaded() {
    let (_, server) = server(None);
    let tags = server.get("/api/tags").json();
    let (known, unknown) = (&tags["models"][0], &tags["models"][1]);
    assert_eq!((&known["size"], &unknown["size"]), (&json!(463), &json!(0)));
    let details = &known["details"];
    assert_eq!(
        (&details["family"], &details["parameter_size"], &details["quantization_level"], &details["format"]),
        (&json!("qwen2"), &json!("68.60K"), &json!("Q4_K_M"), &json!("gguf"))
    );
    server.ask(PATH, ask("a"));
    let loaded = &server.get("/api/ps").json()["models"][0];
    assert_eq!(
        (&loaded["size"], &loaded["size_vram"], &loaded["device"]),
        (&json!(10), &json!(0), &json!("cpu"))
    );
    assert_eq!(server.get("/api/tags").json()["models"][0]["size"], 463, "a file stays as large as it is");
    assert_eq!(
        server.ask("/api/show", json!({"model": "a"}))["model_info"]["general.parameter_count"],
        68_600
    );
}

#[test]
fn anthropics_clients_get_models_in_their_shape() {
    let (_, server) = server(None);
    let get = |path: &str| {
        let head = "Host: localhost\r\nConnection: close\r\nanthropic-version: 2023-06-01\r\n";
        server.raw(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes())
    };
    let list = get("/v1/models").json();
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!("a"), &json!("huge"), &json!(false))
    );
    assert_eq!((list.get("object"), &list["data"][0]["type"]), (None, &json!("model")));
    let one = get("/v1/models/b").json();
    assert_eq!((&one["id"], &one["display_name"], &list["data"][1]), (&json!("b"), &json!("b"), &one));
    let created = one["created_at"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.matches('Z').count() == 1, "{created}");
    let missing = get("/v1/models/z");
    assert_eq!((missing.status, &missing.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(server.get("/v1/models").json()["object"], "list", "others get OpenAI's");
}

#[test]
fn a_server_without_keys_lets_nobody_fetch_delete_or_copy_models() {
    let (_, server) = server(None);
    for (method, path, body) in [
        ("POST", "/api/pull", json!({"model": "new"})),
        ("DELETE", "/api/delete", json!({"model": "c"})),
        ("POST", "/api/copy", json!({"source": "a", "destination": "d"})),
    ] {
        let text = String::from_utf8(request(path, &body, "")).unwrap().replacen("POST", method, 1);
        let refused = server.raw(text.as_bytes());
        assert!(refused.status == 403 && refused.body.contains("--admin-key"), "{path}: {refused:?}");
    }
    assert_eq!(states(&server).len(), 5, "nothing was done");
    // What leaves the disk as it is stays open to everybody on this machine.
    assert_eq!(server.ask("/models/load", json!({"model": "b"}))["success"], true);
    assert_eq!(server.ask("/models/unload", json!({"model": "b"}))["success"], true);
}

#[test]
fn models_are_fetched_deleted_and_copied_by_the_admin_alone() {
    let keys = Keys::new(["guest"]).with_admin("admin");
    let (_, server) = server_with(None, ServerOptions { keys, ..options() });
    let send = |key: &str, method: &str, path: &str, body: Value| {
        let bytes = request(path, &body, &format!("Authorization: Bearer {key}\r\n"));
        let text = String::from_utf8(bytes).unwrap().replacen("POST", method, 1);
        server.raw(text.as_bytes())
    };
    let tags = || {
        let head = "Host: localhost\r\nConnection: close\r\nAuthorization: Bearer guest\r\n";
        let list = server.raw(format!("GET /api/tags HTTP/1.1\r\n{head}\r\n").as_bytes()).json();
        let names =
            list["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let asked = [
        ("POST", "/api/pull", json!({"model": "new"})),
        ("DELETE", "/api/delete", json!({"model": "c"})),
        ("POST", "/api/copy", json!({"source": "a", "destination": "d"})),
    ];
    for (method, path, body) in &asked {
        let refused = send("guest", method, path, body.clone());
        assert!(refused.status == 403 && refused.body.contains("admin key"), "{refused:?}");
    }
    assert_eq!(tags().len(), 5, "nothing was done");
    for (method, path, body) in asked {
        assert_eq!(send("admin", method, path, body).status, 200, "{path}");
    }
    assert_eq!(tags(), ["a", "b", "broken", "huge", "new", "d"]);
    let streamed = send("admin", "POST", "/api/pull", json!({"name": "more"}));
    let lines: Vec<Value> = streamed.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["status"], &lines.last().unwrap()["status"]),
        (&json!("pulling manifest"), &json!("success"))
    );
    assert!(lines.iter().any(|line| line["completed"] == 2 && line["total"] == 2), "{lines:?}");
    let failed = send("admin", "POST", "/api/pull", json!({"model": "nowhere", "stream": false}));
    assert!(failed.status == 409 && failed.body.contains("not to be had"), "{failed:?}");
    assert_eq!(send("admin", "DELETE", "/api/delete", json!({"model": "never"})).status, 404);
    // What was fetched is served.
    assert_eq!(send("guest", "POST", PATH, ask("new")).status, 200);
}
