//! What is kept on disk: used where it fits, refused where it does not, and bounded.

use kvant_cpu::LoadOptions;
use kvant_engine::Policy;
use kvant_eval::divergence::{Divergence, Mode, Models, Request, divergence};
use kvant_eval::kept::{DEFAULT_LIMIT, Kept, Key};
use kvant_eval::{PassLimits, Score, Windows};
use kvant_model::{Checkpoint, Model};
use std::fs;
use std::path::{Path, PathBuf};

const CTX: usize = 200;

fn model() -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/smollm2");
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap()
}

fn windows(chunks: usize) -> Windows {
    let ids: Vec<u32> = (0..3 * CTX as u32).map(|i| (i * i / 7 + i * 37 + 5) % 256).collect();
    Windows::of_ids(&[1], &ids, CTX, chunks, Score::All).unwrap()
}

fn key(program: u8) -> Key {
    Key { program: [program; 32], model: [7; 32], about: "a test".to_owned() }
}

/// Results, and how often the measurement said where it stood.
fn measure(
    model: &Model,
    chunks: usize,
    kv: &[&str],
    mode: Mode,
    kept: Option<&mut Kept>,
) -> (Vec<Divergence>, usize) {
    let (windows, mut steps) = (windows(chunks), 0);
    let caches: Vec<Policy> = kv.iter().map(|kv| kv.parse().unwrap()).collect();
    let models = Models { reference: model, subject: model, arithmetic: "f32" };
    let limits = PassLimits { tokens: 100, ..PassLimits::default() };
    let request = Request { models, windows: &windows, caches: &caches, mode, limits };
    let found = divergence(&request, kept, &mut |_| steps += 1).unwrap();
    (found, steps)
}

fn files(root: &Path, ending: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == ending)).collect();
    files.sort();
    files
}

#[test]
fn a_second_run_computes_only_what_is_missing() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    let mut kept = Kept::open(root.path(), &key(1), DEFAULT_LIMIT, 0).unwrap();
    let (first, _) = measure(&model, 2, &["int4"], Mode::Deployed, Some(&mut kept));
    let mut kept = Kept::open(root.path(), &key(1), DEFAULT_LIMIT, 0).unwrap();
    let (second, steps) = measure(&model, 2, &["int4"], Mode::Deployed, Some(&mut kept));
    assert!(first == second && steps == 2, "{steps}: windows that are known take no passes");
    // More windows: the two that are known, and two passes and an end of the third.
    let (more, steps) = measure(&model, 3, &["int4"], Mode::Deployed, Some(&mut kept));
    assert_eq!((more[0].tokens(), steps, files(root.path(), "kvref").len()), (3 * (CTX - 1), 5, 3));
    // Another cache, another mode: the same reference.
    measure(&model, 3, &["int4", "tq3", "int4;sinks=9"], Mode::Strict, Some(&mut kept));
    assert_eq!((files(root.path(), "kvref").len(), files(root.path(), "kvcmp").len()), (3, 12));
    assert!(kept.notes().is_empty());
}

#[test]
fn what_is_kept_changes_a_divergence_by_less_than_promised() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    let specs = ["f32", "f16", "int8", "int4", "tq2"];
    for mode in [Mode::Deployed, Mode::Strict] {
        let mut kept = Kept::open(root.path(), &key(1), DEFAULT_LIMIT, 0).unwrap();
        let (exact, _) = measure(&model, 2, &specs, mode, None);
        let (rounded, _) = measure(&model, 2, &specs, mode, Some(&mut kept));
        for ((spec, exact), rounded) in specs.iter().zip(&exact).zip(&rounded) {
            let (a, b) = (exact.kl().0, rounded.kl().0);
            assert!((a - b).abs() < 1e-8 + 1e-4 * a, "{spec}: {a} {b}");
            assert_eq!((exact.top1(), exact.estimate()), (rounded.top1(), rounded.estimate()));
            assert_eq!(exact.reference(), rounded.reference());
            assert_eq!(exact.bits_total(), rounded.bits_total());
        }
    }
}

#[test]
fn hostile_files_are_refused_and_computed_anew() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    let mut kept = Kept::open(root.path(), &key(1), DEFAULT_LIMIT, 0).unwrap();
    let (first, _) = measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
    for ending in ["kvref", "kvcmp"] {
        let path = files(root.path(), ending).remove(0);
        let good = fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        let damaged = [
            Vec::new(),
            good[..good.len() - 1].to_vec(),
            [&good[..], &[0]].concat(),
            flipped(0),
            flipped(8),
            flipped(20),
            flipped(good.len() / 2),
            flipped(good.len() - 1),
        ];
        for bytes in damaged {
            // A reference is only looked at when a result is missing.
            files(root.path(), "kvcmp").iter().for_each(|path| fs::remove_file(path).unwrap());
            fs::write(&path, &bytes).unwrap();
            let (again, _) = measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
            let notes = kept.notes();
            assert!(again == first && notes.len() == 1 && notes[0].contains("computed anew"), "{notes:?}");
            assert_eq!(fs::read(&path).unwrap(), good, "the file is good again");
        }
    }
}

#[test]
fn another_program_computes_for_itself() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    for program in [1, 2] {
        let mut kept = Kept::open(root.path(), &key(program), DEFAULT_LIMIT, 0).unwrap();
        measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
    }
    assert_eq!(files(root.path(), "kvref").len(), 2);
}

/// As when another process needed the room.
#[test]
fn a_folder_that_was_removed_meanwhile_is_made_again() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    let mut kept = Kept::open(root.path(), &key(1), DEFAULT_LIMIT, 0).unwrap();
    let folder = fs::read_dir(root.path()).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(&folder).unwrap();
    measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
    assert_eq!((files(root.path(), "kvref").len(), files(root.path(), "kvcmp").len()), (1, 1));
    // Whoever needs room has to know it as one of ours.
    assert!(kept.notes().is_empty() && folder.join("about.txt").exists());
}

#[test]
fn the_limit_is_kept_by_forgetting_what_was_unused_longest() {
    let (model, root) = (model(), tempfile::tempdir().unwrap());
    let one = Kept::reference_bytes(1, CTX - 1, model.vocabulary());
    let mut kept = Kept::open(root.path(), &key(1), 2 * one, one).unwrap();
    let (first, _) = measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
    let old = files(root.path(), "kvref").remove(0);
    fs::write(old.with_file_name("diary.txt"), "mine").unwrap();

    let mut kept = Kept::open(root.path(), &key(2), 2 * one, 2 * one).unwrap();
    assert!(!old.exists() && old.with_file_name("diary.txt").exists(), "only what is ours is removed");
    let (second, _) = measure(&model, 3, &["int4"], Mode::Deployed, Some(&mut kept));
    assert_eq!(files(root.path(), "kvref").len(), 1, "results take some of the room");
    assert_eq!(second[0].tokens(), 3 * first[0].tokens());

    // Without any room the figures are the same.
    let mut kept = Kept::open(&root.path().join("other"), &key(1), 0, one).unwrap();
    let (third, _) = measure(&model, 1, &["int4"], Mode::Deployed, Some(&mut kept));
    assert!(third == first);
}
