//! Models that reason before they answer.

use crate::support::Home;
use crate::tiny::model_with;

/// A model that never comes to its answer.
fn thinker(home: &Home) -> String {
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n";
    home.write("thinker.gguf", &model_with(Some(template)))
}

#[test]
fn reasoning_goes_to_stderr_and_only_if_wanted() {
    let home = Home::new();
    let model = thinker(&home);
    let run = |more: &[&str]| {
        let usual = ["run", "-q", "-m", &model, "-n", "20", "--seed", "3", "hello"];
        home.run(&[&usual[..], more].concat())
    };
    let whole = run(&["--json"]).json();
    let reasoning = whole["reasoning"].as_str().unwrap().to_owned();
    assert!(reasoning.len() > 9 && whole["text"] == "", "{whole}");
    let shown = run(&["--think", "on"]);
    assert_eq!((shown.err.trim(), shown.out.as_str()), (reasoning.as_str(), "\n"));
    assert!(!shown.err.contains('\x1b'), "only terminals are dimmed");
    for hidden in [run(&["--think", "hide"]), run(&[])] {
        assert_eq!((hidden.err.as_str(), hidden.out.as_str()), ("", "\n"), "programs do not see it");
    }
    run(&["--think", "loud"]).fails(2, &["loud", "on", "hide"]);
    run(&["--think", "on", "--raw"]).fails(2, &["--raw"]);
}

#[cfg(unix)]
#[test]
fn a_terminal_shows_reasoning_dimmed() {
    let home = Home::new();
    let model = thinker(&home);
    let arguments = ["run", "-q", "-m", &model, "-n", "20", "--seed", "3", "hello"];
    let mut command = home.command(&arguments);
    command.env_remove("NO_COLOR");
    let (status, shown) = crate::pty::Terminal::start(command).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    let dimmed = shown.split_once("\x1b[2m").and_then(|(_, rest)| rest.split_once("\x1b[0m"));
    assert!(dimmed.is_some_and(|(reasoning, _)| reasoning.len() > 9), "{shown:?}");
}

#[test]
fn a_session_keeps_reasoning_for_the_template() {
    let home = Home::new();
    let model = thinker(&home);
    let usual = ["run", "-q", "-m", &model, "-n", "8", "--seed", "3", "--session", "talk.kvant"];
    home.run(&[&usual[..], &["one"]].concat()).ok();
    home.run(&[&usual[..], &["two"]].concat()).ok();
}
