//! How jobs end.

use crate::support::*;
use kvant_engine::scheduler::{JobError, JobEvent, Listener, Refused, SchedulerOptions};
use kvant_engine::{Finish, Request, SamplingParams};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn greedy(prompt: Vec<u32>, tokens: Option<usize>) -> Request {
    let sampling = SamplingParams { logit_bias: vec![(2, f32::NEG_INFINITY)], ..SamplingParams::greedy() };
    Request { prompt, sampling, max_tokens: tokens, ..Request::default() }
}

#[test]
fn a_text_ends_where_it_should() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let (_, text) = alone(&engine, "int4", &greedy(prompt(1, 20), Some(40)));
    let letters: Vec<char> = text.chars().collect();
    let stop: String = letters[10..13].iter().collect();
    let before = &text[..text.find(&stop).unwrap()];

    let stopped = Request { stop: vec![stop.clone()], ..greedy(prompt(1, 20), Some(40)) };
    let stopped = submit(&handle, stopped).unwrap();
    let nothing = submit(&handle, greedy(prompt(1, 20), Some(0))).unwrap();
    let full = submit(&handle, greedy(prompt(1, CONTEXT - 3), None)).unwrap();
    let exact = submit(&handle, greedy(prompt(1, CONTEXT), None)).unwrap();
    let mut ending = greedy(prompt(1, 20), None);
    ending.sampling.logit_bias = vec![(2, 1e6)];
    let ended = submit(&handle, ending).unwrap();
    settle(&mut scheduler);

    assert_eq!(stopped.finish(), Finish::Stop(stop));
    stopped.with(|heard| assert_eq!(heard.text, before));
    assert_eq!((nothing.finish(), nothing.tokens().len()), (Finish::MaxTokens, 0));
    assert_eq!((full.finish(), full.tokens().len()), (Finish::ContextFull, 4));
    assert_eq!((exact.finish(), exact.tokens().len()), (Finish::ContextFull, 1));
    assert_eq!((ended.finish(), ended.tokens().len()), (Finish::EndOfText(2), 0));
    assert_eq!(full.tokens(), alone(&engine, "int4", &greedy(prompt(1, CONTEXT - 3), None)).0);
}

#[test]
fn who_goes_away_is_forgotten_before_the_next_pass() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 2, remember: false, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let sinks: Vec<ChannelSink> =
        (0..3).map(|i| submit(&handle, greedy(prompt(i, 300), None)).unwrap()).collect();
    scheduler.step();
    // One that is being read, and one that waits.
    sinks[0].go();
    sinks[2].go();
    scheduler.step();
    let counters = handle.counters();
    assert_eq!((counters.cancelled, counters.running, counters.waiting), (2, 1, 0));
    assert!(!sinks[0].is_done() && !sinks[2].is_done(), "nobody is told who does not listen");
    sinks[1].go();
    assert!(!scheduler.step());
    let (sender, receiver) = mpsc::channel();
    handle.look(move |view| sender.send(view).unwrap());
    scheduler.step();
    let view = receiver.recv().unwrap();
    assert_eq!((view.arena.pages, view.sequences.len()), (0, 0), "all pages are given back");
}

#[test]
fn time_limits_hold_in_the_queue_and_at_work() {
    let engine = engine();
    let options = SchedulerOptions { most_running: 1, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(&engine, "int4", None, options);
    let handle = scheduler.handle();
    let sinks = [ChannelSink::default(), ChannelSink::default(), ChannelSink::default()];
    let mut jobs: Vec<_> = sinks.iter().map(|sink| job(greedy(prompt(1, 30), Some(4)), sink)).collect();
    jobs[0].deadline = Some(Instant::now() + Duration::from_secs(3600));
    jobs[1].deadline = Some(Instant::now());
    handle.submit(jobs).unwrap();
    settle(&mut scheduler);
    assert_eq!((sinks[0].finish(), sinks[2].finish()), (Finish::MaxTokens, Finish::MaxTokens));
    sinks[1].with(|heard| assert!(matches!(heard.end, Some(Err(JobError::Deadline)))));
    assert_eq!(handle.counters().failed, 1);
}

/// Sends what it hears, and is gone when nobody receives.
struct Wire(mpsc::Sender<JobEvent>);

impl Listener for Wire {
    fn take(&mut self, event: JobEvent) {
        let _ = self.0.send(event);
    }

    fn is_gone(&self) -> bool {
        false
    }
}

#[test]
fn a_scheduler_on_its_own_thread_finishes_what_it_took_and_then_ends() {
    let engine = engine();
    let scheduler = usual(&engine);
    let handle = scheduler.handle();
    let worker = std::thread::spawn(move || scheduler.run());
    let (sender, receiver) = mpsc::channel();
    let mut wired = job(greedy(prompt(1, 30), Some(5)), &ChannelSink::default());
    wired.listener = Box::new(Wire(sender));
    handle.submit(vec![wired]).unwrap();
    handle.stop(Instant::now() + Duration::from_secs(600));
    worker.join().unwrap();
    let heard: Vec<JobEvent> = receiver.iter().collect();
    assert!(matches!(heard.last(), Some(JobEvent::Finished { finish: Finish::MaxTokens, .. })), "{heard:?}");
    assert!(!handle.is_alive());
    assert_eq!(submit(&handle, greedy(prompt(1, 5), None)).err(), Some(Refused::Stopping));
}

#[test]
fn an_impatient_stop_ends_everybody() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let sink = submit(&handle, greedy(prompt(1, 30), None)).unwrap();
    scheduler.step();
    handle.stop(Instant::now());
    assert!(!scheduler.step());
    sink.with(|heard| assert!(matches!(heard.end, Some(Err(JobError::Stopped)))));
}
