//! Pulling models from a hub double: redirects, ranges, refusals, broken connections, damaged bytes.

use crate::http_double::{Double, Reply, Request};
use kvant_hub::{Hub, HubError, HubErrorKind, ModelName, Options, Patience, Progress};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Large enough that the client reads it in several pieces.
fn weights() -> Vec<u8> {
    (0..600_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn options(cache: &Path, endpoint: &str) -> Options {
    Options {
        cache: cache.to_path_buf(),
        endpoint: endpoint.to_owned(),
        token: None,
        python: "no-python-in-this-test".into(),
        certificates: None,
        timeout: Patience {
            attempts: 3,
            pause: Duration::ZERO,
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(20),
        },
    }
}

/// The hub's answer about a repository with these files, the first of which is large.
fn listing(files: &[(&str, &[u8])]) -> Reply {
    let siblings: Vec<String> = files
        .iter()
        .enumerate()
        .map(|(i, (name, body))| {
            let lfs =
                if i == 0 { format!(r#","lfs":{{"sha256":"{}"}}"#, sha256(body)) } else { String::new() };
            format!(r#"{{"rfilename":"{name}","size":{}{lfs}}}"#, body.len())
        })
        .collect();
    Reply::ok(format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(",")))
}

fn is_api(request: &Request) -> bool {
    request.path.starts_with("/api/models/org/repo/revision/main")
}

/// A hub with one GGUF file, whose bytes are answered by `file` with the number of the request.
fn one_file(file: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Double {
    let count = AtomicUsize::new(0);
    Double::start(move |request| {
        if is_api(request) {
            return listing(&[("m.gguf", &weights())]);
        }
        assert_eq!(request.path, format!("/org/repo/resolve/{COMMIT}/m.gguf"));
        file(request, count.fetch_add(1, Ordering::SeqCst))
    })
}

fn pull(options: &Options) -> Result<PathBuf, HubError> {
    Hub::new(options.clone()).pull(&ModelName::parse("org/repo").unwrap(), &mut |_| {})
}

fn parts_in(cache: &Path) -> Vec<PathBuf> {
    let folder = cache.join("models/org--repo");
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "part")).collect()
}

#[test]
fn a_pulled_model_is_checked_listed_and_found_again_without_the_network() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, _| Reply::ranged(request, &weights()));
    let options = options(cache.path(), &double.url());
    let hub = Hub::new(options.clone());
    let name = ModelName::parse("org/repo").unwrap();
    assert_eq!(hub.find(&name), None);
    assert_eq!(hub.models().unwrap(), []);
    let mut last = None;
    let path = hub
        .pull(&name, &mut |progress| {
            if let Progress::File { done, total, .. } = progress {
                last = Some((done, total));
            }
        })
        .unwrap();
    let size = weights().len() as u64;
    assert_eq!(last, Some((size, Some(size))));
    assert_eq!(std::fs::read(&path).unwrap(), weights());
    assert_eq!(parts_in(cache.path()), [] as [PathBuf; 0]);
    let seen = double.requests().len();
    assert_eq!(hub.pull(&name, &mut |_| {}).unwrap(), path);
    assert_eq!(hub.find(&ModelName::parse("org/repo:m.gguf").unwrap()), Some(path.clone()));
    assert_eq!(double.requests().len(), seen);
    let models = hub.models().unwrap();
    assert_eq!((models.len(), models[0].name.as_str(), models[0].bytes), (1, "org/repo:m.gguf", size));
    // A file that lost bytes since is not complete any more.
    std::fs::write(&path, b"short").unwrap();
    assert_eq!(hub.find(&name), None);
    assert_eq!(std::fs::read(pull(&options).unwrap()).unwrap(), weights());
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_where_it_redirects() {
    let cache = tempfile::tempdir().unwrap();
    let cdn = Double::start(|request| Reply::ranged(request, &weights()));
    let elsewhere = format!("{}/blob?signature=secret", cdn.url());
    let double = one_file(move |_, n| match n {
        0 => Reply::status(307).with("Location", &format!("/org/repo/resolve/{COMMIT}/m.gguf")),
        _ => Reply::redirect(&elsewhere),
    });
    let mut options = options(cache.path(), &double.url());
    options.token = Some("hf_token".to_owned());
    let path = pull(&options).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), weights());
    assert_eq!(double.requests().len(), 3);
    for request in double.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer hf_token"), "{}", request.path);
    }
    let there = cdn.requests();
    assert_eq!((there.len(), there[0].header("authorization")), (1, None));
}

