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
    assert!(run.err.contains("unknown command /nonsense"), "{}", run.err);
    assert_eq!(run.err.matches("tokens/s · context").count(), 2, "{}", run.err);
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
    assert!(run.err.contains("/clear      start over"), "{}", run.err);
    assert!(!run.ok().trim().is_empty());
}

fn chat(home: &Home, more: &[&str], input: &str) -> crate::support::Run {
    let model = home.model();
    let usual = ["chat", &model, "--greedy", "--stop", "\n", "-n", "6"];
    home.run_with_input(&[&usual[..], more].concat(), input.as_bytes())
}

#[test]
fn clear_is_kept_by_the_session_file() {
    let home = Home::new();
    let session = ["-q", "--session", "t.kvant"];
    let fresh = chat(&home, &["-q"], "hello\n").ok();
    chat(&home, &session, "something else\n/clear\n/exit\n").ok();
    assert_eq!(chat(&home, &session, "hello\n").ok(), fresh, "the old talk is gone");
    let saved = chat(&home, &session, "/save t.json\n").err;
    assert!(saved.contains("saved to t.json"), "{saved}");
    let turns = std::fs::read_to_string(home.path("t.json")).unwrap();
    assert!(turns.contains("hello") && !turns.contains("something else"), "{turns}");
    // Nothing is emptied unasked: the old talk has another name.
    let old = chat(&home, &["-q", "--session", "t.1.kvant"], "/save old.json\n/clear\n").err;
    assert!(old.contains("kept in t.1.1.kvant"), "{old}");
    assert!(std::fs::read_to_string(home.path("old.json")).unwrap().contains("something else"));
}

#[test]
fn system_without_text_shows_the_instructions_and_keeps_the_conversation() {
    let home = Home::new();
    let input = "hello\n/system\n/system be brief\n/system\nmore\n/save a.json\n/system none\n/save b.json\n";
    let run = chat(&home, &["-q"], input);
    assert!(run.err.contains("no instructions") && run.err.contains("be brief\n"), "{}", run.err);
    run.ok();
    let roles = |name: &str| {
        let text = std::fs::read_to_string(home.path(name)).unwrap();
        let turns: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        turns.iter().map(|turn| turn["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(roles("a.json"), ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(roles("b.json"), ["user", "assistant", "user", "assistant"]);
}

#[test]
fn turns_are_taken_back_saved_and_loaded() {
    let home = Home::new();
    let once = chat(&home, &["-q"], "hello\n").ok();
    assert_eq!(chat(&home, &["-q"], "other\n/undo\nhello\n").ok().lines().last(), once.lines().last());
    chat(&home, &["-q"], "hello\n/save t.json\n").ok();
    let both = chat(&home, &["-q"], "hello\nmore\n").ok();
    let loaded = chat(&home, &["-q"], "other\n/load t.json\nmore\n").ok();
    assert_eq!(loaded.lines().last(), both.lines().last());
    let run =
        chat(&home, &["-q"], "/undo\n/load none.json\n/set temperature 9\n/set top_p 7\n/set\n/think off\n");
    for words in ["nothing to undo", "none.json", "(temperature 9)", "error: ", "temperature 9, top_k 40"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
}

#[test]
fn three_quotes_begin_and_end_several_lines() {
    let home = Home::new();
    let joined = chat(&home, &["-q"], "one\\\ntwo\n").ok();
    assert_eq!(chat(&home, &["-q"], "\"\"\"\none\ntwo\"\"\"\n").ok(), joined);
    assert_eq!(chat(&home, &["-q"], "\"\"\"one\ntwo\"\"\"\n").ok(), joined);
    // A slash inside begins no command.
    assert!(!chat(&home, &["-q"], "\"\"\"\n/exit\n\"\"\"\n").ok().trim().is_empty());
}

#[test]
fn an_answer_that_was_cut_says_so() {
    let home = Home::new();
    let model = home.model();
    let run = home.run_with_input(&["chat", &model, "--greedy", "-n", "3"], b"hello\n");
    assert!(run.err.contains("cut off after 3 tokens"), "{}", run.err);
}

#[test]
fn a_full_context_grows_slides_or_drops_and_the_message_is_answered() {
    let home = Home::new();
    let long = format!("{}\n", "word ".repeat(9));
    let talk = |command: &str| {
        let input = format!("{long}{long}{long}{command}\n/save t.json\n");
        let run = chat(&home, &["-q", "--ctx", "100"], &input);
        assert!(run.err.contains("your message is kept") && run.err.contains("/grow 200"), "{}", run.err);
        let text = std::fs::read_to_string(home.path("t.json")).unwrap();
        let turns: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(turns.last().unwrap()["role"], "assistant", "{command}: {}", run.err);
        turns.len()
    };
    let whole = talk("/grow");
    assert!(whole >= 4, "{whole} turns");
    assert_eq!(talk("/grow 1k"), whole);
    assert_eq!(talk("/window 64"), whole);
    assert!(talk("/drop") < whole);
    let input = format!("{long}{long}{long}again\n/undo\n");
    let run = chat(&home, &["-q", "--ctx", "100"], &input);
    assert!(run.err.contains("has no answer yet") && run.err.contains("removed: "), "{}", run.err);
}

#[test]
fn a_base_model_does_not_converse() {
    let home = Home::new();
    let base = home.write("base.gguf", &model_bytes(false));
    home.run(&["chat", "-m", &base]).fails(1, &["no chat template", "kvant run"]);
}
