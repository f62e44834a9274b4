//! A model opened as `kvant run` opens it.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_engine::open::plan_path;
use kvant_engine::{
    DeviceChoice, KvChoice, OpenError, OpenNote, OpenOptions, Plan, Policy, Request, SamplingParams,
    StateType,
};
use kvant_model::Checkpoint;
use kvant_model::config::RopeOverride;
use std::ops::ControlFlow;
use std::path::PathBuf;

fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, tiny::model_bytes(true)).unwrap();
    (folder, path)
}

/// Options that say the same on a machine with a card.
fn on_cpu() -> OpenOptions {
    OpenOptions { device: DeviceChoice::Cpu, ..OpenOptions::default() }
}

#[test]
fn what_nobody_asked_for_is_decided() {
    let (_folder, path) = model();
    let opened = on_cpu().open(&path).unwrap();
    assert_eq!((opened.policy().to_string().as_str(), opened.context()), ("int4", 512));
    assert_eq!(opened.notes(), []);
    assert!(opened.engine().judge().is_none(), "its vocabulary has no ChatML");
    let mut session = opened.session().unwrap();
    assert_eq!(session.context(), 512);
    let request = Request {
        prompt: opened.engine().text_prompt("hello").unwrap(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(4),
        ..Request::default()
    };
    let reply = session.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(!reply.tokens.is_empty());
    // All sequences of a scheduler together may hold one context at least.
    let cap = opened.shared_cache().unwrap().sequence().store().cap().unwrap();
    assert!(cap >= kvant_engine::kv::memory(opened.policy(), opened.engine().model().slots(), 512).unwrap());
}

#[test]
fn what_is_asked_for_counts_and_is_part_of_the_signature() {
    let (_folder, path) = model();
    let policy: Policy = "int8".parse().unwrap();
    let options = OpenOptions {
        kv: Some(policy.into()),
        window: Some(100),
        sinks: Some(2),
        kv_memory: Some(1 << 20),
        ..on_cpu()
    };
    let opened = options.open(&path).unwrap();
    let rule = &opened.policy().rule;
    assert_eq!((rule.streaming, rule.sinks, opened.context()), (Some(100), 2, usize::MAX));
    assert_eq!(opened.session().unwrap().kv().sequence().store().cap(), Some(1 << 20));
    let narrow = OpenOptions { state: Some(StateType::Bf16), ..options.clone() }.open(&path).unwrap();
    let other = OpenOptions { window: Some(101), ..options }.open(&path).unwrap();
    assert_ne!(opened.signature().unwrap(), other.signature().unwrap());
    assert_eq!((opened.policy().state, narrow.policy().state), (StateType::F32, StateType::Bf16));
    assert_ne!(opened.signature().unwrap(), narrow.signature().unwrap());
}

#[test]
fn other_rotary_settings_are_another_model_with_the_bits_of_a_file_that_says_the_same() {
    let (_folder, path) = model();
    let opened = |base| {
        let rope = RopeOverride { base, ..RopeOverride::default() };
        OpenOptions { rope, ..on_cpu() }.open(&path).unwrap()
    };
    let logits = |opened: &kvant_engine::LoadedModel| {
        let prompt = opened.engine().text_prompt("hello there").unwrap();
        opened.session().unwrap().prefill(&prompt).unwrap().to_vec()
    };
    // The base that the file has.
    let [own, same, other] = [None, Some(1e6), Some(500.0)].map(opened);
    assert_eq!(logits(&own), logits(&same));
    assert_ne!(logits(&own), logits(&other));
    assert_ne!(own.signature().unwrap(), other.signature().unwrap());
    assert_eq!(own.notes(), []);
    let [OpenNote::Rope { settings, has_others: false }] = other.notes() else {
        panic!("{:?}", other.notes());
    };
    assert_eq!(settings, "base 500");
}

/// A session that outgrows its context goes on as one that had the room from the beginning.
#[test]
fn a_session_grows_and_holds_what_it_held() {
    let (_folder, path) = model();
    let open = |context| OpenOptions { context: Some(context), ..on_cpu() }.open(&path).unwrap();
    let request = |opened: &kvant_engine::LoadedModel, more: &[u32], max_tokens| Request {
        prompt: [opened.engine().text_prompt("hello there").unwrap(), more.to_vec()].concat(),
        sampling: SamplingParams::greedy(),
        max_tokens,
        ..Request::default()
    };
    let (large, mut small) = (open(300), open(140));
    let all = |_: kvant_engine::Event<'_>| ControlFlow::Continue(());
    let whole = large.session().unwrap().generate(&request(&large, &[], Some(250)), &mut { all }).unwrap();
    let mut session = small.session().unwrap();
    let first = session.generate(&request(&small, &[], None), &mut { all }).unwrap();
    assert_eq!(first.finish, kvant_engine::Finish::ContextFull);
    let held = session.tokens().len();
    assert!(
        small.grow(&mut session, usize::MAX >> 8).is_err() && session.context() == 140,
        "no machine has as much"
    );
    small.grow(&mut session, 300).unwrap();
    assert_eq!((session.context(), session.tokens().len(), small.context()), (300, held, 300));
    let rest = 250 - first.tokens.len();
    let second = session.generate(&request(&small, &first.tokens, Some(rest)), &mut { all }).unwrap();
    assert!(second.stats.reused + 1 >= held, "{:?}", second.stats);
    assert_eq!([first.tokens, second.tokens].concat(), whole.tokens);

    // A window has no end, and its sessions are others.
    let before = small.signature().unwrap();
    let mut window = small.stream(64, session.kv().footprint().bytes()).unwrap();
    assert_eq!((window.context(), small.policy().rule.streaming), (usize::MAX, Some(64)));
    assert_ne!(small.signature().unwrap(), before);
    window.generate(&request(&small, &[], Some(400)), &mut { all }).unwrap();
}

#[test]
fn a_plan_beside_the_model_decides_and_says_so() {
    let (folder, path) = model();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let auto = OpenOptions { kv: Some(KvChoice::Auto), ..on_cpu() };
    let opened = auto.open(&path).unwrap();
    let [OpenNote::Cache { policy, reason }] = opened.notes() else {
        panic!("one note, about the cache: {:?}", opened.notes())
    };
    assert_eq!((policy.as_str(), reason.contains("family")), ("int4", true));

    let place = plan_path(&checkpoint);
    assert_eq!(place, folder.path().join("model.kvplan"));
    let missing = OpenOptions { kv: Some(KvChoice::Plan(place.clone())), ..on_cpu() };
    assert!(matches!(missing.open(&path), Err(OpenError::Plan(_))));
    let plan = |signature| Plan::new(signature, "k8v4".parse().unwrap(), "by a test", Vec::new()).unwrap();
    plan(checkpoint.signature().0).save(&place).unwrap();
    let opened = on_cpu().open(&path).unwrap();
    assert_eq!(opened.policy().to_string(), "k8v4");
    assert!(opened.notes()[0].to_string().contains("made by a test"), "{:?}", opened.notes());
    // One that was made for another model is refused, not passed over.
    plan([7; 32]).save(&place).unwrap();
    let error = on_cpu().open(&path).map(drop).unwrap_err().to_string();
    assert!(error.contains("model.kvplan"), "{error}");
}
