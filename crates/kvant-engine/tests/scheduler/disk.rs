//! Prefixes that outlive the scheduler.

use crate::support::*;
use kvant_engine::scheduler::{Handle, Scheduler, SchedulerOptions};
use kvant_engine::{DiskTier, Engine, KvCache, Policy, Request, kv};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::{NamedTempFile, TempDir};
use tracing_subscriber::filter::LevelFilter;

const LIMIT: u64 = 1 << 30;

/// The warnings that were logged.
struct Complaints(NamedTempFile);

impl Complaints {
    fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.0).unwrap().lines().map(str::to_owned).collect()
    }
}

/// A scheduler with a folder.
fn with_folder(
    engine: &Arc<Engine>,
    policy: &str,
    cap: Option<usize>,
    folder: &Path,
) -> (Scheduler, Complaints) {
    let scheduler = scheduler(engine, policy, cap, SchedulerOptions::default());
    let policy: Policy = policy.parse().unwrap();
    let layout = KvCache::new(&policy, engine.model().slots(), CONTEXT).unwrap();
    let layout = Arc::clone(layout.sequence().layout());
    let tier = DiskTier::open(folder, LIMIT, layout, [7; 32], [1; 32], &policy.to_string()).unwrap();
    let complaints = Complaints(NamedTempFile::new().unwrap());
    let log = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(Arc::new(complaints.0.reopen().unwrap()));
    let scheduler = tracing::subscriber::with_default(log.finish(), || scheduler.with_disk(tier));
    (scheduler.unwrap(), complaints)
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().filter(|item| item.as_ref().unwrap().file_name().len() > 60).count()
}

/// Submits, steps until it is done, and returns the tokens and how many were found.
#[track_caller]
fn ask(scheduler: &mut Scheduler, handle: &Handle, request: &Request) -> (Vec<u32>, usize) {
    let sink = submit(handle, request.clone()).unwrap();
    settle(scheduler);
    assert!(sink.is_done());
    sink.with(|heard| (heard.tokens.clone(), heard.cached.unwrap()))
}

/// Steps until everything that is remembered is written.
#[track_caller]
fn written(scheduler: &mut Scheduler, handle: &Handle, count: u64) {
    let start = Instant::now();
    while handle.counters().disk.unwrap().written < count {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", handle.counters());
        std::thread::sleep(Duration::from_millis(1));
        scheduler.step();
    }
}

#[test]
fn a_seed_gives_the_same_tokens_after_a_restart() {
    let engine = engine();
    for policy in ["int4", "f16", "k=ch4:p128,v=rot4g32;recent=70;sinks=1"] {
        let folder = TempDir::new().unwrap();
        let requests: Vec<Request> =
            (0..6).map(|i| request(prompt(i % 3, 130 + 45 * i as usize), u64::from(i), 20)).collect();
        let expected: Vec<_> = requests.iter().map(|request| alone(&engine, policy, request).0).collect();
        {
            let (mut scheduler, complaints) = with_folder(&engine, policy, None, folder.path());
            let handle = scheduler.handle();
            for (request, expected) in requests.iter().zip(&expected) {
                assert_eq!(&ask(&mut scheduler, &handle, request).0, expected, "{policy}");
                let (tokens, cached) = ask(&mut scheduler, &handle, request);
                assert_eq!(&tokens, expected, "{policy}, after a hit in memory");
                assert!(cached > 0 || policy.contains("recent"), "{policy}");
            }
            drop(scheduler);
            assert!(complaints.lines().is_empty());
        }
        let (mut scheduler, complaints) = with_folder(&engine, policy, None, folder.path());
        let handle = scheduler.handle();
        // All at once: one waits for what is being loaded for another.
        let sinks: Vec<ChannelSink> =
            requests.iter().map(|request| submit(&handle, request.clone()).unwrap()).collect();
        settle(&mut scheduler);
        for (sink, expected) in sinks.iter().zip(&expected) {
            assert_eq!(&sink.tokens(), expected, "{policy}");
            // Recent rows that are encoded by now cannot be gone back to.
            assert!(sink.with(|heard| heard.cached > Some(0)) || policy.contains("recent"), "{policy}");
        }
        let counters = handle.counters();
        assert!(counters.disk.unwrap().loaded_tokens > 0 && complaints.lines().is_empty());
        assert_eq!((counters.failed, counters.finished), (0, 6));
    }
}

