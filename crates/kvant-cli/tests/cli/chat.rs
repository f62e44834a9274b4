//! `kvant chat`, fed through a pipe.

use crate::support::{Home, model_bytes};

#[test]
fn a_conversation_goes_on_from_what_is_held_and_can_be_saved() {
    let home = Home::new();
    let model = home.model();
    let file = home.path("talk.json").display().to_string();
    let input = format!("first\n/save {file}\nsecond\\\nline\n/nonsense\n/exit\nnever read\n");
    let run = home.run_with_input(&["chat", "-m", &model, "--greedy", "-n", "6"], input.as_bytes());
    assert!(run.err.contains("held"), "the second turn reads only what is new: {}", run.err);
    assert!(run.err.contains("there is no command /nonsense"), "{}", run.err);
    assert_eq!(run.err.matches("tokens/s, context").count(), 2, "{}", run.err);
    run.ok();
    let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 2);
    assert_eq!((&saved[0]["role"], &saved[0]["content"]), (&"user".into(), &"first".into()));
    assert_eq!(saved[1]["role"], "assistant");
}

#[test]
fn clear_and_retry_begin_again_from_the_same_place() {
    let home = Home::new();
    let model = home.model();
    let chat = |input: &str| {
        let usual = ["chat", "-q", "-m", &model, "--greedy", "--stop", "\n", "-n", "6"];
        home.run_with_input(&usual, input.as_bytes()).ok()
    };
    let once = chat("hello\n");
    assert_eq!(chat("hello\n/clear\nhello\n"), once.repeat(2));
    assert_eq!(chat("hello\n/retry\n"), once.repeat(2));
    assert_eq!(chat("/retry\nhello\n"), once);
    assert_ne!(chat("/system speak of the sea\nhello\n"), once);
}

#[test]
fn a_conversation_beyond_the_context_can_be_cleared() {
    let home = Home::new();
    let model = home.model();
    let input = format!("{}\n/clear\nhi\n", "word ".repeat(60));
    let run =
        home.run_with_input(&["chat", "-m", &model, "--greedy", "-n", "3", "--ctx", "64"], input.as_bytes());
    assert!(run.err.contains("/clear starts over"), "{}", run.err);
    assert!(!run.ok().trim().is_empty());
}

#[test]
fn a_base_model_does_not_converse() {
    let home = Home::new();
    let base = home.write("base.gguf", &model_bytes(false));
    home.run(&["chat", "-m", &base]).fails(1, &["no chat template", "kvant run"]);
}
