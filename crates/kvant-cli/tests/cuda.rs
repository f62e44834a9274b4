//! `kvant run --device cuda` as a person types it. It is no part of `cargo test`: without a driver it fails. `cargo xtask test cuda` runs it
//! on the driver that stands in for a card, `cargo xtask test card` on a card.

#[path = "cli/home.rs"]
mod home;

use home::Home;
use kvant_model::synth::{self, Shape, WeightType};
use serde_json::Value;

/// A model of one layer whose heads the card has kernels for.
fn model(home: &Home) -> String {
    let shape = Shape {
        layers: 1,
        hidden: 128,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        ffn: 128,
        vocabulary: 300,
        tied: false,
        rope_base: 10_000.0,
        context: 512,
    };
    home.write("model.gguf", &synth::model(&shape, WeightType::Int4, 5).unwrap().to_bytes().unwrap())
}

/// What the program says on stdout.
fn said(home: &Home, arguments: &[&str]) -> String {
    let output = home.command(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert!(!errors.contains("panicked") && !errors.contains("XDG_RUNTIME_DIR"), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_model_runs_on_the_card() {
    let home = Home::new();
    let model = model(&home);
    let run = |device: &str| -> Value {
        let how = ["--device", device, "--kv", "int4", "--greedy", "--json", "-n", "6", "hello there"];
        serde_json::from_str(&said(&home, &[&["run", "-m", &model][..], &how].concat())).unwrap()
    };
    let [first, again] = [run("cuda"), run("cuda:0")];
    assert_eq!(first["device"], "cuda:0");
    assert_eq!(first["kv"]["spec"], "int4");
    assert_eq!((&first["text"], &first["tokens"]), (&again["text"], &again["tokens"]));
    assert_eq!(run("cpu")["device"], "cpu");
}

#[test]
fn a_session_moves_from_the_card_to_the_cpu() {
    let home = Home::new();
    let model = model(&home);
    let session = home.path("talk.kvant").display().to_string();
    let run = |device: &str, prompt: &str| {
        let how =
            ["--device", device, "--kv", "int4", "--greedy", "-q", "-n", "4", "--session", &session, prompt];
        said(&home, &[&["run", "-m", &model][..], &how].concat())
    };
    run("cuda", "hello there");
    run("cpu", "and on");
    run("cuda", "and back");
}

#[test]
fn doctor_names_the_card_and_what_runs_on_it() {
    let home = Home::new();
    let model = model(&home);
    let all = said(&home, &["doctor", "-m", &model, "--device", "cuda"]);
    assert!(all.contains("cuda:0, CUDA, ") && all.contains("runs it with"), "{all}");
    let none = home.command(&["run", "-m", &model, "--device", "cuda:99", "hi"]).output().unwrap();
    let errors = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(1) && errors.contains("cuda:99"), "{errors}");
}
