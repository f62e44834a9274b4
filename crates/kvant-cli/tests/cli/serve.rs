//! `kvant serve` as a program among programs.

use crate::served::Served;
use crate::support::Home;
use std::io::{Read, Write};
use std::net::TcpStream;

impl Served {
    pub fn post(&self, path: &str, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{head}\r\n{body}",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks it to end, waits until it has, and returns what it said.
    #[cfg(unix)]
    pub fn end(&mut self) -> String {
        let id = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.said()
    }

    /// Ends it at once, as `kill -9` does, and returns what it said.
    pub fn kill(&mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said()
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

#[test]
fn a_server_answers_as_run_does_and_ends_when_told() {
    let home = Home::new();
    let mut served = Served::start(&home, &home.model(), &["--ctx", "300", "--kv-memory", "8M"]);
    let body = r#"{"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}"#;
    let answer = served.post("/v1/chat/completions", "", body);
    let (head, json) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["model"], "model");
    let model = home.model();
    let run = home.run(&["run", "-m", &model, "--greedy", "-n", "12", "--json", "hello"]).json();
    assert_eq!(json["choices"][0]["message"]["content"], run["text"]);

    #[cfg(unix)]
    {
        let said = served.end();
        assert!(said.contains("contexts of 300 tokens, KV int4 up to 8.0 MiB"), "{said}");
        assert!(
            said.contains("memory: weights ") && said.contains(" + KV cache 8.0 MiB + the rest "),
            "{said}"
        );
        let line =
            said.lines().find(|line| line.contains("path=\"/v1/chat/completions\" status=200")).expect(&said);
        for words in [
            "INFO kvant_server: request id=1 method=\"POST\" path=",
            "model=\"model\"",
            "prompt_tokens=",
            "cached_tokens=0",
            "completion_tokens=",
            "time_to_first_token_seconds=",
            "total_seconds=",
        ] {
            assert!(line.contains(words), "{line}");
        }
        assert!(!said.contains("hello"), "what was said is not logged: {said}");
    }
}

#[cfg(unix)]
#[test]
fn the_log_may_be_json_or_nothing_and_names_what_was_ignored() {
    let home = Home::new();
    let body = r#"{"content": "secret", "odd": 1}"#;
    let mut served = Served::start(&home, &home.model(), &["--log-json", "--log", "requests"]);
    let answer = served.post("/tokenize", "", body);
    assert!(answer.to_lowercase().contains("x-kvant-ignored-fields: odd"), "{answer}");
    let said = served.end();
    let line = said.lines().find(|line| line.starts_with('{')).expect(&said);
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["path"], &line["status"], &line["ignored"]),
        (&"/tokenize".into(), &200.into(), &"odd".into())
    );
    let mut served = Served::start(&home, &home.model(), &["--log", "off", "--strict", "--strict-model"]);
    assert!(served.post("/tokenize", "", body).starts_with("HTTP/1.1 400"));
    assert!(
        served.post("/tokenize", "", r#"{"content": "x", "model": "other"}"#).starts_with("HTTP/1.1 404")
    );
    assert!(!served.end().contains("/tokenize"));
}

#[cfg(unix)]
#[test]
fn a_request_is_traced_down_to_its_kernels_and_what_was_said_is_nowhere() {
    let home = Home::new();
    let flags = ["--log", "trace", "--log-format", "json", "--api-key", "sesame", "--ctx", "300"];
    let mut served = Served::start(&home, &home.model(), &flags);
    let key = "authorization: Bearer sesame\r\n";
    let body = r#"{"messages": [{"role": "user", "content": "my secret"}], "max_tokens": 3}"#;
    assert!(served.post("/v1/chat/completions", key, body).starts_with("HTTP/1.1 200"));
    // A message that would quote what was sent.
    assert!(
        served.post("/v1/chat/completions", key, r#"{"messages": "secret"}"#).starts_with("HTTP/1.1 400")
    );
    let said = served.end();
    assert!(!said.contains("secret") && !said.contains("sesame"), "{said}");
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().filter(|line| line["span"]["name"] == name).collect::<Vec<_>>();
    let request = of("request");
    assert!(request.iter().all(|line| line["span"]["path"] == "/v1/chat/completions"), "{said}");
    let scheduled: Vec<_> = request.iter().filter(|line| line["message"] == "scheduled").collect();
    assert!(!scheduled.is_empty() && scheduled.iter().all(|line| line["span"]["id"] == 1), "{said}");
    // Its passes, by the numbers of the scheduler's steps.
    let passes = of("pass");
    for line in scheduled {
        let is_its = |pass: &&&serde_json::Value| pass["spans"][0]["number"] == line["step"];
        assert_eq!(passes.iter().filter(is_its).count(), 1, "{line} of {said}");
    }
    for name in ["embedding", "mixer", "head"] {
        let groups = of(name);
        let is_timed =
            |line: &&&serde_json::Value| line["time.busy"].is_string() && line["spans"][1]["name"] == "pass";
        assert_eq!(
            (groups.is_empty(), groups.iter().filter(is_timed).count()),
            (false, groups.len()),
            "{name}"
        );
    }
}

#[test]
fn several_models_are_loaded_when_they_are_asked_for() {
    let home = Home::new();
    std::fs::create_dir(home.path("shelf")).unwrap();
    home.write("shelf/one.gguf", &crate::tiny::model_bytes(true));
    home.write("shelf/two.gguf", &crate::tiny::model_bytes(true));
    let served = Served::start(&home, &home.path("shelf").display().to_string(), &["--memory", "1G"]);
    let ask = |model: &str| {
        let body = format!(
            r#"{{"model": "{model}", "messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 2}}"#
        );
        served.post("/v1/chat/completions", "", &body)
    };
    for model in ["two", "one", "two"] {
        let answer = ask(model);
        assert!(answer.contains(&format!("\"model\":\"{model}\"")), "{answer}");
    }
    assert!(ask("three").starts_with("HTTP/1.1 404"));
}

#[test]
fn ps_shows_what_a_server_has_loaded() {
    let home = Home::new();
    std::fs::create_dir(home.path("shelf")).unwrap();
    home.write("shelf/one.gguf", &crate::tiny::model_bytes(true));
    home.write("shelf/two.gguf", &crate::tiny::model_bytes(true));
    let served = Served::start(&home, &home.path("shelf").display().to_string(), &["--ctx", "300"]);
    let url = format!("http://{}", served.address);
    assert!(served.post("/models/load", "", r#"{"model": "two"}"#).starts_with("HTTP/1.1 200"));
    let text = home.run(&["ps", "--server", &url]).ok();
    let line =
        |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("one").contains("unloaded") && line("one").contains("300"), "{text}");
    assert!(line("two").contains(" loaded") && line("two").contains("300"), "{text}");
    let json = home.run(&["ps", "--server", &url, "--json"]).json();
    assert_eq!(json["data"].as_array().map(Vec::len), Some(2));
    home.run(&["ps", "--server", "http://127.0.0.1:1"]).fails(1, &["127.0.0.1:1"]);
}

#[test]
fn memory_counts_weights_and_caches() {
    let home = Home::new();
    std::fs::create_dir(home.path("shelf")).unwrap();
    home.write("shelf/one.gguf", &crate::tiny::model_bytes(true));
    home.write("shelf/two.gguf", &crate::tiny::model_bytes(true));
    let shelf = home.path("shelf").display().to_string();
    let loaded = |memory: &str| {
        let served = Served::start(&home, &shelf, &["--memory", memory, "--ctx", "480", "--threads", "1"]);
        for model in ["one", "two"] {
            let answer = served.post("/models/load", "", &format!(r#"{{"model": "{model}"}}"#));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let url = format!("http://{}", served.address);
        let json = home.run(&["ps", "--server", &url, "--json"]).json();
        let states = json["data"].as_array().unwrap().iter().map(|model| model["status"]["value"].clone());
        states.filter(|state| state == "loaded").count()
    };
    // Their files have 300 KB each; what they run in is more.
    assert_eq!((loaded("1G"), loaded("24M")), (2, 1));
    let served = Served::start(&home, &shelf, &["--memory", "2M", "--ctx", "480"]);
    let answer = served.post("/models/load", "", r#"{"model": "one"}"#);
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("does not fit in memory"), "{answer}");
}

#[test]
fn a_model_that_nobody_asks_for_goes_and_comes_again() {
    let home = Home::new();
    let served = Served::start(&home, &home.model(), &["--ctx", "300"]);
    let state = || {
        let url = format!("http://{}", served.address);
        home.run(&["ps", "--server", &url, "--json"]).json()["data"][0]["status"]["value"].clone()
    };
    assert_eq!(state(), "loaded");
    let answer = served.post("/api/generate", "", r#"{"model": "model", "keep_alive": 0}"#);
    assert!(answer.contains("\"done_reason\":\"unload\""), "{answer}");
    assert_eq!(state(), "unloaded");
    let body = r#"{"prompt": "x", "max_tokens": 2}"#;
    assert!(served.post("/v1/completions", "", body).starts_with("HTTP/1.1 200"));
    assert_eq!(state(), "loaded");
}

#[test]
#[cfg(unix)]
fn limits_of_time_may_be_as_large_as_they_like() {
    let home = Home::new();
    let most = u64::MAX.to_string();
    let limits = ["--timeout", &most, "--grace", &most, "--idle", &most];
    let mut served = Served::start(&home, &home.model(), &limits);
    let reply = served.post("/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 2}");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let said = served.end();
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn keys_come_from_files_too() {
    let home = Home::new();
    let keys = home.write("keys.txt", b"first\n\n  second \n");
    let served = Served::start(&home, &home.model(), &["--api-key-file", &keys, "--alias", "mine"]);
    let body = r#"{"content": "x", "model": "mine"}"#;
    assert!(served.post("/tokenize", "", body).starts_with("HTTP/1.1 401"));
    assert!(served.post("/tokenize", "Authorization: Bearer second\r\n", body).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_running_server_can_be_measured() {
    let home = Home::new();
    let served = Served::start(&home, &home.model(), &["--api-key", "sesame"]);
    let url = format!("http://{}", served.address);
    let text = home.run(&["bench", "--server", &url, "--api-key", "sesame"]).ok();
    for words in ["8 streams", "tok/s", "known", "between tokens", "contexts of 128 tokens"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let rows = home.run(&["bench", "--server", &url, "--api-key", "sesame", "--json"]).ok();
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    // A model this small has answered before the long prompt comes.
    assert!(rows.len() >= 7);
    assert!(
        rows.iter().all(|row| row["value"].as_f64().unwrap() > 0.0 && row["model"] == "model"),
        "{rows:?}"
    );
    home.run(&["bench", "--server", &url]).fails(1, &["401"]);
    home.run(&["bench", "--server", "localhost"]).fails(2, &["http://HOST:PORT"]);
    home.run(&["bench", "--server", &url, "-n", "5"]).fails(2, &["--generate"]);
    home.run(&["bench"]).fails(2, &["MODEL"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new();
    let model = home.model();
    let with = |arguments: &[&str]| home.run(&[&["serve", &model], arguments].concat());
    with(&["--window", "100"]).fails(2, &["--ctx"]);
    with(&["--api-key", " "]).fails(2, &["--api-key"]);
    with(&["--api-key-file", "nowhere.txt"]).fails(1, &["nowhere.txt"]);
    with(&["--parallel", "0"]).fails(2, &["--parallel"]);
    with(&["--admin-key", ""]).fails(2, &["--admin-key"]);
    with(&["--host", "0.0.0.0"]).fails(2, &["--api-key", "--insecure"]);
    with(&["--top-p", "2"]).fails(2, &["top_p"]);
    with(&["-m", "other.gguf"]).fails(2, &["--model"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    with(&["--port", &port]).fails(1, &["cannot listen", &port]);
    home.run(&["serve", "nowhere.gguf"]).fails(1, &["nowhere.gguf"]);
}
