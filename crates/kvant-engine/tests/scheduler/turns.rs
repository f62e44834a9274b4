//! Who is served when.

use crate::support::*;
use kvant_engine::scheduler::{Refused, SchedulerOptions};
use kvant_engine::{Request, SampleError, SamplingParams};

#[test]
fn reading_a_long_prompt_does_not_keep_answers_waiting() {
    let engine = plain_engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let talkers: Vec<ChannelSink> =
        (0..3).map(|i| submit(&handle, endless(prompt(i, 20), 200)).unwrap()).collect();
    (0..8).for_each(|_| assert!(scheduler.step()));
    let reader = submit(&handle, endless(prompt(7, 450), 5)).unwrap();
    let mut passes = 0;
    while reader.tokens().is_empty() {
        let before: Vec<usize> = talkers.iter().map(|sink| sink.tokens().len()).collect();
        assert!(scheduler.step());
        for (sink, before) in talkers.iter().zip(before) {
            assert_eq!(sink.tokens().len(), before + 1, "every pass brings everybody a token");
        }
        passes += 1;
    }
    assert!(passes > 1, "the prompt was read in chunks");
}

/// A request that nothing but its length ends: the ending token is forbidden.
fn endless(prompt: Vec<u32>, tokens: usize) -> Request {
    let sampling = SamplingParams { logit_bias: vec![(2, f32::NEG_INFINITY)], ..SamplingParams::greedy() };
    Request { prompt, sampling, max_tokens: Some(tokens), ..Request::default() }
}

#[test]
fn a_short_prompt_overtakes_a_long_one_that_came_first() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let talker = submit(&handle, endless(prompt(0, 10), 300)).unwrap();
    (0..4).for_each(|_| assert!(scheduler.step()));
    let long = submit(&handle, endless(prompt(1, 470), 2)).unwrap();
    let short = submit(&handle, endless(prompt(2, 12), 2)).unwrap();
    while short.tokens().is_empty() {
        assert!(scheduler.step());
    }
    assert!(long.tokens().is_empty() && !talker.is_done());
}

#[test]
fn the_queue_is_bounded_and_says_so() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 2, most_waiting: 3, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let sinks: Vec<_> = (0..2).map(|i| submit(&handle, endless(prompt(i, 9), 6)).unwrap()).collect();
    scheduler.step();
    let waiting: Vec<_> = (0..3).map(|i| submit(&handle, endless(prompt(i, 9), 6)).unwrap()).collect();
    let refused = submit(&handle, endless(prompt(1, 9), 6)).err().unwrap();
    assert_eq!(refused, Refused::Busy { waiting: 3 });
    scheduler.step();
    let counters = handle.counters();
    assert_eq!((counters.running, counters.waiting, counters.refused), (2, 3, 1));
    settle(&mut scheduler);
    assert!(sinks.iter().chain(&waiting).all(ChannelSink::is_done));
    assert_eq!(handle.counters().finished, 5);
}

#[test]
fn what_can_never_be_done_is_refused_at_the_door() {
    let engine = engine();
    let scheduler = usual(&engine);
    let handle = scheduler.handle();
    let refusal = |request: Request| submit(&handle, request).err().unwrap();
    assert_eq!(refusal(endless(Vec::new(), 1)), Refused::EmptyPrompt);
    let long = refusal(endless(prompt(0, CONTEXT + 1), 1));
    assert_eq!(long, Refused::PromptTooLong { prompt: CONTEXT + 1, context: CONTEXT });
    let unknown = refusal(endless(vec![5, 256], 1));
    assert_eq!(unknown, Refused::UnknownToken { id: 256, vocabulary: 256 });
    let mut bad = endless(vec![5], 1);
    bad.sampling.temperature = -1.0;
    assert!(matches!(refusal(bad.clone()), Refused::Sampling(SampleError::BadSetting { .. })));
    bad.sampling = SamplingParams { logit_bias: vec![(999, 1.0)], ..SamplingParams::greedy() };
    assert!(matches!(refusal(bad), Refused::Sampling(SampleError::BiasOutside { token: 999, .. })));
    assert_eq!(handle.counters().accepted, 0);
}

#[test]
fn an_owner_with_many_jobs_does_not_keep_another_waiting() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 1, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let many: Vec<ChannelSink> = (0..6).map(|i| submit(&handle, endless(prompt(i, 9), 2)).unwrap()).collect();
    let sink = ChannelSink::default();
    let mut other = job(endless(prompt(1, 9), 2), &sink);
    other.owner = 1;
    handle.submit(vec![other]).unwrap();
    while !sink.is_done() {
        assert!(scheduler.step());
    }
    assert!(many.iter().filter(|sink| sink.is_done()).count() <= 1);
}

/// Several answers to one prompt, or an agent that sends one prompt to many: it is read once.
#[test]
fn jobs_with_one_long_beginning_read_it_once() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let sinks: Vec<ChannelSink> = (0..8).map(|_| ChannelSink::default()).collect();
    let jobs = sinks.iter().map(|sink| job(endless(prompt(3, 400), 4), sink)).collect();
    handle.submit(jobs).unwrap();
    settle(&mut scheduler);
    let cached: Vec<usize> = sinks.iter().map(|sink| sink.with(|heard| heard.cached.unwrap())).collect();
    assert_eq!(cached, [0, 388, 388, 388, 388, 388, 388, 388]);
    assert!(sinks.iter().all(|sink| sink.tokens() == sinks[0].tokens()));
}

#[test]
fn an_idle_scheduler_takes_as_many_jobs_as_it_has_slots_and_places_in_the_queue() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 16, most_waiting: 64, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let ask = |number: u32| submit(&handle, endless(prompt(number, 4), 3));
    let sinks: Vec<ChannelSink> = (0..80).map(|number| ask(number).expect("there is room")).collect();
    assert_eq!(ask(80).err(), Some(Refused::Busy { waiting: 80 }));
    // Slots that are taken are no room any more, also before the first pass is over.
    assert!(scheduler.step());
    assert_eq!(ask(81).err(), Some(Refused::Busy { waiting: 64 }));
    settle(&mut scheduler);
    assert!(sinks.iter().all(ChannelSink::is_done));
    assert!(ask(82).is_ok());
}
