//! Several owners on one scheduler: nobody learns what another asked, and nobody keeps another waiting.

use crate::support::*;
use kvant_engine::scheduler::{Handle, Refused, Scheduler, SchedulerOptions, View, Viewer};
use kvant_engine::{Policy, Request, SamplingParams, Tenant, kv};
use std::sync::mpsc::channel;

/// A request that nothing but its length ends.
fn endless(prompt: Vec<u32>, tokens: usize) -> Request {
    let sampling = SamplingParams { logit_bias: vec![(2, f32::NEG_INFINITY)], ..SamplingParams::greedy() };
    Request { prompt, sampling, max_tokens: Some(tokens), ..Request::default() }
}

fn tenant(owner: u64) -> Tenant {
    Tenant::of(&owner.to_le_bytes())
}

fn submit_as(handle: &Handle, owner: u64, request: Request) -> Result<ChannelSink, Refused> {
    let sink = ChannelSink::default();
    let mut job = job(request, &sink);
    (job.owner, job.tenant) = (owner, tenant(owner));
    handle.submit(vec![job]).map(|()| sink)
}

fn cached(sink: &ChannelSink) -> usize {
    sink.with(|heard| heard.cached.unwrap())
}

fn view(scheduler: &mut Scheduler, viewer: Option<u64>) -> View {
    let (sender, receiver) = channel();
    let look = move |view| sender.send(view).unwrap();
    match viewer {
        Some(owner) => scheduler.handle().look_as(Viewer { owner, tenant: tenant(owner) }, look),
        None => scheduler.handle().look(look),
    }
    scheduler.step();
    receiver.recv().unwrap()
}

#[test]
fn one_owner_does_not_learn_what_another_asked() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let ask = |scheduler: &mut Scheduler, owner: u64| {
        let sink = submit_as(&handle, owner, endless(prompt(3, 400), 4)).unwrap();
        settle(scheduler);
        (cached(&sink), sink.tokens())
    };
    let (first, tokens) = ask(&mut scheduler, 1);
    assert_eq!((first, ask(&mut scheduler, 2)), (0, (0, tokens.clone())));
    assert_eq!((ask(&mut scheduler, 1), ask(&mut scheduler, 2)), ((388, tokens.clone()), (388, tokens)));
    // Nor while it is being read: the other would wait for it.
    let sinks = [5, 6].map(|owner| submit_as(&handle, owner, endless(prompt(4, 400), 4)).unwrap());
    scheduler.step();
    assert_eq!(handle.counters().running, 2);
    settle(&mut scheduler);
    assert_eq!(sinks.map(|sink| cached(&sink)), [0, 0]);
}

#[test]
fn owners_see_their_own_part_of_the_cache() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let sinks = [1, 2].map(|owner| submit_as(&handle, owner, endless(prompt(3, 200), 60)).unwrap());
    while sinks.iter().any(|sink| sink.tokens().is_empty()) {
        assert!(scheduler.step());
    }
    let [one, two, other] = [1, 2, 3].map(|owner| view(&mut scheduler, Some(owner)));
    let all = view(&mut scheduler, None);
    for own in [&one, &two] {
        assert_eq!((own.sequences.len(), own.prefixes.tokens), (1, all.prefixes.tokens / 2));
    }
    assert_ne!(one.sequences[0].owner, two.sequences[0].owner);
    assert_eq!((other.sequences.len(), other.prefixes.prefixes, other.generated_tokens), (0, 0, 0));
    assert_eq!(all.sequences.len(), 2);
    settle(&mut scheduler);
    assert!(sinks.iter().all(ChannelSink::is_done));
    assert_eq!(view(&mut scheduler, Some(1)).generated_tokens, 60);
    assert_eq!(view(&mut scheduler, None).generated_tokens, 120);
}

#[test]
fn endless_streams_of_one_owner_do_not_starve_another() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 4, most_waiting: 2, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let many: Vec<ChannelSink> =
        (0..6).map(|number| submit_as(&handle, 1, endless(prompt(number, 20), 300)).unwrap()).collect();
    (0..10).for_each(|_| assert!(scheduler.step()));
    assert!(matches!(submit_as(&handle, 1, endless(prompt(9, 20), 3)), Err(Refused::Busy { waiting: 2 })));
    // The queue is full of the first owner's jobs, and all slots are theirs.
    let other: Vec<ChannelSink> = (20..23)
        .map(|number| {
            let sink = submit_as(&handle, 2, endless(prompt(number, 20), 30)).unwrap();
            assert!(scheduler.step());
            sink
        })
        .collect();
    while !other.iter().all(ChannelSink::is_done) {
        assert!(scheduler.step());
    }
    assert!(many.iter().all(|sink| !sink.is_done()));
    assert_eq!(handle.counters().preemptions, 2, "two give way, and nobody more often than needed");
    settle(&mut scheduler);
    for (number, sink) in (0..).zip(&many) {
        assert_eq!(sink.tokens(), alone(&engine, "int4", &endless(prompt(number, 20), 300)).0, "{number}");
    }
}

#[test]
fn the_memory_of_one_owner_does_not_starve_another() {
    let engine = engine();
    let policy: Policy = "int4".parse().unwrap();
    let cap = 3 * kv::memory(policy, engine.model().slots(), CONTEXT).unwrap();
    let options = SchedulerOptions { most_running: 4, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", Some(cap), options);
    let handle = scheduler.handle();
    let many: Vec<ChannelSink> =
        (0..3).map(|number| submit_as(&handle, 1, endless(prompt(number, 300), 150)).unwrap()).collect();
    (0..10).for_each(|_| assert!(scheduler.step()));
    let other = submit_as(&handle, 2, endless(prompt(9, 300), 5)).unwrap();
    while !other.is_done() {
        assert!(scheduler.step());
    }
    assert!(many.iter().any(|sink| !sink.is_done()));
    settle(&mut scheduler);
    assert!(many.iter().all(ChannelSink::is_done));
}
