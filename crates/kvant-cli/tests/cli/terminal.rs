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
fn at_the_prompt_ctrl_c_warns_once_and_then_leaves() {
    let home = Home::new();
    let mut terminal = endless_chat(&home);
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C once more");
    terminal.expect("> ");
    // Anything else in between begins the count anew.
    terminal.send("/nonsense\r");
    terminal.expect("there is no command /nonsense");
    terminal.expect("> ");
    terminal.send(CTRL_C);
    terminal.expect("Ctrl-C once more");
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
    terminal.expect("Ctrl-C once more");
    terminal.expect("> ");
    for _ in 0..3 {
        terminal.send("half a line");
        terminal.expect("half a line");
        terminal.send(CTRL_C);
        terminal.expect("> ");
    }
    terminal.send("/nonsense\r");
    terminal.expect("there is no command /nonsense");
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

#[test]
fn a_model_and_no_prompt_at_a_terminal_is_a_conversation() {
    let home = Home::new();
    let model = home.model();
    let mut terminal = Terminal::start(home.command(&["run", &model, "-q"]));
    terminal.expect("/help lists the commands");
    terminal.expect("> ");
    terminal.send("/sys\t\r");
    terminal.expect("there are no instructions");
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
