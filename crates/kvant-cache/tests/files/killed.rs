//! A writer that is killed loses nothing that was saved.

use crate::talk::{NUMERICS, SIGNATURE, Talk};
use kvant_cache::Snapshot;
use kvant_cache::snapshot::Record;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const FILE: &str = "KVANT_TEST_SAVE_TO";

fn save(path: &Path, talk: &Talk, tokens: usize) {
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let record = Record { signature: SIGNATURE, numerics: NUMERICS, policy: "int4", tokens: &ids, note: b"" };
    talk.of(tokens).save(path, &record).unwrap();
}

/// Not a test of its own: saves over and over when [`a_killed_writer_loses_nothing`] runs it in another process.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let talk = Talk::usual("int4", None);
    loop {
        for tokens in [300, 200, 250] {
            save(Path::new(&path), &talk, tokens);
        }
    }
}

/// This test program, through the emulator that runs it if one does.
fn this_program() -> Command {
    let program = std::env::current_exe().unwrap();
    let runner = std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().filter(|_| cfg!(target_arch = "aarch64"));
    match words.next() {
        Some(emulator) => {
            let mut command = Command::new(emulator);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    }
}

#[test]
fn a_killed_writer_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("talk.kvant");
    let talk = Talk::usual("int4", None);
    save(&path, &talk, 100);
    for turn in 0..6 {
        let mut child = this_program()
            .args(["--exact", "killed::saves_until_it_is_killed"])
            .env(FILE, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20 + 17 * turn));
        child.kill().unwrap();
        child.wait().unwrap();
        let held = Snapshot::open(&path).unwrap().tokens().len();
        assert!([100, 300, 200, 250].contains(&held), "{held}");
    }
    // The next writer clears away what the killed ones have left.
    save(&path, &talk, 100);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
