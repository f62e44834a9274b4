//! Requests that are not welcome.

use crate::support::*;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::{Keys, Limits};
use serde_json::json;
use std::io::{Read, Write};
use std::time::Duration;

#[test]
fn keys_are_asked_for_and_checked() {
    let server = start(
        kvant_server::ServerOptions { keys: Keys::new(["sesame", "other"]), ..options() },
        SchedulerOptions::default(),
    );
    let ask = |head: &str| server.raw(&request("/tokenize", &json!({"content": "x"}), head));
    let error = ask("").fails(401, "Authorization: Bearer");
    assert_eq!((&error["type"], &error["code"]), (&json!("authentication_error"), &json!("invalid_api_key")));
    ask("Authorization: Bearer sesam\r\n").fails(401, "unknown API key");
    ask("X-Api-Key: sesam\r\n").fails(401, "unknown API key");
    assert_eq!(ask("X-Api-Key: sesame\r\n").status, 200);
    ask("Authorization: Basic sesame\r\n").fails(401, "unknown API key");
    assert_eq!(ask("Authorization: Bearer sesame\r\n").status, 200);
    assert_eq!(ask("authorization: bearer other\r\n").status, 200);
    for path in ["/v1/models", "/metrics", "/v1/kv", "/nowhere"] {
        server.get(path).fails(401, "API key");
    }
    assert_eq!(server.get("/health").status, 200, "whoever looks after it needs no key");
}

#[test]
fn pages_of_other_sites_cannot_use_a_local_server() {
    let server = usual();
    let ask = |host: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        server.raw(head.as_bytes())
    };
    ask("evil.example").fails(403, "evil.example");
    assert_eq!(ask("127.0.0.1:8080").status, 200);
    assert!(!server.get("/v1/models").head.contains("access-control"));
    // What a form can send without being asked first.
    let body = "{\"content\": \"x\"}";
    let form = format!(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    server.raw(form.as_bytes()).fails(415, "application/json");
}

#[test]
fn browsers_are_let_in_where_that_is_asked_for() {
    let options = kvant_server::ServerOptions {
        cors: Some("https://chat.example".into()),
        keys: Keys::new(["k"]),
        ..options()
    };
    let server = start(options, SchedulerOptions::default());
    let asked = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://chat.example\r\n\
                 Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n";
    let answer = server.raw(asked.as_bytes());
    assert_eq!(answer.status, 204);
    assert!(answer.head.contains("access-control-allow-origin: https://chat.example"), "{}", answer.head);
    assert!(answer.head.contains("access-control-allow-headers: authorization, content-type, x-api-key"));
    server.get("/v1/models").fails(401, "");
}

#[test]
fn what_is_broken_or_too_large_is_refused_in_words() {
    let limits = Limits { body: 2000, ..Limits::default() };
    let server = start(kvant_server::ServerOptions { limits, ..options() }, SchedulerOptions::default());
    let post = |body: &str| {
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                    Content-Type: application/json\r\n";
        server.raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    };
    for body in ["", "{", "[]", "nonsense", "{\"prompt\": \"x\"", &"[".repeat(1000), "\"\\ud800\""] {
        post(body).fails(400, "");
    }
    post(&format!("{{\"prompt\": \"{}\"}}", "x".repeat(3000))).fails(413, "2000 bytes");
    server.get("/nowhere").fails(404, "/nowhere");
    server.get("/v1/completions").fails(405, "GET");
    server.get("/v1/models/../../etc").fails(404, "");
    assert_eq!(server.raw(b"nonsense\r\n\r\n").status, 400);
    let long = format!("GET / HTTP/1.1\r\nConnection: close\r\nX: {}\r\n\r\n", "y".repeat(200_000));
    assert_eq!(server.raw(long.as_bytes()).status, 431);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn clients_that_dawdle_are_given_up() {
    let short = Duration::from_millis(200);
    let limits = Limits { head: short, arrival: short, connections: 2, ..Limits::default() };
    let server = start(kvant_server::ServerOptions { limits, ..options() }, SchedulerOptions::default());
    // Two that say nothing, or only half of it, take all the room there is, for a while.
    let silent = server.connect();
    let mut halting = server.connect();
    halting.write_all(b"GET /health HTT").unwrap();
    assert_eq!(server.get("/health").status, 200);
    for mut stream in [silent, halting] {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
    }
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Connection: close\r\nContent-Length: 500\r\n\r\n{";
    server.raw(head.as_bytes()).fails(408, "in time");
}

#[test]
fn an_answer_that_takes_too_long_is_ended() {
    let limits = Limits { answer: Some(Duration::ZERO), ..Limits::default() };
    let server = start(kvant_server::ServerOptions { limits, ..options() }, SchedulerOptions::default());
    let error = server.post("/v1/completions", &json!({"prompt": "x"})).fails(504, "time limit");
    assert_eq!(error["type"], "server_error");
    // A stream may have begun before its time was up: then the error is in it.
    let answer = server.post("/v1/completions", &json!({"prompt": "x", "stream": true}));
    assert!(answer.body.contains("time limit") && !answer.body.contains("[DONE]"), "{answer:?}");
}

#[test]
fn browsers_may_send_the_headers_that_packages_add() {
    let options = kvant_server::ServerOptions { cors: Some("*".into()), ..options() };
    let server = start(options, SchedulerOptions::default());
    let asked = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n\
                 Access-Control-Request-Method: POST\r\nConnection: close\r\n\
                 Access-Control-Request-Headers: authorization,content-type,x-stainless-os,x-stainless-lang\r\n\r\n";
    let answer = server.raw(asked.as_bytes());
    let allowed = "access-control-allow-headers: authorization,content-type,x-stainless-os,x-stainless-lang";
    assert!(answer.status == 204 && answer.head.contains(allowed), "{}", answer.head);
    assert!(answer.head.contains("access-control-allow-origin: *"));
}

#[test]
fn what_curl_sends_without_being_told_is_read_and_forms_are_not() {
    let server = usual();
    let post = |head: &str| {
        let body = "{\"content\": \"x\"}";
        let text = format!(
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n{head}\r\n{body}",
            body.len()
        );
        server.raw(text.as_bytes())
    };
    // Some libraries send no type at all.
    for kind in ["Content-Type: application/x-www-form-urlencoded\r\n", ""] {
        assert_eq!(post(kind).status, 200, "{kind}");
        for browser in ["Origin: https://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
            post(&format!("{kind}{browser}")).fails(415, "application/json");
        }
    }
}
