//! The matrix of ways to one answer: threads × speculation × (chunks × resume, for a session; batch × little memory, for the
//! scheduler). All of them give the tokens, logits and probabilities of one thread that reads one sequence, a token a pass.
//!
//! Requests are drawn from a seed. Each meets eight ways, and six of them all 48.

use crate::support::*;
use kvant_codec::split_mix;
use kvant_cpu::LoadOptions;
use kvant_engine::scheduler::{Logprobs, SchedulerOptions};
use kvant_engine::{Engine, Policy, Request, SamplingParams, Snapshot, kv};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_threads::Pool;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const THREADS: [usize; 3] = [1, 2, 3];
const POLICIES: [&str; 3] = ["int4", "f16", "k=ch4:p128,v=rot4g32;recent=70;sinks=1"];
/// What the sequence of a request is saved under.
const SIGNATURE: [u8; 32] = [7; 32];

/// One way through the matrix.
#[derive(Clone, Copy, Debug)]
struct Way {
    threads: usize,
    speculates: bool,
    road: Road,
}

#[derive(Clone, Copy, Debug)]
enum Road {
    /// A session that reads its prompt in chunks of any length, and is saved and resumed by another one between them.
    Session { in_chunks: bool, is_resumed: bool },
    /// A scheduler with neighbours, of which one begins alike, and memory for one sequence and a third.
    Scheduler { has_neighbours: bool, has_little_memory: bool },
}

fn ways() -> Vec<Way> {
    let sides = [(false, false), (false, true), (true, false), (true, true)];
    let sessions = sides.map(|(in_chunks, is_resumed)| Road::Session { in_chunks, is_resumed });
    let schedulers = sides
        .map(|(has_neighbours, has_little_memory)| Road::Scheduler { has_neighbours, has_little_memory });
    let roads = sessions.into_iter().chain(schedulers);
    let with =
        |road| THREADS.map(|threads| [false, true].map(|speculates| Way { threads, speculates, road }));
    roads.flat_map(with).flatten().collect()
}

fn engine_on(threads: usize, speculates: bool) -> Arc<Engine> {
    let file = Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap();
    let (pool, options) = (Pool::new(threads), LoadOptions::default());
    let engine = Engine::load_on(pool, &Checkpoint::from_gguf(file), options).unwrap();
    Arc::new(if speculates { engine } else { engine.without_speculation() })
}

/// Random numbers of a seed.
struct Dice(Box<dyn Iterator<Item = u64>>);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next().unwrap() >> 20) as usize % end
    }

    /// A request that does not end by itself; of few different tokens, so that proposals are made.
    fn request(&mut self, longest: usize, max_tokens: usize) -> Request {
        let kinds = [2, 5, 250][self.below(3)];
        let prompt = (0..20 + self.below(longest - 20)).map(|_| 3 + self.below(kinds) as u32).collect();
        let sampling = SamplingParams {
            temperature: [0.0, 0.3, 1.0][self.below(3)],
            top_p: 0.95,
            frequency_penalty: [0.0, 0.1][self.below(2)],
            logit_bias: vec![(2, f32::NEG_INFINITY)],
            seed: Some(self.below(1000) as u64),
            ..SamplingParams::default()
        };
        Request { prompt, sampling, max_tokens: Some(max_tokens), ..Request::default() }
    }
}

/// Tokens and text of a session, and the bits of the logits after the last token.
type Said = (Vec<u32>, String, Vec<u32>);

/// What a session says, and how many tokens were guessed right.
fn by_session(
    engine: &Arc<Engine>,
    policy: &Policy,
    request: &Request,
    chunks: &[usize],
    saved: Option<&Path>,
) -> (Said, u64) {
    let mut session = engine.session(policy, CONTEXT).unwrap();
    for &end in chunks {
        session.prefill(&request.prompt[..end]).unwrap();
        if let Some(path) = saved {
            session.save(path, SIGNATURE, b"").unwrap();
            session = engine.session(policy, CONTEXT).unwrap();
            session.resume(&Snapshot::open(path).unwrap(), &SIGNATURE).unwrap();
        }
    }
    let reply = session.generate(request, &mut |_| ControlFlow::Continue(())).unwrap();
    let logits = session.logits().iter().map(|logit| logit.to_bits()).collect();
    ((reply.tokens, reply.text, logits), reply.stats.speculation.accepted as u64)
}

