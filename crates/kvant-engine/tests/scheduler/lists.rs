//! A backend that sends the beginnings of rankings in place of logits: the tokens are those that all logits give.

use crate::support::{ChannelSink, job, prompt, settle, usual};
use kvant_cache::{KvSlot, Sequence, StateError};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_engine::{Engine, Policy, Request, SamplingParams};
use kvant_model::gguf::Gguf;
use kvant_model::{Backend, Checkpoint, Description, LoadError, Network, Outputs, Pass, Rows, TopTokens};
use kvant_threads::Pool;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows that came as lists, and as logits.
#[derive(Default)]
struct Sent {
    lists: AtomicUsize,
    logits: AtomicUsize,
}

/// The CPU, as a device would answer.
struct Listing(Cpu, Arc<Sent>);

struct ListingNetwork(Box<dyn Network>, Arc<Sent>);

impl Backend for Listing {
    fn name(&self) -> &str {
        "lists"
    }

    fn compile(
        &self,
        description: &Description,
        checkpoint: &Checkpoint,
    ) -> Result<Box<dyn Network>, LoadError> {
        Ok(Box::new(ListingNetwork(self.0.compile(description, checkpoint)?, Arc::clone(&self.1))))
    }
}

impl Network for ListingNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        let (wanted, accept) = (pass.wanted(), pass.accept);
        assert!(wanted.hidden.is_empty(), "no vectors are asked for here");
        let rows = self.0.forward(pass, sequences)?.into_logits();
        assert_eq!(rows.tokens(), wanted.top.len());
        let list = |row: usize| {
            let list = TopTokens::of(rows.row(row), wanted.top[row]?);
            list.filter(|list: &TopTokens| accept(wanted.numbers[row], list))
        };
        let lists: Vec<Option<TopTokens>> = (0..rows.tokens()).map(list).collect();
        let left = (0..rows.tokens()).filter(|row| lists[*row].is_none());
        let logits: Vec<f32> = left.flat_map(|row| rows.row(row).to_vec()).collect();
        self.1.logits.fetch_add(logits.len() / rows.width(), Ordering::Relaxed);
        self.1.lists.fetch_add(lists.iter().flatten().count(), Ordering::Relaxed);
        Ok(Outputs::new(Rows::from_vec(logits, rows.width()), lists))
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        self.0.output_weights(slot)
    }
}

fn engine() -> (Arc<Engine>, Arc<Sent>) {
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap());
    let sent = Arc::new(Sent::default());
    let backend = Listing(Cpu::new(LoadOptions::default()).unwrap(), Arc::clone(&sent));
    (Arc::new(Engine::load_with(Pool::new(1), &checkpoint, &backend).unwrap()), sent)
}

/// Ways to choose a token, and whether lists settle them all.
fn ways() -> Vec<(SamplingParams, bool)> {
    let base = SamplingParams { temperature: 0.8, seed: Some(11), ..SamplingParams::default() };
    vec![
        (SamplingParams::greedy(), true),
        (SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.05, ..base.clone() }, true),
        (SamplingParams { top_p: 0.2, ..base.clone() }, true),
        (SamplingParams { min_p: 0.9, ..base.clone() }, true),
        (base.clone(), false),
        (SamplingParams { top_k: 40, frequency_penalty: 0.2, ..base }, false),
    ]
}

fn request(sampling: &SamplingParams, number: u32) -> Request {
    let (prompt, sampling) = (prompt(number, 70), sampling.clone());
    Request { prompt, sampling, max_tokens: Some(12), ..Request::default() }
}

#[test]
fn lists_give_sessions_the_tokens_that_logits_give() {
    let plain = crate::support::engine();
    for (sampling, settled) in ways() {
        let (listing, sent) = engine();
        let tokens = |engine: &Arc<Engine>| {
            let mut session = engine.session("int4".parse::<Policy>().unwrap(), 200).unwrap();
            let reply = session.generate(&request(&sampling, 1), &mut |_| ControlFlow::Continue(())).unwrap();
            reply.tokens
        };
        assert_eq!(tokens(&listing), tokens(&plain), "{sampling:?}");
        let (lists, logits) = (sent.lists.load(Ordering::Relaxed), sent.logits.load(Ordering::Relaxed));
        assert_eq!(
            (lists > 0, logits == 0),
            (settled, settled),
            "{sampling:?}: {lists} lists, {logits} logits"
        );
    }
}

#[test]
fn sequences_that_need_less_run_beside_sequences_that_need_all() {
    let plain = crate::support::engine();
    let (listing, sent) = engine();
    let run = |engine: &Arc<Engine>| {
        let mut scheduler = usual(engine);
        let handle = scheduler.handle();
        let mut sinks = Vec::new();
        for (number, (sampling, _)) in (0..).zip(ways()) {
            for logprobs in [None, Some(2)] {
                let sink = ChannelSink::default();
                let mut job = job(request(&sampling, number), &sink);
                (job.logprobs, job.prompt_logprobs) = (logprobs, logprobs.is_some());
                handle.submit(vec![job]).unwrap();
                sinks.push(sink);
            }
        }
        settle(&mut scheduler);
        let heard = |sink: &ChannelSink| {
            sink.with(|heard| {
                (heard.tokens.clone(), heard.logprobs.len(), heard.prompt.len(), heard.text.clone())
            })
        };
        sinks.iter().map(heard).collect::<Vec<_>>()
    };
    let found = run(&listing);
    assert_eq!(found, run(&plain));
    assert!(found.iter().all(|(tokens, ..)| !tokens.is_empty()));
    assert!(sent.lists.load(Ordering::Relaxed) > 0 && sent.logits.load(Ordering::Relaxed) > 0);
}
