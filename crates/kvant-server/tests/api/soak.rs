//! Clients of all kinds for a while: those who behave get what they would get alone, and nothing is left of the others.

use crate::support::*;
use kvant_engine::scheduler::{Counters, SchedulerOptions};
use kvant_engine::{Arena, KvCache, Policy};
use kvant_server::{Limits, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

/// Tells the other process that it is the one.
const VARIABLE: &str = "KVANT_TEST_SOAK";

/// How long clients come.
const TIME: Duration = Duration::from_secs(7);

/// When memory is first looked at.
const WARM_UP: Duration = Duration::from_secs(3);

/// What the process may grow by after that: allocators keep a little here and there. A few kilobytes lost by every client
/// would be more.
const SLACK: usize = 12 << 20;

/// Different requests of those who behave.
const KINDS: usize = 10;

fn body(kind: usize) -> Value {
    let prompt = format!("{} {}", "the rain in spain ".repeat(1 + 4 * (kind % 4)), kind % 5);
    json!({"prompt": prompt, "seed": kind, "max_tokens": 30, "temperature": 1.1})
}

/// Much text that is sent as fast as it is made.
fn torrent(number: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": format!("on {number}")}],
        "max_tokens": 300, "logit_bias": {"2": -100}, "stream": true, "logprobs": true, "top_logprobs": 20,
    })
}

/// Everything in a process of its own, whose memory is nobody else's.
#[test]
fn clients_of_all_kinds_leave_nothing_behind() {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "soak::soaks", "--nocapture"]).env(VARIABLE, "1");
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{}", text(&output.stdout));
}

/// Not a test of its own: see [`clients_of_all_kinds_leave_nothing_behind`].
#[test]
fn soaks() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let alone: Vec<Value> = (0..KINDS).map(|kind| usual().ask(PATH, body(kind))["choices"].clone()).collect();
    soak(&alone, None);
    let folder = tempfile::tempdir().unwrap();
    soak(&alone, Some(folder.path()));
    // And what the second has left on disk serves a third.
    let third = server(Some(folder.path()));
    for (kind, alone) in alone.iter().enumerate() {
        assert_eq!(&third.ask(PATH, body(kind))["choices"], alone);
    }
    third.wait_until(|counters| counters.disk.unwrap().loaded_tokens > 0);
}

/// One whose memory is soon full.
fn server(folder: Option<&Path>) -> Running {
    let short = Duration::from_millis(500);
    let limits = Limits { body: 20_000, head: short, arrival: short, stall: short, ..Limits::default() };
    let work = SchedulerOptions { most_running: 6, ..SchedulerOptions::default() };
    let engine = usual();
    let policy: Policy = "int4".parse().unwrap();
    let states = engine.handle.engine().model().slots();
    let whole = KvCache::new(&policy, states, 480).unwrap().sequence().layout().arena_bytes(480, 256);
    let arena = Arena::with_cap(4 * whole);
    serve_within(crate::tiny::model_bytes(true), ServerOptions { limits, ..options() }, work, arena, folder)
}