/// Tokens, text and probabilities of a job among others; how often one of them was preempted, and how many tokens were guessed right.
fn by_scheduler(
    engine: &Arc<Engine>,
    policy: &str,
    cap: Option<usize>,
    request: &Request,
    neighbours: &[Request],
) -> ((Vec<u32>, String, Vec<Logprobs>), [u64; 2]) {
    let mut scheduler = scheduler(engine, policy, cap, SchedulerOptions::default());
    let handle = scheduler.handle();
    for neighbour in neighbours {
        submit(&handle, neighbour.clone()).unwrap();
        scheduler.step();
    }
    let sink = ChannelSink::default();
    let mut own = job(request.clone(), &sink);
    own.logprobs = Some(3);
    handle.submit(vec![own]).unwrap();
    settle(&mut scheduler);
    let heard = sink.with(|heard| (heard.tokens.clone(), heard.text.clone(), heard.logprobs.clone()));
    let counters = handle.counters();
    (heard, [counters.preemptions, counters.accepted_tokens])
}

#[test]
fn threads_chunks_batch_resume_preemption_and_speculation_change_no_bit() {
    let mut dice = Dice(Box::new(split_mix(39)));
    let folder = tempfile::tempdir().unwrap();
    let engines = THREADS.map(|threads| [false, true].map(|speculates| engine_on(threads, speculates)));
    let (mut ways, mut preemptions, mut guessed) = (ways(), 0, [0, 0]);
    for case in 0..6 {
        let text = POLICIES[case % POLICIES.len()];
        let policy: Policy = text.parse().unwrap();
        let request = dice.request(180, 260);
        let plain = &engines[0][0];
        let (said, _) = by_session(plain, &policy, &request, &[], None);
        let (heard, _) = by_scheduler(plain, text, None, &request, &[]);
        assert_eq!((&said.0, &said.1), (&heard.0, &heard.1), "case {case}");
        assert_eq!(said.0.len(), 260);
        for _ in 0..8 {
            let way = ways.swap_remove(dice.below(ways.len()));
            let engine = &engines[way.threads - 1][usize::from(way.speculates)];
            let what = format!("case {case}: {text}, {way:?}");
            match way.road {
                Road::Session { in_chunks, is_resumed } => {
                    let count = if in_chunks { 1 + dice.below(4) } else { usize::from(is_resumed) };
                    let mut chunks: Vec<usize> =
                        (0..count).map(|_| 1 + dice.below(request.prompt.len())).collect();
                    chunks.sort_unstable();
                    let path = folder.path().join("saved");
                    let saved = is_resumed.then_some(path.as_path());
                    let (found, accepted) = by_session(engine, &policy, &request, &chunks, saved);
                    guessed[usize::from(way.speculates)] += accepted;
                    assert!(found == said, "{what}, chunks to {chunks:?}");
                }
                Road::Scheduler { has_neighbours, has_little_memory } => {
                    let mut neighbours = Vec::new();
                    if has_neighbours {
                        neighbours.extend((0..2).map(|_| dice.request(40, 330)));
                        neighbours.push(Request { max_tokens: Some(20), ..request.clone() });
                    }
                    let whole = kv::memory(policy.clone(), engine.model().slots(), CONTEXT).unwrap();
                    let cap = has_little_memory.then_some(whole * 4 / 3);
                    let (found, [preempted, accepted]) =
                        by_scheduler(engine, text, cap, &request, &neighbours);
                    assert!(found == heard, "{what}");
                    preemptions += preempted;
                    guessed[usize::from(way.speculates)] += accepted;
                }
            }
        }
    }
    assert!(ways.is_empty() && preemptions > 0, "{preemptions} preemptions");
    assert!(
        guessed[0] == 0 && guessed[1] > 0,
        "tokens guessed right, without and with speculation: {guessed:?}"
    );
}