#[test]
fn a_redirect_without_end_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, _| Reply::redirect(&request.path));
    let error = pull(&options(cache.path(), &double.url())).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Network);
    assert!(error.to_string().contains("redirects"), "{error}");
}

#[test]
fn broken_and_silent_connections_are_picked_up_where_they_stopped() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, n| match n {
        0 => Reply::ranged(request, &weights()).cut(700_000),
        1 => Reply::ranged(request, &weights()).stall(400_000),
        2 => Reply::status(503),
        _ => Reply::ranged(request, &weights()),
    });
    let mut options = options(cache.path(), &double.url());
    options.timeout.silence = Duration::from_secs(1);
    let path = pull(&options).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), weights());
    let ranges: Vec<Option<usize>> = double.requests()[1..].iter().map(Request::range).collect();
    assert_eq!(ranges, [None, Some(700_000), Some(1_100_000), Some(1_100_000)]);
}

#[test]
fn an_interrupted_pull_goes_on_in_the_next_run() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, n| match n {
        0 => Reply::ranged(request, &weights()).cut(1_000_000),
        1..=2 => Reply::status(500),
        _ => Reply::ranged(request, &weights()),
    });
    let options = options(cache.path(), &double.url());
    let error = pull(&options).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Network);
    assert!(error.to_string().contains("1000000 bytes of m.gguf are kept"), "{error}");
    assert_eq!(parts_in(cache.path()).len(), 1);
    assert!(Hub::new(options.clone()).models().unwrap().is_empty());
    assert_eq!(std::fs::read(pull(&options).unwrap()).unwrap(), weights());
    assert_eq!(double.requests().last().unwrap().range(), Some(1_000_000));
}

#[test]
fn a_server_without_ranges_starts_again() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|_, n| match n {
        0 => Reply::ok(weights()).cut(500_000),
        _ => Reply::ok(weights()),
    });
    let path = pull(&options(cache.path(), &double.url())).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), weights());
}

#[test]
fn a_range_from_elsewhere_is_not_appended() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, n| match n {
        0 => Reply::ok(weights()).cut(500_000),
        1 => Reply::status(206).with("Content-Range", "bytes 7-99/2400000").body(&[0; 93]),
        2 => {
            assert_eq!(request.range(), None);
            Reply::ok(weights())
        }
        _ => unreachable!("the fresh start succeeds"),
    });
    let path = pull(&options(cache.path(), &double.url())).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), weights());
}

#[test]
fn damaged_bytes_are_removed_and_a_new_pull_succeeds() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|request, n| {
        let mut body = weights();
        if n == 0 {
            body[123_456] ^= 1;
        }
        Reply::ranged(request, &body)
    });
    let options = options(cache.path(), &double.url());
    let error = pull(&options).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Checksum);
    assert!(error.to_string().contains(&sha256(&weights())), "{error}");
    assert_eq!(parts_in(cache.path()), [] as [PathBuf; 0]);
    assert_eq!(std::fs::read(pull(&options).unwrap()).unwrap(), weights());
}

#[test]
fn a_server_that_sends_too_much_is_cut_off() {
    let cache = tempfile::tempdir().unwrap();
    let double = one_file(|_, _| {
        let mut body = weights();
        body.resize(body.len() + 1_000_000, 0);
        Reply::ok(body)
    });
    let error = pull(&options(cache.path(), &double.url())).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Checksum);
}

#[test]
fn the_checksum_may_come_with_the_redirect() {
    let cache = tempfile::tempdir().unwrap();
    let tag = format!("\"{}\"", sha256(b"other bytes"));
    let double = Double::start(move |request| {
        if is_api(request) {
            let size = weights().len();
            return Reply::ok(format!(
                r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m.gguf","size":{size}}}]}}"#
            ));
        }
        match request.path.as_str() {
            "/blob" => Reply::ok(weights()),
            _ => Reply::redirect("/blob").with("X-Linked-Etag", &tag),
        }
    });
    let error = pull(&options(cache.path(), &double.url())).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Checksum);
}

