//! Runs of `kvant_eval::speed` on a tiny model. What it measures is not asserted, only that it measures.

use kvant_cpu::LoadOptions;
use kvant_engine::memory::Memory;
use kvant_eval::EvalError;
use kvant_eval::speed::{Plan, Step, Test, measure};
use kvant_model::{Checkpoint, Model};
use std::path::Path;

fn load(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name);
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap()
}

fn plan() -> Plan {
    Plan {
        prefill: 20,
        decode: 3,
        depths: vec![0, 33],
        kv: vec!["f16".parse().unwrap(), "f32".parse().unwrap()],
        threads: vec![1, 2],
        repetitions: 2,
        fill: false,
    }
}

#[test]
fn every_combination_is_measured_in_turn() {
    let mut stages = Vec::new();
    let timings = measure(&load("llama"), &plan(), &mut |stage| stages.push(stage)).unwrap();
    assert_eq!(timings.len(), 2 * 2 * 2 * 2);
    assert!(timings.iter().all(|timing| timing.seconds.len() == 2 && timing.best() > 0.0));
    for (i, a) in timings.iter().enumerate() {
        assert!(timings[..i].iter().all(|b| b.case != a.case));
    }
    let tokens = |test| timings.iter().find(|timing| timing.case.test == test).unwrap().case.tokens;
    assert_eq!((tokens(Test::Prefill), tokens(Test::Decode)), (20, 3));
    // Four contexts, then all cases once, then all of them again.
    let (contexts, runs) = stages.split_at(4);
    assert!(contexts.iter().all(|stage| matches!(stage.now, Step::Context { .. })));
    let names = |from: usize| runs[from..][..16].iter().map(|stage| stage.now.clone()).collect::<Vec<_>>();
    assert_eq!((runs.len(), names(0)), (32, names(16)));
    assert!(stages.iter().enumerate().all(|(i, stage)| stage.done == i && stage.total == 36));
}

#[test]
fn filled_contexts_measure_generation_alone() {
    let timings = measure(&load("llama"), &Plan { fill: true, ..plan() }, &mut |_| ()).unwrap();
    assert_eq!(timings.len(), 2 * 2 * 2);
    assert!(timings.iter().all(|timing| timing.case.test == Test::Decode));
}

#[test]
fn zero_tokens_leave_a_test_out_and_both_leave_nothing() {
    let prefill = measure(&load("llama"), &Plan { decode: 0, ..plan() }, &mut |_| ()).unwrap();
    assert!(prefill.iter().all(|timing| timing.case.test == Test::Prefill));
    for nothing in [
        Plan { prefill: 0, decode: 0, ..plan() },
        Plan { decode: 0, fill: true, ..plan() },
        Plan { repetitions: 0, ..plan() },
        Plan { depths: Vec::new(), ..plan() },
    ] {
        let refused = measure(&load("llama"), &nothing, &mut |_| ()).unwrap_err();
        assert!(matches!(refused, EvalError::NothingToTime), "{refused}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_runs() {
    let mut ran = false;
    let mut refusal = |model: &str, plan: Plan| {
        let refused = measure(&load(model), &plan, &mut |_| ran = true).unwrap_err();
        assert!(!ran, "{refused}");
        refused
    };
    let learned = load("gpt2").position_limit().unwrap();
    let refused = refusal("gpt2", Plan { depths: vec![0, learned], ..plan() });
    assert!(matches!(refused, EvalError::TooDeep { limit, .. } if limit == learned), "{refused}");
    // Where the system says how much memory there is.
    if Memory::read().is_some() {
        let refused = refusal("llama", Plan { depths: vec![usize::MAX], ..plan() });
        assert!(matches!(refused, EvalError::TooLarge { .. }), "{refused}");
    }
    let refused = refusal("llama", Plan { kv: vec!["klt".parse().unwrap()], ..plan() });
    assert!(matches!(refused, EvalError::Kv(_)) && refused.to_string().contains("klt"), "{refused}");
}
