//! LoRA adapters: sequences with different ones in one batch, and caches that never mix them.

use crate::lora::adapter_bytes;
use crate::support::*;
use kvant_engine::open::LoraFile;
use kvant_engine::scheduler::{Handle, Scheduler};
use kvant_engine::{
    Adapter, AdapterMix, AppliedAdapter, DeviceChoice, OpenOptions, Request, SamplingParams, Snapshot,
};
use kvant_model::Checkpoint;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The tiny model's file, two adapters', and the adapters.
fn files() -> (tempfile::TempDir, [Arc<Adapter>; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("model.gguf"), crate::tiny::model_bytes(true)).unwrap();
    let base = Checkpoint::open(path("model.gguf")).unwrap();
    let description = kvant_model::Description::of(&base).unwrap();
    let adapters = [1, 2].map(|seed| {
        let file = path(&format!("style{seed}.gguf"));
        std::fs::write(&file, adapter_bytes(seed)).unwrap();
        Arc::new(Adapter::open(&file, &base, &description).unwrap())
    });
    (folder, adapters)
}

fn mix(adapter: &Arc<Adapter>, scale: f32) -> AdapterMix {
    AdapterMix::new([AppliedAdapter { adapter: Arc::clone(adapter), scale }])
}

fn asked(number: u32, adapters: &AdapterMix) -> Request {
    let sampling = SamplingParams { logit_bias: vec![(2, f32::NEG_INFINITY)], ..SamplingParams::greedy() };
    let adapters = Some(adapters.clone());
    Request { prompt: prompt(number, 200), sampling, max_tokens: Some(12), adapters, ..Request::default() }
}

#[test]
fn adapters_share_a_batch_and_never_a_prefix() {
    let engine = engine();
    let (_folder, [first, second]) = files();
    let mixes = [AdapterMix::default(), mix(&first, 1.0), mix(&first, 0.5), mix(&second, 1.0)];
    let expected: Vec<_> = mixes.iter().map(|mix| alone(&engine, "int4", &asked(3, mix)).0).collect();
    for (at, tokens) in expected.iter().enumerate() {
        assert!(!expected[..at].contains(tokens), "each adapter says something else");
    }
    let mut scheduler = usual(&engine);
    let handle = scheduler.handle();
    let ask = |scheduler: &mut Scheduler, handle: &Handle| {
        let sinks: Vec<ChannelSink> =
            mixes.iter().map(|mix| submit(handle, asked(3, mix)).unwrap()).collect();
        scheduler.step();
        assert_eq!(handle.counters().running, mixes.len(), "nobody waits for what another reads");
        settle(scheduler);
        let found: Vec<_> = sinks.iter().map(ChannelSink::tokens).collect();
        assert_eq!(found, expected);
        sinks.iter().map(|sink| sink.with(|heard| heard.cached.unwrap())).collect::<Vec<_>>()
    };
    // The same prompt is found by those who run with the same, and with the same bits.
    assert_eq!(ask(&mut scheduler, &handle), [0; 4]);
    let found = ask(&mut scheduler, &handle);
    assert!(found.iter().all(|&cached| cached >= 128 && cached == found[0]), "{found:?}");
    // One more adapter finds nothing.
    let late = submit(&handle, asked(3, &mix(&second, 0.5))).unwrap();
    settle(&mut scheduler);
    assert_eq!(late.with(|heard| heard.cached), Some(0));
}

#[test]
fn a_session_keeps_to_its_adapters_and_so_does_its_file() {
    let (folder, [first, second]) = files();
    let path = |name: &str| folder.path().join(name);
    let usual = OpenOptions { device: DeviceChoice::Cpu, ..OpenOptions::default() };
    let lora = vec![LoraFile { name: None, path: path("style1.gguf"), scale: 0.5 }];
    let opened = OpenOptions { lora, ..usual.clone() }.open(path("model.gguf")).unwrap();
    let plain = usual.open(path("model.gguf")).unwrap();
    assert_eq!(opened.engine().adapters(), &mix(&first, 0.5));
    let quiet = &mut |_: kvant_engine::Event<'_>| ControlFlow::Continue(());
    let request = Request { adapters: None, ..asked(5, &AdapterMix::default()) };

    let mut session = opened.session().unwrap();
    let reply = session.generate(&request, quiet).unwrap();
    let bare = plain.session().unwrap().generate(&request, quiet).unwrap();
    assert_ne!(reply.tokens, bare.tokens);
    // Nothing that was read with one adapter is left for another, nor for none.
    let other = session.generate(&asked(5, &mix(&second, 1.0)), quiet).unwrap();
    assert_eq!((other.stats.reused, session.adapters()), (0, &mix(&second, 1.0)));
    let none = session.generate(&asked(5, &AdapterMix::default()), quiet).unwrap();
    assert_eq!((none.stats.reused, none.tokens), (0, bare.tokens));
    let again = session.generate(&asked(5, &mix(&first, 0.5)), quiet).unwrap();
    assert_eq!((again.stats.reused, &again.tokens), (0, &reply.tokens));

    let (file, signature) = (path("talk.kvant"), opened.signature().unwrap());
    session.save(&file, signature, b"").unwrap();
    let saved = Snapshot::open(&file).unwrap();
    assert!(saved.policy().ends_with(", read with LoRA style1:0.5"), "{}", saved.policy());
    let mut resumed = opened.session().unwrap();
    resumed.resume(&saved, &signature).unwrap();
    assert_eq!(resumed.tokens(), session.tokens());
    for adapters in [AdapterMix::default(), mix(&first, 1.0), mix(&second, 0.5)] {
        let mut session = plain.session().unwrap();
        session.set_adapters(adapters).unwrap();
        let refused = session.resume(&saved, &signature).unwrap_err().to_string();
        assert!(refused.contains("read with LoRA style1:0.5"), "{refused}");
        assert!(session.tokens().is_empty());
    }
    // And the other way round.
    let mut session = plain.session().unwrap();
    session.generate(&request, quiet).unwrap();
    session.save(&file, signature, b"").unwrap();
    let refused = opened.session().unwrap().resume(&Snapshot::open(&file).unwrap(), &signature);
    assert!(refused.is_err());
}

#[test]
fn adapters_that_cannot_be_opened_are_named() {
    let (folder, _) = files();
    let open = |file: &str| {
        let lora = vec![LoraFile { name: None, path: folder.path().join(file), scale: 1.0 }];
        let options = OpenOptions { device: DeviceChoice::Cpu, lora, ..OpenOptions::default() };
        options.open(folder.path().join("model.gguf")).map(drop).unwrap_err().to_string()
    };
    let missing = open("none.gguf");
    assert!(missing.contains("none.gguf") && missing.contains("cannot open the adapter"), "{missing}");
    assert!(open("model.gguf").contains("is not a LoRA adapter"));
}
