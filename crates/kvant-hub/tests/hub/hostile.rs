//! A hub that answers nonsense: every pull is a model in its folder or an error, and nothing is written elsewhere.

use crate::fetch::{COMMIT, options};
use crate::http_double::{Double, Reply};
use kvant_hub::{Hub, ModelName};
use serde_json::{Value, json};
use std::sync::Mutex;

const FILES: [(&str, usize); 3] = [("config.json", 20), ("model.safetensors", 30), ("m-Q4_0.gguf", 12)];

/// What takes the place of a part of an answer.
fn odd() -> Vec<Value> {
    let long = "a/".repeat(3000);
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!(".."),
        json!("../../evil.gguf"),
        json!("/evil.gguf"),
        json!("a\u{0}b.gguf"),
        json!("C:\\evil.gguf"),
        json!("m.gguf\n\u{1b}]52;c;x\u{7}"),
        json!("model-00001-of-99999.gguf"),
        json!(long),
        json!([]),
        json!({}),
        json!([{"rfilename": "m.gguf"}, {"rfilename": "m.gguf"}]),
    ]
}

/// Another number each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// Puts something odd in the place of a part.
fn spoil(value: &mut Value, numbers: &mut Numbers) {
    let parts = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if parts == 0 || numbers.below(4) == 0 {
        let mut odd = odd();
        *value = odd.swap_remove(numbers.below(odd.len()));
        return;
    }
    let at = numbers.below(parts);
    match value {
        Value::Array(items) => spoil(&mut items[at], numbers),
        Value::Object(fields) => spoil(fields.values_mut().nth(at).expect("there are so many"), numbers),
        _ => {}
    }
}

#[test]
fn nonsense_is_an_error_and_stays_in_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let numbers = Mutex::new(Numbers(1));
    let double = Double::start(move |request| {
        let mut numbers = numbers.lock().unwrap();
        if !request.path.starts_with("/api/") {
            let body = vec![b'x'; numbers.below(40)];
            // As long as was promised, or not.
            let promised = FILES.into_iter().find(|(name, _)| request.path.ends_with(name));
            return match numbers.below(8) {
                0 => Reply::status([204, 206, 301, 416, 429, 503][numbers.below(6)]),
                1 => Reply::ok(body).with("Content-Range", "bytes 5-3/2"),
                2 => Reply::ok(body).with("x-linked-size", "18446744073709551615"),
                3 => Reply::ok(body),
                _ => Reply::ok(vec![b'x'; promised.map_or(0, |(_, size)| size)]),
            };
        }
        let mut answer = json!({
            "sha": COMMIT,
            "siblings": [
                {"rfilename": FILES[0].0, "size": FILES[0].1},
                {"rfilename": FILES[1].0, "size": FILES[1].1, "lfs": {"sha256": "00", "size": FILES[1].1}},
                {"rfilename": FILES[2].0, "size": FILES[2].1},
            ],
        });
        (0..numbers.below(3)).for_each(|_| spoil(&mut answer, &mut numbers));
        let mut text = answer.to_string();
        if numbers.below(10) == 0 {
            let cut = numbers.below(text.len());
            text.truncate((0..=cut).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        }
        Reply::ok(text)
    });
    let cache = home.path().join("cache");
    let (mut pulled, mut refused) = (0, 0);
    for _ in 0..300 {
        let hub = Hub::new(options(&cache, &double.url()));
        match hub.pull(&ModelName::parse("org/repo").unwrap(), &mut |_| {}) {
            Ok(path) => {
                assert!(path.starts_with(&cache), "{}", path.display());
                pulled += 1;
            }
            Err(error) => {
                assert!(error.to_string().len() < 2000, "{error}");
                assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
                refused += 1;
            }
        }
        // The list of what is there is never spoilt by what was not fetched.
        hub.models().unwrap();
        let _ = std::fs::remove_dir_all(cache.join("models"));
    }
    println!("{pulled} pulled, {refused} refused");
    assert!(pulled > 0 && refused > 100, "{pulled} pulled, {refused} refused");
    let left: Vec<_> =
        std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cache"]);
}
