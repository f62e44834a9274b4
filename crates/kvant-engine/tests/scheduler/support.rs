//! A tiny engine, jobs for it, and somebody who listens.

use kvant_cpu::LoadOptions;
use kvant_engine::scheduler::{
    Handle, Job, JobError, JobEvent, JobUsage, Listener, Logprobs, Refused, Scheduler, SchedulerOptions,
};
use kvant_engine::{Arena, Engine, Finish, KvCache, Policy, Request, SamplingParams};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub const CONTEXT: usize = 480;

pub fn engine() -> Arc<Engine> {
    let file = Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap();
    Arc::new(Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap())
}

/// The same with one token of a sequence a pass.
pub fn plain_engine() -> Arc<Engine> {
    let file = Gguf::from_bytes(crate::tiny::model_bytes(true)).unwrap();
    let engine = Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap();
    Arc::new(engine.without_speculation())
}

/// A scheduler over a cache of this kind, with at most `cap` bytes of pages.
pub fn scheduler(
    engine: &Arc<Engine>,
    policy: &str,
    cap: Option<usize>,
    options: SchedulerOptions,
) -> Scheduler {
    let arena = cap.map_or_else(Arena::new, Arena::with_cap);
    let policy: Policy = policy.parse().unwrap();
    let empty = KvCache::in_arena(policy, engine.model().slots(), CONTEXT, arena).unwrap();
    Scheduler::new(Arc::clone(engine), empty, options)
}

pub fn usual(engine: &Arc<Engine>) -> Scheduler {
    scheduler(engine, "int4", None, SchedulerOptions::default())
}

/// `count` tokens that depend on `number`; those of one number begin alike.
pub fn prompt(number: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 3 + (i * 7919 + number * 104_729) % 250).collect()
}

/// A request with penalties, cuts and a seed: everything that could go wrong.
pub fn request(prompt: Vec<u32>, seed: u64, max_tokens: usize) -> Request {
    let sampling = SamplingParams {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        frequency_penalty: 0.1,
        seed: Some(seed),
        ..SamplingParams::default()
    };
    Request { prompt, sampling, max_tokens: Some(max_tokens), ..Request::default() }
}

/// What somebody heard.
#[derive(Default)]
pub struct Heard {
    pub cached: Option<usize>,
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<Logprobs>,
    pub prompt: Vec<Logprobs>,
    pub vector: Vec<f32>,
    pub end: Option<Result<(Finish, JobUsage), JobError>>,
}

/// Somebody who listens, until they go away.
#[derive(Clone, Default)]
pub struct ChannelSink {
    heard: Arc<Mutex<Heard>>,
    gone: Arc<AtomicBool>,
}

impl ChannelSink {
    pub fn go(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub fn with<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap())
    }

    pub fn tokens(&self) -> Vec<u32> {
        self.with(|heard| heard.tokens.clone())
    }

    pub fn is_done(&self) -> bool {
        self.with(|heard| heard.end.is_some())
    }

    #[track_caller]
    pub fn finish(&self) -> Finish {
        self.with(|heard| heard.end.as_ref().expect("not over").as_ref().expect("failed").0.clone())
    }
}

impl Listener for ChannelSink {
    fn take(&mut self, event: JobEvent) {
        let mut heard = self.heard.lock().unwrap();
        assert!(heard.end.is_none(), "{event:?} after the end");
        match event {
            JobEvent::Started { cached, .. } => {
                assert!(heard.cached.replace(cached).is_none(), "started twice");
            }
            JobEvent::Prompt(scored) => heard.prompt = scored,
            JobEvent::Token { token, text, logprobs } => {
                heard.tokens.push(token);
                heard.text.push_str(&text);
                heard.logprobs.extend(logprobs);
            }
            JobEvent::Embedded(vector) | JobEvent::Scored(vector) => heard.vector = vector,
            JobEvent::Finished { text, finish, usage } => {
                heard.text.push_str(&text);
                heard.end = Some(Ok((finish, usage)));
            }
            JobEvent::Failed(error) => heard.end = Some(Err(error)),
        }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

pub fn job(request: Request, sink: &ChannelSink) -> Job {
    Job::new(request, Box::new(sink.clone()))
}

pub fn submit(handle: &Handle, request: Request) -> Result<ChannelSink, Refused> {
    let sink = ChannelSink::default();
    handle.submit(vec![job(request, &sink)]).map(|()| sink)
}

/// Steps until there is nothing to do.
pub fn settle(scheduler: &mut Scheduler) {
    while scheduler.step() {}
}

/// Tokens and text of a session of its own, without the token that ends it.
pub fn alone(engine: &Arc<Engine>, policy: &str, request: &Request) -> (Vec<u32>, String) {
    let policy: Policy = policy.parse().unwrap();
    let mut session = engine.session(policy, CONTEXT).unwrap();
    let reply = session.generate(request, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let mut tokens = reply.tokens;
    if matches!(reply.finish, Finish::EndOfText(_)) {
        tokens.pop();
    }
    (tokens, reply.text)
}
