//! What people do at a terminal: Ctrl-C, Ctrl-D, history, commands; and bars that only they see.

use crate::pty::{CTRL_C, CTRL_D, Terminal, UP};
use crate::support::Home;

/// A conversation whose answers would take hours: greedy text of this model never ends.
fn endless_chat(home: &Home) -> Terminal {
    let model = home.model();
    let mut terminal =
        Terminal::start(home.command(&["chat", "-q", "-m", &model, "--greedy", "--ctx", "500000"]));
    terminal.expect("/help lists the commands");
    terminal.expect("> ");
    terminal
}

#[test]
fn ctrl_c_stops_an_answer_and_not_the_conversation() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    for _ in 0..2 {
        terminal.send("hello\r");
        terminal.expect("hello");
        terminal.expect("\r\n");
        // An answer is on its way.
        while terminal.more().trim().is_empty() {}
        terminal.send(CTRL_C);
        terminal.expect("note: stopped");
        terminal.expect("> ");
    }
    terminal.send("/exit\r");
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn what_is_typed_ahead_is_kept_and_does_not_echo_into_the_answer() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    // More lines at once than are read at a time, as a paste without brackets brings them.
    terminal.send("hello\r/system typed ahead one\r/system typed ahead two\rhalf a li");
    terminal.expect("hello");
    terminal.expect("\r\n");
    while terminal.more().trim().is_empty() {}
    terminal.send("ne");
    // Whatever comes until the answer is stopped is the answer alone.
    let mut answer = String::new();
    for _ in 0..3 {
        answer += &terminal.more();
    }
    assert!(!answer.contains("typed ahead") && !answer.contains("half a"), "{answer}");
    terminal.send(CTRL_C);
    terminal.expect("note: stopped");
    terminal.expect("typed ahead one");
    terminal.expect("new instructions");
    terminal.expect("typed ahead two");
    terminal.expect("new instructions");
    terminal.expect("half a line");
    terminal.send(CTRL_C);
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0.code(), Some(0));
}

#[test]
fn history_comes_back_in_another_conversation_and_several_lines_come_back_whole() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    terminal.send("/system speak of\\\r");
    terminal.expect("… ");
    terminal.send("the sea\r");
    terminal.expect("new instructions");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0.code(), Some(0));
    let mut terminal = endless_chat(&home);
    terminal.send(UP);
    terminal.expect("the sea");
    terminal.send("\r");
    terminal.expect("new instructions");
    terminal.expect("> ");
    terminal.send("/system\r");
    terminal.expect("speak of\r\nthe sea");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0.code(), Some(0));
}

/// Asks a program to terminate.
fn terminate(id: u32) {
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(id).unwrap(), libc::SIGTERM) }, 0);
}

#[test]
fn a_request_to_terminate_ends_with_143() {
    let home = Home::new();
    let model = home.model();
    let mut run =
        Terminal::start(home.command(&["run", "-m", &model, "--greedy", "--ctx", "500000", "hello"]));
    run.expect("may degrade");
    while run.more().trim().is_empty() {}
    terminate(run.id());
    assert_eq!(run.end().0.code(), Some(143));
    // At the prompt there is nothing to stop; in an answer the conversation ends with it.
    let idle = endless_chat(&home);
    terminate(idle.id());
    assert_eq!(idle.end().0.code(), Some(143));
    let mut busy = endless_chat(&home);
    busy.send("hello\r");
    busy.expect("hello");
    busy.expect("\r\n");
    while busy.more().trim().is_empty() {}
    terminate(busy.id());
    let (status, shown) = busy.end();
    assert_eq!(status.code(), Some(143), "{shown}");
    assert!(shown.contains("note: stopped"), "{shown}");
}

#[test]
fn at_the_prompt_ctrl_c_warns_once_and_then_leaves() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again");
    terminal.expect("> ");
    // Anything else in between begins the count anew.
    terminal.send("/nonsense\r");
    terminal.expect("unknown command /nonsense");
    terminal.expect("> ");
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again");
    terminal.expect("> ");
    terminal.send(CTRL_C);
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn ctrl_c_on_a_line_with_text_only_clears_it() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C again");
    terminal.expect("> ");
    for _ in 0..3 {
        terminal.send("half a line");
        terminal.expect("half a line");
        terminal.send(CTRL_C);
        terminal.expect("> ");
    }
    terminal.send("/nonsense\r");
    terminal.expect("unknown command /nonsense");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0.code(), Some(0));
}

#[test]
fn a_long_prompt_says_how_far_it_is_read() {
    let home = Home::new();
    let model = home.model();
    let long = "words ".repeat(300);
    let arguments = ["run", "-m", &model, "--greedy", "-n", "2", "--ctx", "4k", &long];
    let (status, shown) = Terminal::start(home.command(&arguments)).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("reading 256 of 1,") && shown.contains("tokens/s"), "{shown}");
    assert!(!home.run(&arguments).err.contains("reading"));
}

#[cfg(feature = "hub")]
#[test]
fn the_first_conversation_offers_a_better_model_once() {
    let home = Home::new();
    // A hub that has neither model, and no Python that would fetch a package.
    let address = crate::hub::hub(Vec::new());
    let chat = || {
        let mut chat = home.command(&["chat"]);
        chat.env("PATH", "").env("HF_ENDPOINT", &address);
        chat
    };
    // Where nothing can be fetched there is nothing to ask, and the question comes later.
    let mut offline = home.command(&["chat"]);
    offline.env("PATH", "");
    let (_, shown) = Terminal::start(offline).end();
    assert!(!shown.contains("often wrong"), "{shown}");
    let mut terminal = Terminal::start(chat());
    terminal.expect("is small and often wrong");
    terminal.expect("fetch qwen3:");
    terminal.send("1\r");
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(shown.contains("smollm2-135m"), "{shown}");
    let (_, again) = Terminal::start(chat()).end();
    assert!(!again.contains("often wrong"), "{again}");
}