#[test]
fn what_is_in_memory_is_not_loaded_and_what_is_on_disk_is_not_written() {
    let (engine, folder) = (engine(), TempDir::new().unwrap());
    let (mut scheduler, _) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    // 4 sinks and 4 pages of 64.
    let long = request(prompt(1, 260), 1, 2);
    assert_eq!(ask(&mut scheduler, &handle, &long).1, 0);
    written(&mut scheduler, &handle, 4);
    assert_eq!(ask(&mut scheduler, &handle, &long).1, 196);
    drop(scheduler);
    assert_eq!(files(folder.path()), 4);

    let (mut scheduler, _) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    let short = request(prompt(1, 150), 1, 2);
    assert_eq!(ask(&mut scheduler, &handle, &short).1, 132);
    assert_eq!(handle.counters().disk.unwrap().loaded_tokens, 132);
    assert_eq!(ask(&mut scheduler, &handle, &request(prompt(1, 300), 1, 2)).1, 260);
    let disk = handle.counters().disk.unwrap();
    assert_eq!((disk.loaded_tokens, disk.files, disk.written, disk.refused), (260, 4, 0, 0));
    assert_eq!(ask(&mut scheduler, &handle, &long).1, 196);
    assert_eq!(handle.counters().disk.unwrap().loaded_tokens, 260);
}

#[test]
fn what_memory_forgets_is_loaded_again_within_the_cap() {
    let (engine, folder) = (engine(), TempDir::new().unwrap());
    let policy: Policy = "int4".parse().unwrap();
    let cap = 2 * kv::memory(&policy, engine.model().slots(), CONTEXT).unwrap();
    let (mut scheduler, complaints) = with_folder(&engine, "int4", Some(cap), folder.path());
    let handle = scheduler.handle();
    let requests: Vec<Request> = (0..12).map(|i| request(prompt(i, 300), 3, 4)).collect();
    for round in 0..2 {
        for (number, request) in requests.iter().enumerate() {
            let (tokens, cached) = ask(&mut scheduler, &handle, request);
            assert_eq!(tokens, alone(&engine, "int4", request).0, "{number}, round {round}");
            assert_eq!(cached, if round == 0 { 0 } else { 260 }, "{number}, round {round}");
            written(&mut scheduler, &handle, 4 * (number as u64 + 1).max(12 * round));
        }
    }
    let disk = handle.counters().disk.unwrap();
    assert!(disk.loaded_tokens >= 6 * 260 && disk.files == 48, "{disk:?}");
    assert_eq!((handle.counters().failed, handle.counters().preemptions), (0, 0));
    assert!(complaints.lines().is_empty());
}

#[test]
fn trouble_with_files_is_told_once_and_fails_nobody() {
    let (engine, folder) = (engine(), TempDir::new().unwrap());
    let requests: Vec<Request> = (0..4).map(|i| request(prompt(i, 200), 3, 4)).collect();
    let (mut scheduler, _) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    ask(&mut scheduler, &handle, &requests[0]);
    drop(scheduler);
    let (mut scheduler, complaints) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    drop(folder);
    for request in &requests {
        assert_eq!(ask(&mut scheduler, &handle, request).0, alone(&engine, "int4", request).0);
    }
    drop(scheduler);
    let complaints = complaints.lines();
    let about = |words: &str| complaints.iter().filter(|said| said.contains(words)).count();
    // A file that is gone is no trouble: another server may have removed it.
    assert_eq!((about("prefixes are not written"), complaints.len()), (1, 1));
}

#[test]
fn a_scheduler_that_is_told_to_stop_writes_what_it_has_read() {
    let (engine, folder) = (engine(), TempDir::new().unwrap());
    let (scheduler, _) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    let sinks: Vec<ChannelSink> =
        (0..8).map(|i| submit(&handle, request(prompt(i, 260), 1, 3)).unwrap()).collect();
    let worker = std::thread::spawn(move || scheduler.run());
    handle.stop(Instant::now() + Duration::from_secs(60));
    worker.join().unwrap();
    assert!(sinks.iter().all(ChannelSink::is_done));
    assert_eq!(files(folder.path()), 8 * 4);
    // And one that waits for files is not forgotten.
    let (scheduler, _) = with_folder(&engine, "int4", None, folder.path());
    let handle = scheduler.handle();
    let sink = submit(&handle, request(prompt(3, 300), 1, 3)).unwrap();
    handle.stop(Instant::now() + Duration::from_secs(60));
    scheduler.run();
    assert!(sink.is_done() && sink.with(|heard| heard.cached) == Some(260));
}

/// What proposals are looked up in outlives the scheduler too, and a damaged file is as good as none.
#[test]
fn answers_for_proposals_are_there_after_a_restart() {
    let (engine, folder) = (engine(), TempDir::new().unwrap());
    let path = || {
        let mut items = std::fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().path());
        items.find(|path| path.extension().is_some_and(|end| end == "answers")).expect("a file of answers")
    };
    let length_after = |number: u32| {
        let (mut scheduler, complaints) = with_folder(&engine, "int4", None, folder.path());
        let handle = scheduler.handle();
        ask(&mut scheduler, &handle, &request(prompt(number, 40), 1, 12));
        drop(scheduler);
        assert!(complaints.lines().is_empty());
        std::fs::metadata(path()).unwrap().len()
    };
    let one = length_after(1);
    let two = length_after(2);
    assert!(two > one, "{two} bytes after {one}: the first answer was not taken up");
    let mut bytes = std::fs::read(path()).unwrap();
    bytes[50] ^= 1;
    std::fs::write(path(), bytes).unwrap();
    assert!(length_after(3) < two, "what was damaged was taken up");
}
