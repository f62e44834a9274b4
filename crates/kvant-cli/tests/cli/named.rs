//! Which words are models.

use crate::support::Home;

#[test]
fn the_first_argument_is_a_model_when_it_names_one() {
    let home = Home::new();
    let model = home.model();
    let run = |words: &[&str]| home.run(&[&["run", "--json", "--greedy", "-n", "3"], words].concat());
    let usual = run(&["-m", &model, "hi"]).json();
    assert_eq!(run(&[&model, "hi"]).json()["tokens"], usual["tokens"], "a model and a prompt");
    assert_eq!(run(&["model.gguf", "hi"]).json()["tokens"], usual["tokens"]);
    let piped = home.run_with_input(&["run", "--json", "--greedy", "-n", "3", &model], b"hi").json();
    assert_eq!(piped["tokens"], usual["tokens"], "a model and a pipe: the path is not the prompt");
    assert_eq!(run(&[".", "hi"]).json()["tokens"], usual["tokens"], "a folder");
    run(&["nowhere.gguf", "hi"]).fails(1, &["nowhere.gguf", "no such file"]);
    run(&["why", "is"]).fails(2, &["`why` is neither a file nor a model name", "quotes"]);
    run(&["-m", &model, "one", "two"]).fails(2, &["--model"]);
    home.write("notes.txt", b"words");
    run(&["notes.txt"]).fails(2, &["-f notes.txt"]);
    run(&["qwenn3:8b", "hi"]).fails(1, &["did you mean qwen3:8b?"]);
    home.run(&["chat", "nothing"])
        .fails(2, &["`nothing` is neither a file nor a model name", "kvant models --known"]);
}

#[test]
fn a_projector_is_not_a_model() {
    let home = Home::new();
    let model = home.model();
    std::fs::copy(&model, home.path("mmproj-F16.gguf")).unwrap();
    home.run(&["run", "mmproj-F16.gguf", "hi"]).fails(1, &["image projector", "not a model"]);
    assert!(home.run(&["inspect", &model]).ok().contains("mmproj-F16.gguf, image projector; left out"));
}

#[test]
fn short_names_are_listed_with_what_they_stand_for() {
    let home = Home::new();
    let list = home.run(&["models", "--known"]).ok();
    for words in ["smollm2-135m", "qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"] {
        assert!(list.contains(words), "{words}: {list}");
    }
    assert!(!list.contains("unverified"), "{list}");
    assert!(home.run(&["models", "--known", "--verbose"]).ok().contains("unverified"));
    let json = home.run(&["ls", "--known", "--json"]).json();
    assert!(
        json.as_array()
            .unwrap()
            .iter()
            .any(|line| line["name"] == "gpt-oss:20b" && line["verified"] == false)
    );
}
