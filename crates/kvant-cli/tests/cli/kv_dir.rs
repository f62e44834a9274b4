//! `kvant serve --kv-dir`: what one server has read, the next one knows.

use crate::served::Served;
use crate::support::Home;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A prompt of a few pages that nobody else has.
fn body(number: usize) -> Value {
    let prompt = format!("{number}: {}", "the rain in spain falls ".repeat(8 + number % 3));
    json!({"prompt": prompt, "seed": number, "max_tokens": 24, "temperature": 1.1, "logit_bias": {"2": -100}})
}

/// The answer, and how many tokens of the prompt were known.
#[track_caller]
fn ask(served: &Served, number: usize) -> (Value, u64) {
    let answer = served.post("/v1/completions", "", &body(number).to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let json: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (json["choices"].clone(), cached)
}

struct Folder {
    home: Home,
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let home = Home::new();
        let path = home.path("prefixes");
        fs::create_dir(&path).unwrap();
        Self { home, path }
    }

    fn serve(&self) -> Served {
        Served::start(
            &self.home,
            &self.home.model(),
            &["--ctx", "480", "--kv-dir", self.path.to_str().unwrap()],
        )
    }

    fn names(&self) -> Vec<String> {
        let items = fs::read_dir(&self.path).unwrap();
        let mut names: Vec<String> =
            items.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn prefixes(&self) -> Vec<PathBuf> {
        let ours = self.names().into_iter().filter(|name| name.ends_with(".kvant") && !name.starts_with('.'));
        ours.map(|name| self.path.join(name)).collect()
    }
}

#[cfg(unix)]
/// Warnings of the log and of the command.
fn warnings(said: &str) -> usize {
    ["WARN", "warning"].map(|word| said.matches(word).count()).iter().sum()
}

#[test]
fn a_server_started_later_answers_the_same_from_disk() {
    let folder = Folder::new();
    let alone = ask(&Served::start(&folder.home, &folder.home.model(), &["--ctx", "480"]), 1);
    let mut first = folder.serve();
    assert_eq!((ask(&first, 1), alone.1), (alone.clone(), 0));
    let (answer, in_memory) = ask(&first, 1);
    assert_eq!((&answer, in_memory > 100), (&alone.0, true));
    let said = first.end();
    assert_eq!(warnings(&said), 0, "{said}");

    let mut second = folder.serve();
    assert_eq!(ask(&second, 1), (alone.0.clone(), in_memory));
    let said = second.end();
    assert_eq!(warnings(&said), 0, "{said}");

    // A file that is damaged costs time, not truth.
    let prefixes = folder.prefixes();
    assert!(prefixes.len() >= 2);
    for path in &prefixes {
        let mut bytes = fs::read(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let mut third = folder.serve();
    assert_eq!(ask(&third, 1), (alone.0.clone(), 0));
    let said = third.end();
    assert_eq!(warnings(&said), 1, "{said}");
    assert!(said.contains("is damaged"), "{said}");

    // Of another model, or made with other settings.
    let mut other = Served::start(
        &folder.home,
        &folder.home.model(),
        &["--ctx", "480", "--kv", "int8", "--kv-dir", folder.path.to_str().unwrap()],
    );
    assert_eq!(ask(&other, 1).1, 0);
    let said = other.end();
    assert_eq!(warnings(&said), 1, "{said}");
    assert!(said.contains("another model"), "{said}");
}

#[test]
fn a_server_killed_at_any_moment_leaves_nothing_broken() {
    let folder = Folder::new();
    let alone = ask(&Served::start(&folder.home, &folder.home.model(), &["--ctx", "480"]), 0).0;
    let mut known = 0;
    for (turn, moment) in [0, 3, 10, 25, 60, 120].into_iter().enumerate() {
        let mut served = folder.serve();
        let (answer, cached) = ask(&served, 0);
        assert_eq!(answer, alone, "turn {turn}");
        assert!(cached >= known, "what was there is there: {cached}, {known}");
        known = cached;
        // Others keep it writing; it is killed in the middle of that.
        let address = served.address.clone();
        let asking = std::thread::spawn(move || {
            for number in 0..6 {
                let text = body(10 + 6 * turn + number).to_string();
                let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                            Content-Type: application/json\r\n";
                let request = format!("{head}Content-Length: {}\r\n\r\n{text}", text.len());
                let Ok(mut stream) = std::net::TcpStream::connect(&address) else { return };
                let sent = std::io::Write::write_all(&mut stream, request.as_bytes());
                // The server may be gone.
                if sent.and_then(|()| std::io::Read::read_to_end(&mut stream, &mut Vec::new())).is_err() {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(moment));
        let said = served.kill();
        asking.join().unwrap();
        assert!(!said.contains("warning"), "turn {turn}: {said}");
    }
    // What is on the disk when it is killed, the next one knows.
    let mut served = folder.serve();
    ask(&served, 0);
    let start = Instant::now();
    while folder.prefixes().len() < 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    served.kill();
    let mut served = folder.serve();
    let (answer, cached) = ask(&served, 0);
    assert_eq!((answer, cached > 0), (alone, true));
    served.kill();
    // Whole files, and one lock: what the killed have left is swept.
    let mut served = folder.serve();
    let names = folder.names();
    assert!(names.iter().all(|name| name == "kvant.lock" || name.len() == 64 + ".kvant".len()), "{names:?}");
    let said = served.kill();
    assert_eq!(warnings(&said), 0, "{said}");
}

#[cfg(unix)]
#[test]
fn several_models_have_a_folder_each() {
    let folder = Folder::new();
    let home = &folder.home;
    let second = home.write("second.gguf", &crate::tiny::model_bytes(true));
    let serve = || {
        let arguments = [&second, "--ctx", "480", "--kv-dir", folder.path.to_str().unwrap()];
        Served::start(home, &home.model(), &arguments)
    };
    let ask = |served: &Served, model: &str| {
        let mut body = body(1);
        body["model"] = model.into();
        let answer = served.post("/v1/completions", "", &body.to_string());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let json: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        (json["choices"].clone(), json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    let mut first = serve();
    let alone = ["model", "second"].map(|model| ask(&first, model));
    assert_eq!(alone.clone().map(|(_, cached)| cached), [0, 0], "models share nothing");
    let said = first.end();
    assert_eq!(warnings(&said), 0, "{said}");
    assert_eq!(folder.names(), ["model", "second"]);
    let later = serve();
    for (model, (answer, _)) in ["model", "second"].into_iter().zip(alone) {
        let (again, cached) = ask(&later, model);
        assert_eq!((again, cached > 0), (answer, true), "{model}");
    }
}

#[test]
fn a_folder_that_is_missing_is_made() {
    let home = Home::new();
    let path = home.path("new/prefixes");
    let served = Served::start(&home, &home.model(), &["--ctx", "480", "--kv-dir", path.to_str().unwrap()]);
    assert!(path.is_dir(), "it is there before clients can connect");
    ask(&served, 0);
}

#[test]
fn folders_that_cannot_be_used_are_refused() {
    let folder = Folder::new();
    let model = folder.home.model();
    let with = |arguments: &[&str]| folder.home.run(&[&["serve", &model, "--port", "0"], arguments].concat());
    let path = folder.path.to_str().unwrap();
    let inside = format!("{model}/inside");
    with(&["--kv-dir", &inside]).fails(1, &["inside: cannot make this folder"]);
    with(&["--kv-dir", &model]).fails(1, &["cannot open this folder"]);
    #[cfg(target_os = "linux")]
    with(&["--kv-dir", "/proc"]).fails(1, &["/proc: cannot make a file"]);
    with(&["--kv-dir", path, "--no-prefix-cache"]).fails(2, &["--no-prefix-cache"]);
    with(&["--kv-dir-size", "1G"]).fails(2, &["--kv-dir"]);
}

#[cfg(unix)]
#[test]
fn two_servers_share_a_folder() {
    let folder = Folder::new();
    let alone = Served::start(&folder.home, &folder.home.model(), &["--ctx", "480"]);
    let expected: Vec<Value> = (0..4).map(|number| ask(&alone, number).0).collect();
    drop(alone);
    let (mut first, mut second) = (folder.serve(), folder.serve());
    // Both at once: the same answers, whoever has read what before.
    std::thread::scope(|scope| {
        for (served, order) in [(&first, [0, 1, 2, 0]), (&second, [1, 2, 0, 1])] {
            let expected = &expected;
            scope.spawn(move || order.map(|number| assert_eq!(ask(served, number).0, expected[number])));
        }
    });
    // What the first reads while the second is running, the second finds.
    assert_eq!(ask(&first, 3).0, expected[3]);
    let in_memory = ask(&first, 3).1;
    assert!(in_memory > 100);
    let start = Instant::now();
    loop {
        let mut third = folder.serve();
        let (answer, cached) = ask(&third, 3);
        assert_eq!(answer, expected[3]);
        third.kill();
        if cached == in_memory {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
    }
    assert_eq!(ask(&second, 3), (expected[3].clone(), in_memory));
    for said in [first.end(), second.end()] {
        assert_eq!(warnings(&said), 0, "{said}");
    }
}
