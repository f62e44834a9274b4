//! Many clients at once.

use crate::support::*;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};

const PATH: &str = "/v1/completions";

fn body(number: usize) -> Value {
    let prompt = "the rain in spain ".repeat(1 + number % 5);
    json!({"prompt": prompt, "seed": number, "max_tokens": 40, "temperature": 1.1})
}

/// An answer of so many tokens.
fn answer_of(tokens: usize) -> Value {
    json!({"prompt": "on", "max_tokens": tokens, "logit_bias": {"2": -100}, "stream": true})
}

/// An answer that goes on until it is broken off: seconds, where others take hundredths of one.
fn endless() -> Value {
    answer_of(16_000)
}

/// A server whose model has the context for it.
fn patient(work: SchedulerOptions) -> Running {
    serve(long_model(Some(crate::tiny::TEMPLATE)), options(), work)
}

#[test]
fn an_answer_does_not_depend_on_who_else_asks() {
    let alone: Vec<Value> = (0..16).map(|i| usual().ask(PATH, body(i))["choices"].clone()).collect();
    let server = usual();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..16)
                .map(|i| {
                    let server = &server;
                    scope.spawn(move || server.ask(PATH, body(i))["choices"].clone())
                })
                .collect();
            for (asked, alone) in asked.into_iter().zip(&alone) {
                assert_eq!(&asked.join().unwrap(), alone);
            }
        });
    }
    server.wait_until(|counters| counters.finished == 32);
}

#[test]
fn a_full_queue_turns_clients_away_until_there_is_room() {
    let work = SchedulerOptions { most_running: 1, most_waiting: 1, ..SchedulerOptions::default() };
    let server = patient(work);
    let mut streams = Vec::new();
    for waiting in [0, 1] {
        let mut stream = server.connect();
        stream.write_all(&request(PATH, &endless(), "")).unwrap();
        streams.push(stream);
        server.wait_until(|counters| counters.running == 1 && counters.accepted == 1 + waiting);
    }
    let answer = server.post(PATH, &body(1));
    let error = answer.fails(429, "try again");
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("queue_full")));
    assert!(answer.head.contains("retry-after: "), "{}", answer.head);
    drop(streams);
    server.wait_until(|counters| counters.cancelled == 2);
    server.ask(PATH, body(1));
}

#[test]
fn an_idle_server_answers_as_many_as_it_has_slots_and_places() {
    let work = SchedulerOptions { most_running: 16, most_waiting: 64, ..SchedulerOptions::default() };
    let server = start(options(), work);
    std::thread::scope(|scope| {
        let ask = |i: usize| {
            let server = &server;
            scope.spawn(move || server.post(PATH, &body(i)).status)
        };
        let asked: Vec<_> = (0..80).map(ask).collect();
        let statuses: Vec<u16> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
        assert_eq!(statuses, vec![200; 80]);
    });
    server.wait_until(|counters| counters.running + counters.waiting == 0);
    assert_eq!((server.handle.counters().finished, server.handle.counters().refused), (80, 0));
}

#[test]
fn a_client_that_goes_away_is_not_worked_for() {
    let server = patient(SchedulerOptions::default());
    // In the middle of a stream.
    let mut stream = server.connect();
    stream.write_all(&request(PATH, &endless(), "")).unwrap();
    let mut some = [0; 600];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    server.wait_until(|counters| counters.cancelled == 1);
    // While a whole answer is being made.
    let mut whole = endless();
    whole["stream"] = json!(false);
    let mut stream = server.connect();
    stream.write_all(&request(PATH, &whole, "")).unwrap();
    server.wait_until(|counters| counters.running == 1);
    drop(stream);
    server.wait_until(|counters| counters.cancelled == 2);
}

#[test]
fn a_server_told_to_end_finishes_what_it_began() {
    let mut server = usual();
    let mut stream = server.connect();
    stream.write_all(&request(PATH, &answer_of(450), "")).unwrap();
    server.wait_until(|counters| counters.accepted == 1);
    server.end();
    let answer = Answer::read(&mut stream);
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn a_server_told_twice_ends_at_once_and_says_so() {
    let mut server = patient(SchedulerOptions::default());
    let mut stream = server.connect();
    stream.write_all(&request(PATH, &endless(), "")).unwrap();
    server.wait_until(|counters| counters.generated_tokens > 0);
    server.end();
    server.end();
    let answer = Answer::read(&mut stream);
    assert!(answer.body.contains("shutting down"), "{answer:?}");
    server.join();
}