fn soak(alone: &[Value], folder: Option<&Path>) {
    let before = sockets();
    let server = server(folder);
    let (start, answered) = (Instant::now(), AtomicUsize::new(0));
    let more = || start.elapsed() < TIME;
    let mut warm = 0;
    std::thread::scope(|scope| {
        let (server, answered, more) = (&server, &answered, &more);
        for first in 0..3 {
            scope.spawn(move || {
                for kind in (first..).take_while(|_| more()).map(|number| number % KINDS) {
                    behave(server, kind, &alone[kind]);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let misbehave: [fn(&Running, usize); 5] = [disconnect, dawdle, say_nothing, babble, exceed];
        for kind in misbehave {
            scope.spawn(move || (0..).take_while(|_| more()).for_each(|number| kind(server, number)));
        }
        std::thread::sleep(WARM_UP);
        warm = resident();
    });
    let counts = |c: &Counters| (c.running + c.waiting, c.accepted - c.finished - c.cancelled - c.failed);
    server.wait_until(|counters| counts(counters) == (0, 0));
    let grown = resident().saturating_sub(warm);
    let counters = server.handle.counters();
    assert!(grown <= SLACK, "{grown} bytes more than after the warm-up: {counters:?}");
    let answered = answered.into_inner();
    println!("{answered} answers, {} requests broken off, {grown} bytes more", counters.cancelled);
    assert!(answered >= KINDS, "{counters:?}");
    assert!(counters.cancelled > 0 && counters.failed == 0, "{counters:?}");
    assert!(folder.is_none() || counters.disk.unwrap().written > 0, "{counters:?}");
    // Every page that is in use is one of a prefix, and of connections there is the one that asks.
    until(|| {
        let view = server.get("/v1/kv").json();
        assert_eq!(view["sequences"], json!([]));
        view["arena"]["pages"] == view["prefixes"]["pages"]
    });
    // The one that it listens on, and those that the runtime wakes itself with.
    until(|| sockets() <= before + 4);
    server.end();
    drop(server);
    until(|| sockets() <= before);
}

fn behave(server: &Running, kind: usize, alone: &Value) {
    if kind.is_multiple_of(2) {
        assert_eq!(&server.ask(PATH, body(kind))["choices"], alone);
        return;
    }
    let pieces = server.stream(PATH, body(kind));
    let text: String = pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, alone[0]["text"].as_str().unwrap());
}

/// Goes away at some point: before the request is whole, before the answer, or in the middle of it.
fn disconnect(server: &Running, number: usize) {
    let whole = request("/v1/chat/completions", &torrent(number), "");
    let mut stream = server.connect();
    let sent = if number.is_multiple_of(4) { number % whole.len() } else { whole.len() };
    stream.write_all(&whole[..sent]).unwrap();
    if sent == whole.len() {
        let mut some = vec![0; number % 7 * 300];
        stream.read_exact(&mut some).unwrap();
    }
}

/// Takes a byte now and then.
fn dawdle(server: &Running, number: usize) {
    let mut stream = server.connect();
    stream.write_all(&request("/v1/chat/completions", &torrent(number), "")).unwrap();
    for _ in 0..100 {
        // The server may have lost its patience.
        if stream.read(&mut [0; 16]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Connects and waits to be sent away, with half a head or none.
fn say_nothing(server: &Running, number: usize) {
    let mut stream = server.connect();
    stream.write_all(&b"GET /health HTTP/1.1\r\nHost: loc"[..number % 30]).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Sends what makes no sense.
fn babble(server: &Running, number: usize) {
    let bodies = [
        "",
        "{",
        "[]",
        "{\"prompt\": 7}",
        "{\"prompt\": \"x\", \"max_tokens\": 1.5}",
        "\"\\ud800\"",
        "{\"prompt\": []}",
    ];
    let answer = match number % 3 {
        0 => server.raw(b"\x00\xffnonsense\r\n\r\n"),
        1 => server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"),
        _ => {
            let body = bodies[number / 3 % bodies.len()];
            let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                        Content-Type: application/json\r\n";
            server.raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
        }
    };
    assert!((400..500).contains(&answer.status), "{number}: {answer:?}");
    std::thread::sleep(Duration::from_millis(2));
}

/// Sends more than is taken: bodies, heads, prompts, answers.
fn exceed(server: &Running, number: usize) {
    let answer = match number % 4 {
        0 => server.post(PATH, &json!({"prompt": "x".repeat(100_000)})),
        1 => server.post(PATH, &json!({"prompt": "the rain in spain ".repeat(1000)})),
        2 => server.post(PATH, &json!({"prompt": "x", "n": 1000})),
        _ => {
            let head = format!("GET / HTTP/1.1\r\nConnection: close\r\nX: {}\r\n\r\n", "y".repeat(200_000));
            server.raw(head.as_bytes())
        }
    };
    // A server that refuses what is still being sent may reset the connection before its answer is read.
    assert!(answer.status == 0 || (400..500).contains(&answer.status), "{number}: {answer:?}");
    std::thread::sleep(Duration::from_millis(2));
}

#[track_caller]
fn until(reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come to that");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes of memory that this process holds.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Sockets that this process has open.
fn sockets() -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|item| item.unwrap().path().read_link().ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
