//! What a job gets does not depend on who else is there, nor on what was there before.

use crate::support::*;
use kvant_engine::scheduler::{Pooling, SchedulerOptions, Score};
use kvant_engine::{Constraint, ConstraintError, Engine, KvCache, Policy};
use kvant_model::{Chunk, Pass, Rows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

const POLICIES: [&str; 3] = ["int4", "f16", "k=ch4:p128,v=rot4g32;recent=70;sinks=1"];

#[test]
fn a_seed_gives_the_same_tokens_alone_among_sixteen_and_after_a_hit() {
    let engine = engine();
    for policy in POLICIES {
        let requests: Vec<_> = (0..17u32)
            .map(|i| request(prompt(i % 5, 30 + 25 * i as usize % 300), u64::from(i), 20 + i as usize % 7))
            .collect();
        let expected: Vec<_> = requests.iter().map(|request| alone(&engine, policy, request)).collect();
        assert!(expected.iter().any(|(tokens, _)| tokens.len() >= 20), "the texts are long enough to tell");

        let mut scheduler = scheduler(&engine, policy, None, SchedulerOptions::default());
        let handle = scheduler.handle();
        for round in ["at first", "after hits"] {
            let mut sinks = Vec::new();
            for request in &requests {
                sinks.push(submit(&handle, request.clone()).unwrap());
                // Some join while others are under way.
                scheduler.step();
            }
            settle(&mut scheduler);
            for (number, (sink, (tokens, text))) in sinks.iter().zip(&expected).enumerate() {
                sink.with(|heard| {
                    assert_eq!(&heard.tokens, tokens, "{policy}, job {number} {round}");
                    assert_eq!(&heard.text, text, "{policy}, job {number} {round}");
                });
            }
        }
        let counters = handle.counters();
        assert!(counters.cached_tokens > counters.prompt_tokens / 8, "{policy}: {counters:?}");
    }
}

#[test]
fn a_hit_is_counted_and_leaves_the_last_token_to_read() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    // 4 sinks and 3 pages of 64: the last one ends with the prompt.
    let whole = request(prompt(1, 196), 1, 3);
    let cached: Vec<usize> = [&whole, &whole, &request(prompt(1, 300), 1, 3), &request(prompt(2, 300), 1, 3)]
        .map(|request| {
            let sink = submit(&handle, request.clone()).unwrap();
            settle(&mut scheduler);
            sink.with(|heard| {
                let usage = heard.end.as_ref().unwrap().as_ref().unwrap().1;
                assert_eq!((Some(usage.cached), usage.prompt), (heard.cached, request.prompt.len()));
                usage.cached
            })
        })
        .to_vec();
    assert_eq!(cached, [0, 132, 196, 0]);
}

#[test]
fn a_conversation_goes_on_from_what_was_said() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let first = request(prompt(1, 100), 5, 150);
    let sink = submit(&handle, first.clone()).unwrap();
    settle(&mut scheduler);
    let mut tokens = [first.prompt, sink.tokens()].concat();
    let said = tokens.len();
    tokens.extend(prompt(9, 30));
    let second = request(tokens, 6, 10);
    let sink = submit(&handle, second.clone()).unwrap();
    settle(&mut scheduler);
    assert!(sink.with(|heard| heard.cached.unwrap()) >= said - 64);
    assert_eq!(sink.tokens(), alone(&engine, "int4", &second).0);
}

#[test]
fn probabilities_are_the_same_alone_and_in_company() {
    let engine = engine();
    let listen = |company: usize| {
        let mut scheduler = usual(&engine);
        let sink = ChannelSink::default();
        let mut jobs = vec![job(request(prompt(0, 90), 3, 12), &sink)];
        jobs[0].logprobs = Some(5);
        jobs.extend(
            (0..company as u32).map(|i| job(request(prompt(i, 120), 4, 12), &ChannelSink::default())),
        );
        scheduler.handle().submit(jobs).unwrap();
        settle(&mut scheduler);
        sink.with(|heard| heard.logprobs.clone())
    };
    let quiet = listen(0);
    assert!(!quiet.is_empty() && quiet.iter().all(|found| found.top.len() == 5 && found.chosen <= 0.0));
    assert_eq!(quiet, listen(7));
}

/// Tokens of one parity by turns, and an error after some.
struct ByTurns(u32);

