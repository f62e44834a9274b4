//! Any answer of a hub: a model in its folder or an error, and nothing is written elsewhere.
#![no_main]

#[path = "../../crates/kvant-hub/tests/hub/http_double.rs"]
#[expect(dead_code, reason = "the hub's tests use the rest")]
mod http_double;

use http_double::{Double, Reply};
use kvant_fuzz::{Numbers, spoil};
use kvant_hub::{Hub, ModelName, Options, Patience};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

/// What is answered about the repository, and in the place of each file.
static ANSWERS: Mutex<(Vec<u8>, Vec<u8>)> = Mutex::new((Vec::new(), Vec::new()));

static HUB: LazyLock<(Double, PathBuf)> = LazyLock::new(|| {
    let double = Double::start(|request| {
        let answers = ANSWERS.lock().expect("nobody panics");
        let is_api = request.path.starts_with("/api/");
        Reply::ok(if is_api { answers.0.clone() } else { answers.1.clone() })
    });
    let home = std::env::temp_dir().join(format!("kvant-fuzz-hub-{}", std::process::id()));
    fs::create_dir_all(&home).expect("a folder");
    (double, home)
});

fuzz_target!(|input: &[u8]| {
    let mut numbers = Numbers(input);
    let whole = numbers.below(3) == 0;
    let file = {
        let count = numbers.below(40);
        numbers.bytes(count).to_vec()
    };
    let mut listing = json!({
        "sha": "0123456789abcdef0123456789abcdef01234567",
        "siblings": [
            {"rfilename": "config.json", "size": 20},
            {"rfilename": "model.safetensors", "size": file.len(), "lfs": {"sha256": "00", "size": 30}},
            {"rfilename": "m-Q4_0.gguf", "size": file.len()},
        ],
    });
    let answer = if whole {
        numbers.0.to_vec()
    } else {
        while !numbers.is_empty() {
            spoil(&mut listing, &mut numbers);
        }
        listing.to_string().into_bytes()
    };
    *ANSWERS.lock().expect("nobody panics") = (answer, file);
    let (double, home) = &*HUB;
    let cache = home.join("cache");
    let second = Duration::from_secs(1);
    let hub = Hub::new(Options {
        cache: cache.clone(),
        endpoint: double.url(),
        token: None,
        python: "no-python-in-this-test".into(),
        certificates: None,
        timeout: Patience { attempts: 1, pause: Duration::ZERO, connect: second, silence: second },
    });
    match hub.pull(&ModelName::parse("org/repo").expect("a name"), &mut |_| {}) {
        Ok(path) => assert!(path.starts_with(&cache), "{}", path.display()),
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 4000 && !message.contains('\u{1b}'), "{message:?}");
        }
    }
    hub.models().expect("the list is never spoilt by what was not fetched");
    let _ = fs::remove_dir_all(&cache);
    assert_eq!(
        fs::read_dir(home).expect("a folder").count(),
        0,
        "something was written outside of the cache"
    );
});