/// The default model, as far as its name goes: a tiny one lies where it would be.
fn with_default_model(home: &Home) {
    let known = &kvant_hub::KNOWN[0];
    let folder = home.path("cache/models").join(known.repo.replace('/', "--"));
    std::fs::create_dir_all(&folder).unwrap();
    let model = crate::tiny::model_bytes(true);
    std::fs::write(folder.join(known.file), &model).unwrap();
    let (repo, file, size) = (known.repo, known.file, model.len());
    let list = format!(
        r#"{{"version": 1, "repo": "{repo}", "files": {{"{file}": {{"size": {size}, "sha256": "", "origin": ""}}}}}}"#
    );
    std::fs::write(folder.join("kvant.json"), list).unwrap();
}

#[test]
fn a_tip_follows_the_first_answer_of_the_default_model_alone() {
    let home = Home::new();
    with_default_model(&home);
    let mut terminal = Terminal::start(home.command(&["chat", "--greedy", "-n", "4"]));
    terminal.expect("> ");
    for _ in 0..2 {
        terminal.send("hello\r");
        terminal.expect("· context");
        terminal.expect("> ");
    }
    terminal.send(CTRL_D);
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert_eq!(shown.matches("tip: this model is small").count(), 1, "{shown}");
    assert!(shown.contains("`kvant fit` lists better ones"), "{shown}");
    // Who names a model has chosen it.
    let model = home.model();
    let mut terminal = Terminal::start(home.command(&["chat", &model, "--greedy", "-n", "4"]));
    terminal.expect("> ");
    terminal.send("hello\r");
    terminal.expect("· context");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    let (_, shown) = terminal.end();
    assert!(!shown.contains("tip: "), "{shown}");
}

#[test]
fn a_model_and_no_prompt_at_a_terminal_is_a_conversation() {
    let home = Home::new();
    let model = home.model();
    let mut terminal = Terminal::start(home.command(&["run", &model, "-q"]));
    terminal.expect("/help lists the commands");
    terminal.expect("> ");
    terminal.send("/sys\t\r");
    terminal.expect("no instructions");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().0.code(), Some(0));
}

#[test]
fn a_session_that_goes_on_shows_the_last_turn() {
    let home = Home::new();
    let model = home.model();
    let chat = ["chat", &model, "-q", "--greedy", "-n", "4", "--session", "t.kvant"];
    let said = home.run_with_input(&chat, b"first words\nlast words\n").ok();
    let mut terminal = Terminal::start(home.command(&chat));
    terminal.expect("resumed: 4 messages");
    terminal.expect("> last words");
    let answer = said.lines().last().unwrap().trim().chars().take(3).collect::<String>();
    terminal.expect(&answer);
    terminal.expect("> ");
    terminal.send(CTRL_D);
    let (status, shown) = terminal.end();
    assert!(status.success() && !shown.contains("first words"), "{shown}");
}

#[test]
fn ctrl_d_leaves_and_the_arrow_brings_lines_back() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    terminal.send("/system be brief\r");
    terminal.expect("new instructions");
    terminal.expect("> ");
    terminal.send("/help\r");
    terminal.expect("/save FILE");
    terminal.expect("> ");
    terminal.send(UP);
    terminal.send(UP);
    terminal.send("\r");
    terminal.expect("new instructions");
    terminal.expect("> ");
    terminal.send(CTRL_D);
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn ctrl_c_ends_a_run_with_its_own_exit_code() {
    let home = Home::new();
    let model = home.model();
    let arguments = ["run", "-m", &model, "--greedy", "--ctx", "500000", "hello"];
    let mut terminal = Terminal::start(home.command(&arguments));
    // What comes after the note on the context is the answer.
    terminal.expect("may degrade");
    while terminal.more().trim().is_empty() {}
    terminal.send(CTRL_C);
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(130), "{shown}");
    assert!(shown.contains("tokens/s"), "{shown}");
}

#[test]
fn a_run_without_a_prompt_does_not_wait_for_one() {
    let home = Home::new();
    let (status, shown) = Terminal::start(home.command(&["run"])).end();
    assert_eq!(status.code(), Some(2));
    assert!(shown.contains("no prompt") && shown.contains("kvant chat"), "{shown}");
}

#[cfg(feature = "hub")]
#[test]
fn a_pull_has_a_bar_on_a_terminal() {
    use crate::hub::hub;
    use crate::support::model_bytes;
    let home = Home::new();
    let address = hub(model_bytes(true));
    let mut pull = home.command(&["pull", "org/tiny"]);
    pull.env("HF_ENDPOINT", &address);
    let (status, shown) = Terminal::start(pull).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("tiny.gguf [==="), "{shown}");
    assert!(!shown.contains("fetching"), "{shown}");
}

#[test]
fn bars_are_for_terminals() {
    let home = Home::new();
    let model = home.model();
    let text = home.write("text.txt", "some words and more of them. ".repeat(20).as_bytes());
    let arguments = ["eval", &model, "--text", &text, "--ctx", "32", "--chunks", "4"];
    let (status, shown) = Terminal::start(home.command(&arguments)).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("windows"), "{shown}");
    let piped = home.run(&arguments);
    assert!(!piped.err.contains("windows") && !piped.err.contains('\r'), "{}", piped.err);
    piped.ok();
}