impl Constraint for ByTurns {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let forbidden = logits.iter_mut().enumerate().filter(|(id, _)| *id as u32 % 2 != self.0 % 2);
        forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        if self.0 < 9 { Ok(()) } else { Err(ConstraintError("enough".into())) }
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(token % 2, self.0 % 2);
        self.0 += 1;
        Ok(())
    }
}

#[test]
fn a_constraint_decides_what_may_come_and_fails_its_own_job_only() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let sinks = [ChannelSink::default(), ChannelSink::default(), ChannelSink::default()];
    let mut jobs: Vec<_> = sinks.iter().map(|sink| job(request(prompt(1, 70), 3, 8), sink)).collect();
    jobs[0].constraint = Some(Box::new(ByTurns(0)));
    jobs[1].constraint = Some(Box::new(ByTurns(5)));
    scheduler.handle().submit(jobs).unwrap();
    settle(&mut scheduler);
    let parities: Vec<u32> = sinks[0].tokens().iter().map(|token| token % 2).collect();
    assert!(parities.len() > 1 && parities.iter().zip([0, 1].iter().cycle()).all(|(a, b)| a == b));
    let ended = sinks[1].with(|heard| match heard.end.as_ref().unwrap() {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    });
    assert_eq!(ended.as_deref(), Some("the text cannot be kept to the format asked for: enough"));
    assert_eq!(sinks[2].tokens(), alone(&engine, "int4", &request(prompt(1, 70), 3, 8)).0);
}

/// What may come after the first token is known once somebody says so.
struct Slow {
    inner: ByTurns,
    is_known: Arc<AtomicBool>,
}

impl Constraint for Slow {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.inner.allow(logits)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.inner.accept(token)
    }

    fn poll_ready(&mut self, waker: &Waker) -> bool {
        let is_ready = self.inner.0 != 1 || self.is_known.load(Ordering::Relaxed);
        // Whoever waits looks again at once: nothing here tells it later.
        waker.wake_by_ref();
        is_ready
    }
}

#[test]
fn a_slow_mask_keeps_no_neighbour_waiting_and_changes_no_token() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let is_known = Arc::new(AtomicBool::new(false));
    let sinks = [ChannelSink::default(), ChannelSink::default(), ChannelSink::default()];
    let mut jobs: Vec<_> = sinks.iter().map(|sink| job(request(prompt(1, 70), 3, 8), sink)).collect();
    jobs[0].constraint = Some(Box::new(Slow { inner: ByTurns(0), is_known: Arc::clone(&is_known) }));
    jobs[1].constraint = Some(Box::new(ByTurns(0)));
    scheduler.handle().submit(jobs).unwrap();
    while !(sinks[1].is_done() && sinks[2].is_done()) {
        assert!(scheduler.step());
    }
    assert_eq!((sinks[0].is_done(), sinks[0].tokens().len()), (false, 1), "it waits for what may come");
    is_known.store(true, Ordering::Relaxed);
    settle(&mut scheduler);
    assert_eq!(sinks[0].tokens(), sinks[1].tokens());
    assert_eq!(sinks[2].tokens(), alone(&engine, "int4", &request(prompt(1, 70), 3, 8)).0);
}

/// The normed output of the last layer, `(tokens, hidden)`, in one pass.
fn hidden(engine: &Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let policy: Policy = "int4".parse().unwrap();
    let mut kv = KvCache::new(policy, engine.model().slots(), CONTEXT).unwrap();
    let mut last = Vec::new();
    let chunk = Chunk::new(tokens, 0..0);
    let mut keep =
        |_: usize, rows: &Rows| last = rows.data().chunks(rows.width()).map(<[f32]>::to_vec).collect();
    engine.model().forward(Pass::new(&[chunk]).observed(&mut keep), &mut [kv.sequence_mut()]).unwrap();
    last
}

#[test]
fn vectors_are_those_of_the_last_layer_whoever_else_is_there() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let prompt = prompt(4, 300);
    for round in 0..2 {
        // In company, and after the prompt has been remembered.
        let talker = submit(&handle, request(crate::support::prompt(1, 40), 1, 30)).unwrap();
        let sinks = [ChannelSink::default(), ChannelSink::default()];
        let mut jobs: Vec<_> = sinks.iter().map(|sink| job(request(prompt.clone(), 0, 9), sink)).collect();
        jobs[0].embed = Some(Pooling::Mean);
        jobs[1].embed = Some(Pooling::Last);
        handle.submit(jobs).unwrap();
        settle(&mut scheduler);
        let rows = hidden(&engine, &prompt);
        let mean: Vec<f32> = (0..rows[0].len()).map(|c| rows.iter().map(|row| row[c]).sum()).collect();
        for (sink, expected) in sinks.iter().zip([&mean, &rows[299]]) {
            let length = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
            sink.with(|heard| {
                assert_eq!((heard.vector.len(), heard.tokens.len()), (expected.len(), 0));
                let far = heard.vector.iter().zip(expected).map(|(a, b)| (a - b / length).abs());
                assert!(far.fold(0.0, f32::max) < 1e-5, "round {round}");
            });
        }
        assert!(talker.is_done());
    }
}

