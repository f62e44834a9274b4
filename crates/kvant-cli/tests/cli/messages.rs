//! Help and messages in plain English: what was wrong, where, and what to do.

#[cfg(unix)]
use crate::served::Served;
use crate::support::{Home, Run};

/// The help of every command.
fn helps(home: &Home) -> Vec<String> {
    let all = home.run(&["--help"]).ok();
    let commands = all.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    names.iter().map(|name| home.run(&["help", name]).ok()).chain([all.clone()]).collect()
}

#[test]
fn help_uses_the_words_of_the_field() {
    let home = Home::new();
    let text = helps(&home).join("\n").split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["Compute device", "Serve an OpenAI-compatible HTTP API", "-1 for no limit"] {
        assert!(text.contains(words), "{words}");
    }
    for riddle in [
        "What computes",
        "Answer programs over HTTP",
        "as many as there come",
        "seen through",
        "set aside",
        "is there already",
        "makes no sense",
    ] {
        assert!(!text.contains(riddle), "{riddle}");
    }
}

#[test]
fn an_encoder_says_what_it_gives_and_refuses_to_write() {
    let home = Home::new();
    let folder =
        |name: &str| format!("{}/../kvant-engine/tests/fixtures/encoders/{name}", env!("CARGO_MANIFEST_DIR"));
    home.run(&["run", "-m", &folder("bert"), "hi"]).fails(1, &["writes no text", "vectors", "kvant serve"]);
    home.run(&["run", "-m", &folder("bert"), "--kv", "int4", "hi"]).fails(1, &["encoder", "--kv"]);
    home.run(&["convert", &folder("bert"), "-o", "x.gguf"]).fails(1, &["encoders (bert) are not converted"]);
    let about = home.run(&["inspect", &folder("bert"), "--layers"]).ok();
    assert!(about.contains("vectors of texts") && about.contains("both directions"), "{about}");
    assert!(!about.contains("Keys and values per token"), "{about}");
    assert!(home.run(&["inspect", &folder("bert_rank"), "--json"]).ok().contains("scores of pairs"));
    assert!(home.run(&["doctor", &folder("xlm_roberta_rank")]).ok().contains("it reranks"));
}

#[test]
fn what_is_missing_or_empty_is_said_by_its_own_name() {
    let home = Home::new();
    let model = home.model();
    let run = |words: &[&str]| home.run(&[&["run", "-m", &model, "hi"], words].concat());
    run(&["--grammar", "nofile.gbnf"]).fails(1, &["nofile.gbnf: no such file"]);
    run(&["--kv", ""]).fails(2, &["name a cache, such as int4", "--kv list"]);
    let short = home.write("short.txt", b"too short");
    let refused = home.run(&["calibrate", &model, "--text", &short]);
    assert!(!refused.err.contains("--ctx"), "calibrate has no such flag: {refused:?}");
    refused.fails(1, &["short.txt", "longer text"]);
    home.write("there.gguf", b"precious");
    home.run(&["synth", "there.gguf"]).fails(1, &["already exists", "--force"]);
    home.write("list.kvant", b"a shopping list");
    run(&["--session", "list.kvant"]).fails(1, &["list.kvant", "not a kvant session file"]);
}

#[test]
fn one_of_a_kind_has_no_plural() {
    let home = Home::new();
    let model = home.model();
    let doctor = home.run(&["doctor"]).ok();
    assert!(!doctor.contains(" 1 threads"), "{doctor}");
    let bench = home.run(&["bench", &model, "-p", "8", "-n", "2", "-d", "0", "-r", "1", "-t", "1"]);
    assert!(!bench.err.contains("1 threads") && !bench.ok().contains("1 threads"));
    let long = format!("{}\n", "word ".repeat(9));
    let talk = format!("{long}{long}{long}/drop 1\n");
    let chat = home.run_with_input(
        &["chat", &model, "-q", "--greedy", "--stop", "\n", "-n", "6", "--ctx", "100"],
        talk.as_bytes(),
    );
    assert!(!chat.err.contains("1 oldest messages"), "{chat:?}");
    std::fs::create_dir(home.path("shelf")).unwrap();
    std::fs::rename(&model, home.path("shelf/one.gguf")).unwrap();
    #[cfg(unix)]
    {
        let said = Served::start(&home, &home.path("shelf").display().to_string(), &[]).end();
        assert!(said.contains("1 model, loaded on demand"), "{said}");
    }
    let model = home.path("shelf/one.gguf").display().to_string();
    let one = home.run(&["run", "-m", &model, "--raw", "--greedy", "-n", "1", "a"]);
    assert!(!one.err.contains(" 1 tokens") && !one.err.contains("- tokens/s"), "{one:?}");
}

