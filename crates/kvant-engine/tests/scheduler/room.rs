//! A cap on memory.

use crate::support::*;
use kvant_engine::scheduler::{JobError, SchedulerOptions, View};
use kvant_engine::{GenerateError, Request, SamplingParams, kv};
use std::sync::mpsc;

fn endless(prompt: Vec<u32>, tokens: usize) -> Request {
    let sampling = SamplingParams {
        logit_bias: vec![(2, f32::NEG_INFINITY)],
        seed: Some(prompt.len() as u64),
        ..SamplingParams::default()
    };
    Request { prompt, sampling, max_tokens: Some(tokens), ..Request::default() }
}

fn whole_context(engine: &kvant_engine::Engine, policy: &str) -> usize {
    let policy: kvant_engine::Policy = policy.parse().unwrap();
    kv::memory(policy, engine.model().slots(), CONTEXT).unwrap()
}

#[test]
fn sequences_that_outgrow_memory_take_turns_and_say_what_they_would_have_said() {
    let engine = engine();
    let cap = whole_context(&engine, "f16") * 3 / 2;
    let requests: Vec<Request> =
        (0..6).map(|i| endless(prompt(i, 20 + 10 * i as usize), 400 + i as usize)).collect();
    let mut scheduler = scheduler(&engine, "f16", Some(cap), SchedulerOptions::default());
    let handle = scheduler.handle();
    let sinks: Vec<ChannelSink> =
        requests.iter().map(|request| submit(&handle, request.clone()).unwrap()).collect();
    let mut most = 0;
    loop {
        let (sender, receiver) = mpsc::channel::<View>();
        handle.look(move |view| sender.send(view).unwrap());
        let worked = scheduler.step();
        let view = receiver.recv().unwrap();
        assert!(view.arena.used <= cap, "{view:?}");
        most = most.max(view.sequences.len());
        if !worked {
            break;
        }
    }
    assert!(most > 1, "some ran side by side");
    assert!(handle.counters().preemptions > 0, "some were preempted");
    for (sink, request) in sinks.iter().zip(&requests) {
        assert_eq!(sink.tokens(), alone(&engine, "f16", request).0);
    }
}

#[test]
fn prefixes_nobody_uses_are_forgotten_before_anybody_is_set_aside() {
    let engine = engine();
    let cap = whole_context(&engine, "int4") * 2;
    let mut scheduler = scheduler(&engine, "int4", Some(cap), SchedulerOptions::default());
    let handle = scheduler.handle();
    for i in 0..12 {
        let request = endless(prompt(i, 300), 5);
        let sink = submit(&handle, request.clone()).unwrap();
        settle(&mut scheduler);
        assert_eq!(sink.tokens(), alone(&engine, "int4", &request).0);
    }
    assert_eq!((handle.counters().finished, handle.counters().preemptions), (12, 0));
    // The newest is still there.
    let sink = submit(&handle, endless(prompt(11, 300), 5)).unwrap();
    settle(&mut scheduler);
    assert!(sink.with(|heard| heard.cached.unwrap()) > 200);
}

#[test]
fn one_that_cannot_fit_at_all_fails_alone() {
    let engine = engine();
    let cap = whole_context(&engine, "int4") / 2;
    let mut scheduler = scheduler(&engine, "int4", Some(cap), SchedulerOptions::default());
    let handle = scheduler.handle();
    let large = submit(&handle, endless(prompt(1, 460), 5)).unwrap();
    let small = submit(&handle, endless(prompt(2, 60), 5)).unwrap();
    settle(&mut scheduler);
    large.with(|heard| {
        let Some(Err(error @ JobError::Generate(GenerateError::Forward(_)))) = &heard.end else {
            panic!("{:?}", heard.end)
        };
        assert!(error.to_string().contains("KV memory is full"), "{error}");
    });
    assert_eq!(small.tokens().len(), 5);
}

#[test]
fn a_look_shows_what_is_held() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let _ear = submit(&handle, endless(prompt(1, 200), 50)).unwrap();
    scheduler.step();
    scheduler.step();
    let (sender, receiver) = mpsc::channel::<View>();
    handle.look(move |view| sender.send(view).unwrap());
    scheduler.step();
    let view = receiver.recv().unwrap();
    assert_eq!((view.sinks, view.page, view.sequences.len()), (4, 64, 1));
    let sequence = &view.sequences[0];
    assert_eq!((sequence.prompt, sequence.held, sequence.generated), (200, 201, 2));
    // Two layers, two heads of 16 channels, keys and values, 2 bytes.
    assert_eq!(sequence.f16, 201 * 2 * 2 * 2 * 16 * 2);
    assert!(sequence.footprint.bits_per_value < 8.0);
    assert_eq!(view.prefixes.tokens, 196, "the prompt is remembered up to its last whole page");
}
