//! `kvant synth`, and what its files are good for.

use crate::support::Home;

const TINY: &[&str] = &[
    "--layers",
    "2",
    "--hidden",
    "64",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--head-dim",
    "32",
    "--ffn",
    "96",
    "--vocab",
    "300",
    "--ctx",
    "256",
];

fn synth(home: &Home, name: &str, more: &[&str]) -> String {
    home.run(&[&["synth", name], TINY, more].concat()).ok()
}

#[test]
fn a_synthetic_model_runs_like_any_other() {
    let home = Home::new();
    for (weights, untied) in [("int4", false), ("int8", true), ("f16", false)] {
        let name = format!("{weights}.gguf");
        let more = if untied { &["--weights", weights, "--untied"][..] } else { &["--weights", weights] };
        let said = synth(&home, &name, more);
        assert!(said.starts_with(&name) && said.contains("million random weights"), "{said}");
        let reply =
            home.run(&["run", "-m", &name, "--json", "--greedy", "-n", "8", "It was the best"]).json();
        assert!(reply["decode"]["tokens"].as_u64().unwrap() > 0);
        assert_eq!(reply["context"]["size"], 256);
        let about = home.run(&["inspect", &name]).ok();
        assert!(about.contains("llama"), "{about}");
    }
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let home = Home::new();
    home.write("model.gguf", b"precious");
    home.run(&[&["synth", "model.gguf"], TINY].concat()).fails(1, &["model.gguf: already exists", "--force"]);
    assert_eq!(std::fs::read(home.path("model.gguf")).unwrap(), b"precious");
    synth(&home, "model.gguf", &["--force", "--seed", "1"]);
    let first = std::fs::read(home.path("model.gguf")).unwrap();
    synth(&home, "again.gguf", &["--seed", "1"]);
    synth(&home, "other.gguf", &["--seed", "2"]);
    assert!(first == std::fs::read(home.path("again.gguf")).unwrap());
    assert!(first != std::fs::read(home.path("other.gguf")).unwrap());
}

#[test]
fn mistakes_leave_nothing_behind() {
    let home = Home::new();
    let files = || std::fs::read_dir(home.path("")).unwrap().count();
    let before = files();
    home.run(&["synth", "odd.gguf", "--kv-heads", "3"]).fails(1, &["3 kv heads do not divide 32 heads"]);
    home.run(&["synth", "odd.gguf", "--hidden", "100"]).fails(1, &["whole blocks of 32"]);
    home.run(&["synth", "nowhere/odd.gguf"]).fails(1, &["nowhere", "cannot create the file"]);
    home.run(&["synth", "odd.gguf", "--like", "gpt-5"]).fails(2, &["smollm2-135m"]);
    assert_eq!(files(), before);
}
