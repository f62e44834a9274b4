//! The engine inside another program: sessions that move between threads, steps one by one, engines side by side.

use kvant_engine::{Engine, LoadOptions, Policy, Request, Sampler, SamplingParams, Session};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_threads::Pool;
use std::ops::ControlFlow;
use std::sync::Arc;

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

fn engine(threads: usize) -> Arc<Engine> {
    let file = Gguf::from_bytes(tiny::model_bytes(true)).unwrap();
    Arc::new(
        Engine::load_on(Pool::new(threads), &Checkpoint::from_gguf(file), LoadOptions::default()).unwrap(),
    )
}

fn session(engine: &Arc<Engine>) -> Session {
    engine.session("int4".parse::<Policy>().unwrap(), 400).unwrap()
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..150).map(|i| (i * 7 + seed * 13) % 250).collect()
}

/// Greedy tokens by prefill, sampling and steps as separate calls.
fn by_steps(mut session: Session, prompt: &[u32], count: usize) -> (Vec<u32>, Session) {
    let mut sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    let mut found = vec![sampler.sample(session.prefill(prompt).unwrap()).unwrap()];
    while found.len() < count {
        found.push(sampler.sample(session.step(found[found.len() - 1]).unwrap()).unwrap());
    }
    (found, session)
}

fn by_generate(mut session: Session, prompt: &[u32], count: usize) -> Vec<u32> {
    let request = Request {
        prompt: prompt.to_vec(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(count),
        ..Request::default()
    };
    session.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap().tokens
}

#[test]
fn sessions_move_between_threads_and_engines_run_side_by_side() {
    fn is_mobile<T: Send + 'static>() {}
    is_mobile::<Session>();
    let engines = [engine(1), engine(3)];
    let alone: Vec<Vec<u32>> =
        (0..2).map(|seed| by_steps(session(&engines[0]), &prompt(seed), 12).0).collect();
    let together: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let run = |(engine, seed): (&Arc<Engine>, u32)| {
            let session = session(engine);
            scope.spawn(move || by_steps(session, &prompt(seed), 12).0)
        };
        let running: Vec<_> = engines.iter().zip(0..2).map(run).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn steps_say_what_generate_says_and_forks_and_rollbacks_change_no_bit() {
    let engine = engine(2);
    let prompt = prompt(3);
    let (tokens, mut stepped) = by_steps(session(&engine), &prompt, 10);
    let generated = by_generate(session(&engine), &prompt, 10);
    assert_eq!(tokens[..generated.len()], generated);

    let after: Vec<u32> = stepped.logits().iter().map(|z| z.to_bits()).collect();
    assert_eq!(after.len(), engine.model().vocabulary());
    let mut fork = stepped.fork().unwrap();
    let held = fork.tokens().to_vec();
    // A few tokens back, and the same ones again.
    let left = fork.rollback(held.len() - 3);
    assert!(left <= held.len() - 3 && left + 64 >= held.len() - 3 && fork.logits().is_empty(), "{left}");
    for &token in &held[left..] {
        fork.step(token).unwrap();
    }
    assert!(fork.logits().iter().map(|z| z.to_bits()).eq(after.iter().copied()));
    // The one it was forked from has not noticed.
    assert_eq!(stepped.tokens(), held);
    assert!(
        stepped.step(5).unwrap().iter().zip(fork.step(5).unwrap()).all(|(a, b)| a.to_bits() == b.to_bits())
    );
    // A step that cannot be made leaves everything as it was.
    let count = stepped.tokens().len();
    assert!(stepped.step(u32::MAX).is_err() && stepped.tokens().len() == count);
}