#[test]
fn refusals_say_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    for (status, token, kind, word) in [
        (401, None, HubErrorKind::Unauthorised, "set HF_TOKEN"),
        (403, Some("t".to_owned()), HubErrorKind::Unauthorised, "owner of HF_TOKEN"),
        (404, None, HubErrorKind::Missing, "spelling"),
        (500, None, HubErrorKind::Network, "status 500"),
    ] {
        let listed = Double::start(move |_| Reply::status(status));
        let mut options = options(cache.path(), &listed.url());
        options.token = token.clone();
        let error = pull(&options).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(word) && error.to_string().contains("org/repo"), "{error}");
        let file = one_file(move |_, _| Reply::status(status));
        options.endpoint = file.url();
        let error = pull(&options).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(word) && error.to_string().contains("m.gguf"), "{error}");
    }
}

#[test]
fn a_hub_that_is_not_there_or_makes_no_sense() {
    let cache = tempfile::tempdir().unwrap();
    let gone = Double::start(|_| Reply::status(200)).url();
    let error = pull(&options(cache.path(), &gone)).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Network);
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let nonsense = Double::start(|_| Reply::ok("<html>"));
    assert_eq!(pull(&options(cache.path(), &nonsense.url())).unwrap_err().kind(), HubErrorKind::Malformed);
    assert!(pull(&options(cache.path(), "ftp://x")).unwrap_err().to_string().contains("HF_ENDPOINT"));
}

#[test]
fn file_names_never_leave_the_folder() {
    let cache = tempfile::tempdir().unwrap();
    let double = Double::start(|request| {
        assert!(is_api(request), "{}", request.path);
        listing(&[("../../evil.gguf", b"x"), ("/evil.gguf", b"x"), ("a/../../evil.gguf", b"x")])
    });
    let error = pull(&options(cache.path(), &double.url())).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Missing);
    assert_eq!(double.requests().len(), 1);
}

#[test]
fn sharded_safetensors_come_whole_or_not_at_all() {
    let cache = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 5] = [
        ("model-00002-of-00002.safetensors", b"second"),
        ("model-00001-of-00002.safetensors", b"first"),
        ("model.safetensors.index.json", b"{}"),
        ("config.json", b"{}"),
        ("pytorch_model.bin", b"pickle"),
    ];
    let second_fails = AtomicUsize::new(1);
    let double = Double::start(move |request| {
        if is_api(request) {
            return listing(&files);
        }
        let name = request.path.rsplit('/').next().unwrap();
        let (name, body) = files.iter().find(|(n, _)| *n == name).unwrap();
        assert_ne!(*name, "pytorch_model.bin");
        let fails = name.starts_with("model-00001") && second_fails.swap(0, Ordering::SeqCst) == 1;
        if fails { Reply::status(404) } else { Reply::ranged(request, body) }
    });
    let options = options(cache.path(), &double.url());
    assert_eq!(pull(&options).unwrap_err().kind(), HubErrorKind::Missing);
    let hub = Hub::new(options.clone());
    assert_eq!(hub.find(&ModelName::parse("org/repo").unwrap()), None);
    let path = pull(&options).unwrap();
    assert!(path.ends_with("models/org--repo/model.safetensors.index.json"));
    assert_eq!(std::fs::read(path.with_file_name("model-00001-of-00002.safetensors")).unwrap(), b"first");
    // The large shard was complete and known by its checksum: fetched once.
    let fetched = double.requests().iter().filter(|r| r.path.ends_with("00002-of-00002.safetensors")).count();
    assert_eq!(fetched, 1);
    assert_eq!(hub.models().unwrap()[0].name, "org/repo");
}

#[test]
fn two_processes_do_not_pull_into_one_folder() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models/org--repo");
    std::fs::create_dir_all(&folder).unwrap();
    let other = std::fs::File::create(folder.join(".lock")).unwrap();
    other.lock().unwrap();
    let double = one_file(|request, _| Reply::ranged(request, &weights()));
    let error = pull(&options(cache.path(), &double.url())).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    other.unlock().unwrap();
    pull(&options(cache.path(), &double.url())).unwrap();
}
