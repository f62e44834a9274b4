//! A model file that shrinks while it is mapped: an error, not the end of the process.
#![cfg(unix)]

use kvant_cpu::LoadOptions;
use kvant_model::gguf::{Writer, WriterValue};
use kvant_model::{Checkpoint, Tensor};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

/// Names the file in the child process.
const FILE: &str = "KVANT_TEST_TRUNCATED";

fn write_model(path: &Path) {
    let mut writer = Writer::new("llama");
    writer.set("llama.block_count", WriterValue::U32(1));
    for name in ["first", "last"] {
        writer.tensor(Tensor::from_f32(name, vec![512, 1024], &vec![1.0; 512 * 1024]).unwrap());
    }
    std::fs::write(path, writer.to_bytes().unwrap()).unwrap();
}

/// Runs in a process of its own, which a signal would end; does nothing in the usual run of the tests.
#[test]
fn child_reads_what_is_gone() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let path = Path::new(&path);
    let checkpoint = Checkpoint::open(path).unwrap();
    assert!(checkpoint.intact().is_ok());
    OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    let read = || checkpoint.tensor("last").unwrap().to_f32().unwrap();
    std::thread::scope(|scope| {
        for thread in (0..4).map(|_| scope.spawn(read)).collect::<Vec<_>>() {
            assert!(thread.join().unwrap().iter().all(|value| *value == 0.0), "what is gone reads as zeros");
        }
    });
    let error = checkpoint.intact().unwrap_err().to_string();
    assert!(error.contains("truncated") && error.contains("fetch it again"), "{error}");
    assert!(kvant_cpu::load(&checkpoint, LoadOptions::default()).is_err());
}

#[test]
fn a_model_truncated_while_mapped_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&path);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_reads_what_is_gone", "--nocapture"])
        .env(FILE, &path)
        .output()
        .unwrap();
    assert!(child.status.success(), "{:?}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
}