#[test]
fn the_logits_that_a_judge_wants_are_those_of_a_session_whoever_else_is_there() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let prompt = prompt(6, 200);
    let mut session = engine.session("int4".parse::<Policy>().unwrap(), CONTEXT).unwrap();
    let logits = session.prefill(&prompt).unwrap().to_vec();
    for round in 0..2 {
        let talker = submit(&handle, request(crate::support::prompt(1, 40), 1, 30)).unwrap();
        let sink = ChannelSink::default();
        let mut one = job(request(prompt.clone(), 0, 9), &sink);
        one.score = Some(Score::Tokens(vec![7, 200]));
        handle.submit(vec![one]).unwrap();
        settle(&mut scheduler);
        sink.with(|heard| {
            assert_eq!((&heard.vector, heard.tokens.len()), (&vec![logits[7], logits[200]], 0))
        });
        assert_eq!(
            sink.with(|heard| heard.cached.unwrap() > 0),
            round > 0,
            "what it has read is found again"
        );
        assert!(talker.is_done());
    }
    let mut wrong = job(request(prompt, 0, 9), &ChannelSink::default());
    wrong.score = Some(Score::Tokens(vec![100_000]));
    assert!(handle.submit(vec![wrong]).unwrap_err().to_string().contains("token id 100000"));
}

#[test]
fn the_tokens_of_a_prompt_are_scored_alike_in_any_company_and_after_a_hit() {
    let engine = engine();
    let long = prompt(3, 200);
    let score = |scheduler: &mut kvant_engine::scheduler::Scheduler, company: usize| {
        let sink = ChannelSink::default();
        let mut jobs = vec![job(request(long.clone(), 3, 0), &sink)];
        (jobs[0].logprobs, jobs[0].prompt_logprobs) = (Some(2), true);
        jobs.extend(
            (0..company as u32).map(|i| job(request(prompt(i, 120), 4, 12), &ChannelSink::default())),
        );
        scheduler.handle().submit(jobs).unwrap();
        settle(scheduler);
        assert_eq!(sink.with(|heard| heard.cached), Some(0));
        sink.with(|heard| heard.prompt.clone())
    };
    let mut alone = usual(&engine);
    let scores = score(&mut alone, 0);
    assert_eq!(scores.len(), long.len() - 1);
    assert_eq!(scores, score(&mut alone, 0), "what was read before is read again");
    assert_eq!(scores, score(&mut usual(&engine), 5));
    // The naive way: what comes after each beginning of the prompt.
    for position in [1, 63, 64, 150, 199] {
        let sink = ChannelSink::default();
        let mut one = job(request(long[..position].to_vec(), 1, 1), &sink);
        one.logprobs = Some(engine.model().vocabulary());
        let mut scheduler = usual(&engine);
        scheduler.handle().submit(vec![one]).unwrap();
        settle(&mut scheduler);
        let found = sink.with(|heard| heard.logprobs.clone());
        if let Some(found) = found.first() {
            let expected = found.top.iter().find(|(id, _)| *id == long[position]).unwrap().1;
            assert_eq!(scores[position - 1].chosen, expected, "position {position}");
        }
    }
}

#[test]
fn a_job_may_do_without_what_others_have_read() {
    let engine = engine();
    let mut scheduler = usual(&engine);
    for (cache_prompt, expects_hit) in [(true, false), (false, false), (true, true)] {
        let sink = ChannelSink::default();
        let mut one = job(request(prompt(1, 200), 5, 8), &sink);
        one.cache_prompt = cache_prompt;
        scheduler.handle().submit(vec![one]).unwrap();
        settle(&mut scheduler);
        assert_eq!(sink.with(|heard| heard.cached.unwrap()) > 0, expects_hit);
        assert_eq!(sink.tokens(), alone(&engine, "int4", &request(prompt(1, 200), 5, 8)).0);
    }
}