#[test]
fn configuration_that_is_missing_or_wrong_in_part_is_told_to_those_who_need_it() {
    let home = Home::new();
    let model = home.model();
    let with = |config: &str, words: &[&str]| {
        Run::of(home.command(words).env("KVANT_CONFIG", config).output().unwrap())
    };
    with("/nonexistent", &["run", "-m", &model, "hi"])
        .fails(1, &["KVANT_CONFIG=/nonexistent", "cannot read it"]);
    let bad =
        home.write("bad.toml", b"seed = 1\n[presets.wrong]\nctx = 'many'\n[presets.right]\nmax-tokens = 2\n");
    with(&bad, &["run", "-m", &model, "--preset", "wrong", "hi"]).fails(1, &["preset wrong", "many"]);
    with(&bad, &["run", "-m", &model, "-n", "2", "hi"]).ok();
    let right = with(&bad, &["run", "-m", &model, "--preset", "right", "--json", "hi"]).json();
    assert_eq!(right["tokens"].as_array().unwrap().len(), 2);
    for words in [&["inspect", model.as_str()][..], &["models"], &["doctor"], &["chat", "-m", &model, "-q"]] {
        with(&bad, words).ok();
    }
}

/// Mesa's Vulkan layers complain about XDG_RUNTIME_DIR where there is no desktop.
#[test]
fn nothing_complains_where_there_is_no_desktop() {
    let home = Home::new();
    let model = home.model();
    let mut command = home.command(&["run", "-q", "-m", &model, "--device", "auto", "-n", "2", "hi"]);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("KVANT_DEVICE");
    let run = Run::of(command.output().unwrap());
    assert!(!run.err.contains("XDG_RUNTIME_DIR"), "{run:?}");
    run.ok();
}

#[cfg(unix)]
#[test]
fn stdin_that_stays_open_is_waited_for_aloud() {
    use std::io::Write;
    let home = Home::new();
    let model = home.model();
    let mut command = home.command(&["run", "-q", "-m", &model, "-n", "2", "-"]);
    let (mut open, idle) = std::os::unix::net::UnixStream::pair().unwrap();
    command.stdin(std::os::fd::OwnedFd::from(idle)).stderr(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    std::thread::sleep(std::time::Duration::from_secs(3));
    open.write_all(b"hi").unwrap();
    drop(open);
    let run = Run::of(child.wait_with_output().unwrap());
    assert!(run.err.contains("reading the prompt from stdin until it ends"), "{run:?}");
    run.ok();
}

/// A loop over lines that runs kvant keeps its lines.
#[cfg(unix)]
#[test]
fn a_loop_over_lines_keeps_its_lines() {
    let home = Home::new();
    let model = home.model();
    let script = "while read line; do \"$0\" run -q -m \"$1\" --greedy -n 2 \"$line\" >/dev/null; echo \"$line\"; done";
    let usual = home.command(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.args(["-c", script, env!("CARGO_BIN_EXE_kvant"), &model]).current_dir(home.path(""));
    let lines = std::fs::File::open(home.write("lines.txt", b"one\ntwo\nthree\n")).unwrap();
    let run = Run::of(shell.stdin(lines).output().unwrap());
    assert_eq!(run.out, "one\ntwo\nthree\n", "{run:?}");
}
