//! `kvant run`.

use crate::lora::adapter_bytes;
use crate::support::{Home, Run, model_bytes};
use std::io::Read;
use std::process::Stdio;

#[test]
fn a_prompt_gives_text_and_one_closing_line() {
    let home = Home::new();
    let model = home.model();
    let run = home.run(&["run", "-m", &model, "-n", "12", "--seed", "3", "hello there"]);
    for word in
        ["prefill", "decode 11", "tokens/s", "of 512", "KV int4", "recent tokens are exact", "at 512 (f16: "]
    {
        assert!(run.err.contains(word), "{word} in {}", run.err);
    }
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    let text = run.ok();
    assert!(text.trim().len() > 3 && text.ends_with('\n'), "{text:?}");
    // One token has no speed.
    let one = home.run(&["run", "-m", &model, "-n", "1", "--seed", "3", "hello there"]);
    assert!(
        one.err.contains("decode 0, cut off by -n, context") && !one.err.contains("- tokens/s"),
        "{}",
        one.err
    );
    let quiet = home.run(&["run", "-q", "-m", &model, "-n", "12", "--seed", "3", "hello there"]);
    assert_eq!((quiet.err.as_str(), quiet.out.as_str()), ("", text.as_str()));
}

#[test]
fn seeded_runs_repeat_exactly_whatever_the_threads() {
    let home = Home::new();
    let model = home.model();
    let run = |seed: &str, threads: &str| {
        let arguments = ["run", "-m", &model, "--temperature", "1.5", "--top-k", "0", "--top-p", "1"];
        let rest = ["--min-p", "0", "-n", "40", "--seed", seed, "--threads", threads, "tell me"];
        home.run(&[&arguments[..], &rest].concat()).ok()
    };
    let first = run("5", "1");
    assert_eq!(first, run("5", "1"));
    assert_eq!(first, run("5", "2"));
    assert_ne!(first, run("6", "1"));
}

#[test]
fn json_holds_what_the_text_shows_and_its_seed_repeats_the_run() {
    let home = Home::new();
    let model = home.model();
    let run = home.run(&["run", "--json", "-m", &model, "-n", "20", "what is this"]);
    assert_eq!(run.err, "");
    let first = run.json();
    assert_eq!(first["finish"], "max_tokens");
    assert_eq!(first["tokens"].as_array().unwrap().len(), 20);
    assert_eq!(first["decode"]["tokens"], 19);
    assert_eq!(first["context"]["size"], 512);
    assert_eq!(first["kv"]["spec"], "int4");
    // Too short for a page: all of it is exact, in f16.
    assert_eq!(first["kv"]["bytes"], first["kv"]["f16_bytes"]);
    let used = first["context"]["used"].as_u64().unwrap();
    assert_eq!(used, first["prefill"]["tokens"].as_u64().unwrap() + 19);
    // 2 layers, 2 kv heads of 16 channels, keys and values, 2 bytes.
    assert_eq!(first["kv"]["bytes"].as_u64().unwrap(), used * 2 * 2 * 16 * 2 * 2);
    assert!(first["seed"].as_u64().unwrap() < 1 << 53, "a double holds it");
    let seed = first["seed"].to_string();
    let again =
        home.run(&["run", "--json", "-m", &model, "-n", "20", "--seed", &seed, "what is this"]).json();
    assert_eq!((&again["text"], &again["tokens"]), (&first["text"], &first["tokens"]));
    let exact = home.run(&["run", "--json", "--kv", "f32", "-m", &model, "-n", "20", "what is this"]).json();
    assert_eq!(exact["kv"]["spec"], "f32");
    assert_eq!(exact["kv"]["bytes"].as_u64().unwrap(), 2 * exact["kv"]["f16_bytes"].as_u64().unwrap());
}

#[test]
fn logprobs_tell_every_token_and_change_none() {
    let home = Home::new();
    let model = home.model();
    let run = |more: &[&str]| {
        let usual = ["run", "--greedy", "-q", "-m", &model, "-n", "12", "what is this"];
        home.run(&[&usual[..], more].concat())
    };
    let (plain, told) = (run(&["--json"]).json(), run(&["--json", "--logprobs=3"]).json());
    assert_eq!((&plain["tokens"], &plain["logprobs"]), (&told["tokens"], &serde_json::Value::Null));
    let (tokens, entries) = (told["tokens"].as_array().unwrap(), told["logprobs"].as_array().unwrap());
    assert_eq!(tokens.len(), entries.len());
    for (token, entry) in tokens.iter().zip(entries) {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((&entry["id"], &top[0]["id"], top.len()), (token, token, 3), "{entry}");
        assert_eq!(entry["logprob"], top[0]["logprob"]);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    let lines = run(&["--logprobs"]).ok();
    let rows = lines.lines().filter(|line| line.contains(" %")).count();
    assert_eq!(rows, tokens.len(), "{lines}");
    run(&["--logprobs=21"]).fails(2, &["--logprobs"]);
}

#[test]
fn a_bias_makes_a_token_sure_or_impossible() {
    let home = Home::new();
    let model = home.model();
    let run = |more: &[&str]| {
        let usual = ["run", "--raw", "--greedy", "--json", "-m", &model, "-n", "4", "abc"];
        home.run(&[&usual[..], more].concat())
    };
    let usual = run(&[]).json()["tokens"].clone();
    let first = usual[0].as_u64().unwrap();
    let never = run(&["-l", &format!("{first}-inf")]).json()["tokens"].clone();
    assert!(never.as_array().unwrap().iter().all(|token| token.as_u64() != Some(first)), "{never}");
    let other = never[0].as_u64().unwrap();
    let always = run(&["--logit-bias", &format!("{other}+100")]).json()["tokens"].clone();
    assert_eq!(always, serde_json::json!(vec![other; 4]));
    run(&["-l", "seven"]).fails(2, &["`seven`", "15043+1.5"]);
}

#[test]
fn rotary_settings_of_llama_cpp_are_obeyed_and_shown() {
    let home = Home::new();
    let model = home.model();
    let run = |more: &[&str]| {
        let usual = [
            "run",
            "--raw",
            "--greedy",
            "--logprobs",
            "--json",
            "-m",
            &model,
            "-n",
            "8",
            "the sea and the land",
        ];
        home.run(&[&usual[..], more].concat())
    };
    let own = run(&[]).json()["logprobs"].clone();
    // The file's own base, and a scale of nothing.
    assert_eq!(run(&["--rope-freq-base", "1000000", "--rope-scale", "1"]).json()["logprobs"], own);
    let yarn = ["--rope-scaling", "yarn", "--rope-freq-scale", "0.25", "--yarn-orig-ctx", "128"];
    let changed = run(&yarn);
    assert!(changed.err.contains("scaling yarn, factor 4, original context 128"), "{}", changed.err);
    assert_ne!(changed.json()["logprobs"], own);
    run(&["--yarn-beta-fast", "16"]).fails(1, &["add --rope-scaling yarn"]);
    run(&["--rope-scaling", "ntk"]).fails(2, &["none, linear, yarn"]);
    for command in [&["inspect", &model][..], &["doctor", "-m", &model]] {
        let shown = home.run(&[command, &["--rope-scale", "2"]].concat()).ok();
        assert!(shown.contains("factor 2; not the file's own"), "{shown}");
    }
}

/// A page once counted whole slots, and a short talk looked larger than in f16.
#[test]
fn a_cache_is_never_larger_than_the_same_numbers_in_f16() {
    let home = Home::new();
    let model = home.model();
    for count in ["1", "40", "300"] {
        let run = home.run(&["run", "--json", "--raw", "--greedy", "-n", count, "-m", &model, "abc"]).json();
        let bytes = |name: &str| run["kv"][name].as_u64().unwrap();
        assert!(bytes("bytes") <= bytes("f16_bytes"), "{run}");
        assert_eq!(bytes("f16_bytes"), run["context"]["used"].as_u64().unwrap() * 256, "{run}");
    }
}

#[test]
fn stdin_is_a_prompt_like_any_other() {
    let home = Home::new();
    let model = home.model();
    let arguments = ["run", "--greedy", "-n", "10", "-m", &model];
    let given = home.run(&[&arguments[..], &["some words"]].concat()).ok();
    assert_eq!(home.run_with_input(&arguments, b"some words\n").ok(), given);
    assert_eq!(home.run_with_input(&[&arguments[..], &["-"]].concat(), b"some words\r\n").ok(), given);
    home.run_with_input(&arguments, b"\xff\xfe").fails(1, &["stdin", "UTF-8"]);
}

#[test]
fn a_prompt_files_and_stdin_are_joined_by_blank_lines() {
    let home = Home::new();
    let model = home.model();
    home.write("words.txt", b"from a file\n");
    let run = |words: &[&str], input: &[u8]| {
        let usual = ["run", "--greedy", "-q", "-n", "10", "-m", &model];
        home.run_with_input(&[&usual[..], words].concat(), input).ok()
    };
    let whole = run(&["say it:\n\nfrom a file\n\nfrom a pipe"], b"");
    assert_eq!(run(&["say it:", "-f", "words.txt", "-f", "-"], b"from a pipe\n"), whole);
    assert_eq!(run(&["-p", "say it:", "-f", "words.txt", "-f", "-"], b"from a pipe"), whole);
    assert_eq!(run(&["-f", "words.txt"], b""), run(&["from a file"], b""));
    assert_ne!(run(&["say it:", "-f", "-"], b"from a pipe"), run(&["say it:"], b""));
    home.run(&["run", "-m", &model, "-f", "none.txt"]).fails(1, &["-f none.txt"]);
}

#[cfg(unix)]
#[test]
fn stdin_is_left_alone_where_there_is_a_prompt() {
    let home = Home::new();
    let model = home.model();
    let usual = ["run", "--greedy", "-n", "4", "-m", &model, "hi"];
    let given = home.run(&usual).ok();
    let unread = home.run_with_input(&usual, b"from a pipe\n");
    assert!(unread.err.contains("`-f -` adds it to the prompt"), "{unread:?}");
    assert_eq!(unread.ok(), given);
    // A pipe that nobody closes does not hold the answer up.
    let mut command = home.command(&usual);
    let (_open, idle) = std::os::unix::net::UnixStream::pair().unwrap();
    command.stdin(std::os::fd::OwnedFd::from(idle));
    assert_eq!(Run::of(command.output().unwrap()).ok(), given);
}

#[test]
fn values_may_begin_with_a_hyphen() {
    let home = Home::new();
    let model = home.model();
    let run =
        |words: &[&str]| home.run(&[&["run", "--greedy", "-q", "-n", "4", "-m", &model], words].concat());
    assert_eq!(run(&["-p", "- item"]).ok(), run(&["-p=- item"]).ok());
    assert_eq!(run(&["--system", "- be brief", "hi"]).ok(), run(&["--system=- be brief", "hi"]).ok());
    // A number out of range is refused as such.
    run(&["-c", "-5", "hi"]).fails(2, &["invalid number of tokens `-5`"]);
    run(&["--top-k", "-5", "hi"]).fails(2, &["`-5` is not a whole number from 0"]);
    // Also where the flag takes no number below zero.
    let tune = home.run(&["tune", "--kl", "-1", &model]);
    assert!(!tune.err.contains("-- -1"), "{tune:?}");
    tune.fails(2, &["--kl -1: ask for a number from"]);
    home.run(&["bench", "-t", "-2", &model]).fails(2, &["invalid value '-2' for '--threads"]);
}

#[test]
fn what_people_type_is_understood() {
    let home = Home::new();
    let model = home.model();
    let run = |words: &[&str]| home.run(&[&["run", "-q", "-m", &model], words].concat());
    let usual = run(&["--greedy", "--ctx", "64", "-n", "6", "hi"]).ok();
    assert_eq!(run(&["--temp", "0", "-c", "64", "--n-predict", "6", "hi"]).ok(), usual);
    assert_eq!(run(&["--temp", "0", "--ctx-size", "64", "-n", "6", "-s", "-1", "-p", "hi"]).ok(), usual);
    let told = run(&["--temp", "0", "-c", "64", "-n", "6", "-ngl", "99", "-fa", "on", "--jinja", "hi"]);
    assert!(told.err.contains("--gpu-layers: --device cpu"), "{told:?}");
    for layers in ["0", "-1", "all", "auto"] {
        let same = run(&["--temp", "0", "-c", "64", "-n", "6", "-ngl", layers, "hi"]);
        assert_eq!(same.ok(), usual, "-ngl {layers}");
    }
    assert_eq!(told.ok(), usual);
    let ended = run(&["--temp", "0", "-c", "64", "-n", "-1", "hi"]);
    assert!(ended.err.contains("the context of 64 tokens is full"), "{ended:?}");
    let kv =
        |words: &[&str]| run(&[words, &["--json", "-n", "1", "hi"]].concat()).json()["kv"]["spec"].clone();
    assert_eq!(kv(&["-ctk", "q8_0", "-ctv", "q4_0"]), "k8v4");
    assert_eq!(kv(&["-ctk", "q4_0", "-ctv", "q4_0"]), "int4");
    run(&["-ctk", "q3_k", "hi"]).fails(2, &["-ctk q3_k", "--kv list"]);
    let system = run(&["--json", "-n", "1", "-sys", "be brief", "hi"]).json();
    assert!(
        system["prefill"]["tokens"].as_u64()
            > run(&["--json", "-n", "1", "hi"]).json()["prefill"]["tokens"].as_u64()
    );
    assert_eq!(
        run(&["--json", "-c", "0", "-n", "1", "hi"]).json()["context"]["size"],
        512,
        "the model's own"
    );
    assert_eq!(run(&["--json", "--ctx", "1k", "-n", "1", "hi"]).json()["context"]["size"], 1024);
}

#[test]
fn flags_of_other_programs_are_obeyed_or_ignored_in_one_line() {
    let home = Home::new();
    let model = home.model();
    let run =
        |words: &[&str]| home.run(&[&["run", "-q", "-m", &model, "--greedy", "-n", "6"], words].concat());
    let usual = run(&["hi"]).ok();
    let ignored = [
        "-b 512",
        "-ub 256",
        "--no-mmap",
        "--color",
        "--keep 4",
        "--context-shift",
        "--chat-template chatml",
        "--n-cpu-moe 4",
        "-ncmoe 4",
        "-ot exps=CPU",
        "--draft-max 8",
        "--draft 8",
        "--control-vector a.gguf",
        "--keepalive 5m",
    ];
    for flags in ignored {
        let words: Vec<&str> = flags.split(' ').chain(["hi"]).collect();
        let told = run(&words);
        assert_eq!(told.err.lines().count(), 1, "{flags}: {told:?}");
        assert!(told.err.starts_with("note: --") && told.err.contains("ignored"), "{flags}: {told:?}");
        assert_eq!(told.ok(), usual, "{flags}");
    }
    for silent in
        ["--no-warmup", "-st", "--verbose", "-v", "--hidethinking", "--reasoning-budget 0", "--jinja"]
    {
        let words: Vec<&str> = silent.split(' ').chain(["hi"]).collect();
        let told = run(&words);
        assert!(!told.err.contains("error") && told.ok() == usual, "{silent}");
    }
    assert_eq!(run(&["-e", "-p", "a\\nb\\q"]).ok(), run(&["-p", "a\nb\\q"]).ok());
    run(&["--prompt-cache", "talk.kvant", "hi"]).ok();
    assert!(home.path("talk.kvant").exists());
    let single =
        home.run_with_input(&["chat", "-q", "-m", &model, "--greedy", "-n", "6", "-st"], b"hi\nmore\n").ok();
    assert_eq!(single, usual);
}

#[test]
fn an_answer_can_be_bound_to_a_schema_or_a_grammar() {
    let home = Home::new();
    let model = home.model();
    let run = |words: &[&str]| home.run(&[&["run", "-q", "-m", &model, "--seed", "2", "hi"], words].concat());
    let schema = r#"{"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}"#;
    let given = run(&["--json-schema", schema]).ok();
    let list: Vec<String> = serde_json::from_str(&given).unwrap();
    assert!((1..=3).contains(&list.len()), "{given}");
    home.write("schema.json", schema.as_bytes());
    assert_eq!(run(&["--json-schema", "schema.json"]).ok(), given);
    let word = run(&["--grammar", "start: \"yes\" | \"no\""]).ok();
    assert!(["yes\n", "no\n"].contains(&word.as_str()), "{word}");
    // What is cut off is no JSON, and said to be none, also where nothing else is.
    let cut = run(&["--json-schema", schema, "-n", "2"]);
    assert!(serde_json::from_str::<serde_json::Value>(&cut.out).is_err(), "{cut:?}");
    assert!(cut.err.contains("the answer is incomplete"), "{cut:?}");
    assert_eq!(run(&["--json-schema", schema, "-n", "2", "--json"]).json()["truncated"], true);
    let object = run(&["--format", "json", "-n", "400"]).out;
    assert!(
        serde_json::from_str::<serde_json::Value>(&object).is_ok_and(|value| value.is_object()),
        "{object}"
    );
    run(&["--json-schema", "{nonsense"])
        .fails(1, &["--json-schema", "neither an existing file nor valid JSON"]);
    assert_eq!(run(&["--grammar", "root ::= x \"b\"\nx ::= \"a\""]).ok(), "ab\n");
    home.write("rules.gbnf", b"# two words\nroot ::= \"so\" | \"no\"\n");
    let word = run(&["--grammar-file", "rules.gbnf"]).ok();
    assert!(["so\n", "no\n"].contains(&word.as_str()), "{word}");
    run(&["--grammar", "root ::= \"a\" |\nroot ::= b"]).fails(1, &["--grammar: line"]);
}

#[test]
fn tools_are_offered_to_the_model() {
    let home = Home::new();
    let model = home.model();
    let tools =
        r#"[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]"#;
    let run = |model: &str, tools: &str| {
        home.run(&["run", "-m", model, "-n", "4", "--json", "--tools", tools, "hi"])
    };
    run(&model, "{nonsense").fails(2, &["--tools", "OpenAI's form"]);
    run(&model, "none.json").fails(1, &["none.json: no such file"]);
    home.write("tools.json", tools.as_bytes());
    let with = run(&model, "tools.json").json();
    assert_eq!(with["tool_calls"], serde_json::json!([]), "{with}");
    let without = home.run(&["run", "-m", &model, "-n", "4", "--json", "hi"]).json();
    assert!(with["prefill"]["tokens"].as_u64() > without["prefill"]["tokens"].as_u64(), "{with}");
}

#[test]
fn another_chat_template_takes_the_place_of_the_models_own() {
    let home = Home::new();
    let model = home.model();
    let base = home.write("base.gguf", &model_bytes(false));
    home.write("t.jinja", b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:");
    let tokens = |model: &str, more: &[&str]| {
        let run = home.run(&[&["run", "--json", "-n", "1", "-m", model, "hi"], more].concat());
        run.json()["prefill"]["tokens"].as_u64()
    };
    let own = tokens(&model, &[]);
    assert_ne!(tokens(&model, &["--chat-template", "t.jinja"]), own);
    assert_eq!(
        tokens(&base, &["--chat-template", "t.jinja"]),
        tokens(&model, &["--chat-template", "t.jinja"])
    );
    home.write("bad.jinja", b"{% for %}");
    let run = |file: &str| home.run(&["run", "-m", &model, "--chat-template", file, "hi"]);
    run("bad.jinja").fails(1, &["--chat-template", "not valid"]);
    run("none.jinja").fails(1, &["--chat-template none.jinja", "Jinja"]);
}

#[test]
fn chat_models_get_their_template_unless_raw_is_asked_for() {
    let home = Home::new();
    let instruct = home.model();
    let base = home.write("base.gguf", &model_bytes(false));
    let prefill = |arguments: &[&str]| {
        let usual = ["run", "--json", "--greedy", "-n", "1", "word"];
        home.run(&[&usual[..], arguments].concat()).json()["prefill"]["tokens"].as_u64().unwrap()
    };
    let raw = prefill(&["-m", &base]);
    assert_eq!(prefill(&["-m", &instruct, "--raw"]), raw);
    let chat = prefill(&["-m", &instruct]);
    assert!(chat > raw);
    assert!(prefill(&["-m", &instruct, "--system", "be brief"]) > chat);
    home.run(&["run", "--chat", "-m", &base, "word"]).fails(1, &["no chat template"]);
    home.run(&["run", "--chat", "--raw", "-m", &base, "word"]).fails(2, &["--raw", "--chat"]);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let home = Home::new();
    let model = home.model();
    let usual = ["run", "--json", "--raw", "--seed", "1", "-n", "60", "-m", &model, "a"];
    let whole = home.run(&usual).json()["text"].as_str().unwrap().to_owned();
    let middle: String = whole.chars().skip(7).take(3).collect();
    let cut = home.run(&[&usual[..], &["--stop", &middle]].concat()).json();
    assert_eq!(cut["finish"], "stop");
    assert_eq!(cut["finish_detail"], middle);
    let at = whole.find(&middle).unwrap();
    assert_eq!(cut["text"], whole[..at]);
}

#[test]
fn a_full_context_is_a_clear_end() {
    let home = Home::new();
    let model = home.model();
    let usual = ["run", "--raw", "--seed", "1", "--ctx", "16", "-m", &model];
    let run = home.run(&[&usual[..], &["abc"]].concat());
    assert!(run.err.contains("the context of 16 tokens is full"), "{}", run.err);
    run.ok();
    let json = home.run(&[&usual[..], &["--json", "abc"]].concat()).json();
    assert_eq!((&json["finish"], &json["context"]["used"]), (&"context_full".into(), &16.into()));
    let long = "x ".repeat(40);
    home.run(&[&usual[..], &[&long]].concat()).fails(1, &["tokens", "context holds 16", "--ctx 256"]);
}

#[test]
fn bad_arguments_are_refused_before_anything_runs() {
    let home = Home::new();
    let model = home.model();
    let with = |arguments: &[&str]| home.run(&[&["run", "-m", &model, "hi"], arguments].concat());
    with(&["--kv", "klt"]).fails(1, &["klt", "plan"]);
    with(&["--kv", "int4;layers 0-9:k=f16"]).fails(1, &["layers 0-9:k=f16", "there are only 2"]);
    with(&["--kv", "int4;layers x:k=f16"]).fails(2, &["a number is needed here"]);
    with(&["--kv", "nonsense"]).fails(2, &["nonsense"]);
    with(&["--ctx", "1000000000000"]).fails(1, &["does not fit", "the largest that fits is --ctx"]);
    with(&["--ctx", "many"]).fails(2, &["--ctx", "32k"]);
    with(&["--temperature", "-1"]).fails(2, &[]);
    with(&["--top-p", "0"]).fails(2, &["top_p", "above 0"]);
    home.run(&["run", "-m", &model, ""]).fails(2, &["prompt is empty"]);
    home.run_with_input(&["run", "-m", &model], b"\n").fails(2, &["prompt is empty"]);
    home.run(&["doctor", "-m", "nonsense"]).fails(1, &["nonsense"]);
    with(&["--weights", "int3"]).fails(2, &["int8", "int4"]);
    with(&["--activations", "int4"]).fails(2, &["int8", "f32"]);
    with(&["--threads", "0"]).fails(2, &["--threads"]);
    for tau in ["0", "1", "-0.1", "nan", "some"] {
        with(&[&format!("--sparse-v={tau}")]).fails(2, &["--sparse-v", "above 0 and below 1"]);
    }
    with(&["--state", "fp8"]).fails(2, &["--state", "f32, bf16 or int8"]);
    home.run(&["run", "-m", "no-such-file.gguf", "hi"]).fails(1, &["no-such-file.gguf", "no such file"]);
    home.run(&["run", "-m", "not a name", "hi"]).fails(1, &["not a name", "org/repo"]);
    let broken = home.write("broken.gguf", &model_bytes(true)[..5000]);
    home.run(&["run", "-m", &broken, "hi"]).fails(1, &["broken.gguf"]);
    let text = home.write("text.gguf", b"this is no model");
    home.run(&["run", "-m", &text, "hi"]).fails(1, &["text.gguf"]);
    let forced = home.command(&["run", "-m", &model, "hi"]).env("KVANT_SIMD", "mmx").output().unwrap();
    assert_eq!(forced.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&forced.stderr).contains("KVANT_SIMD=mmx"));
}

#[test]
fn values_that_cannot_count_may_be_left_out() {
    let home = Home::new();
    let model = home.model();
    let usual = ["run", "--json", "--greedy", "--raw", "-n", "200", "-m", &model, "abc"];
    let plain = home.run(&usual).json();
    let tiny = home.run(&[&usual[..], &["--sparse-v", "1e-12"]].concat()).json();
    assert_eq!(plain["tokens"], tiny["tokens"]);
    let large = home.run(&[&usual[..], &["--sparse-v", "0.9"]].concat()).json();
    assert_ne!(plain["tokens"], large["tokens"], "nothing was left out");
}

#[test]
fn weights_can_be_packed_and_pinned() {
    let home = Home::new();
    let model = home.model();
    let usual = ["run", "--json", "--greedy", "--raw", "-n", "8", "-m", &model, "abc"];
    for packed in ["int8", "int4"] {
        let run = home.run(&[&usual[..], &["--weights", packed, "--activations", "f32"]].concat());
        assert_eq!(run.json()["tokens"].as_array().unwrap().len(), 8);
    }
    // Weights, keys and values. Where the limit on locked memory is low this is refused, in words.
    let pinned = home.run(&[&usual[..], &["--mlock"]].concat());
    match pinned.code {
        Some(0) => assert_eq!(pinned.json()["tokens"], home.run(&usual).json()["tokens"]),
        _ => pinned.fails(1, &["cannot pin", "ulimit -l"]),
    }
}

#[test]
fn types_without_kernels_are_named_as_slow() {
    let home = Home::new();
    let shape =
        "--layers 1 --hidden 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 256 --vocab 300 --ctx 256";
    let shape: Vec<&str> = shape.split(' ').collect();
    home.run(&[&["synth", "f16.gguf", "--weights", "f16"], &shape[..]].concat()).ok();
    let run = |model: &str| home.run(&["run", "-m", model, "--raw", "--greedy", "-n", "2", "It was"]);
    assert!(!run("f16.gguf").err.contains("slow"), "f16 has kernels");
    let mut file = std::fs::read(home.path("f16.gguf")).unwrap();
    as_iq2_xs(&mut file, "blk.0.ffn_down.weight");
    home.write("iq2.gguf", &file);
    let told = run("iq2.gguf");
    for words in ["weights in IQ2_XS have no kernels on the CPU", "slow", "kvant convert"] {
        assert!(told.err.contains(words), "{words}: {told:?}");
    }
    told.ok();
}

/// Takes a matrix of half floats for one in IQ2_XS, which fits into its place. Half floats are scales there, so its numbers are finite.
fn as_iq2_xs(file: &mut [u8], tensor: &str) {
    const F16: u32 = 1;
    const IQ2_XS: u32 = 17;
    let at = file.windows(tensor.len()).position(|bytes| bytes == tensor.as_bytes()).unwrap() + tensor.len();
    // The number of extents, two extents, and the type.
    let kind = at + 4 + 2 * 8;
    assert_eq!(file[kind..kind + 4], F16.to_le_bytes());
    file[kind..kind + 4].copy_from_slice(&IQ2_XS.to_le_bytes());
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let home = Home::new();
    let model = home.model();
    let mut child = home
        .command(&["run", "-m", &model, "--raw", "--seed", "1", "-n", "400", "abc"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 4]).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{stderr}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn devices_are_named_and_a_build_without_one_says_how_to_get_it() {
    let home = Home::new();
    let model = home.model();
    home.run(&["run", "-m", &model, "--device", "tpu", "hi"])
        .fails(2, &["tpu", "auto, cpu, cuda, cuda:N and gpu"]);
    let json = home.run(&["run", "-m", &model, "--device", "cpu", "--json", "-n", "2", "hi"]).json();
    assert_eq!(json["device"], "cpu");
    // The variable is what counts where no flag and no preset says otherwise.
    let by_variable = |name: &str| {
        let mut command = home.command(&["run", "-m", &model, "--json", "-n", "2", "hi"]);
        Run::of(command.env("KVANT_DEVICE", name).output().unwrap())
    };
    assert_eq!(by_variable("cpu").json()["device"], "cpu");
    by_variable("tpu").fails(2, &["KVANT_DEVICE", "tpu", "auto, cpu, cuda, cuda:N and gpu"]);
    if !kvant_engine::device::IS_BUILT {
        let how = &["built without GPU support", "`gpu`, `cuda`"];
        home.run(&["run", "-m", &model, "--device", "gpu", "hi"]).fails(1, how);
        home.run(&["run", "-m", &model, "--device", "cuda:1", "hi"]).fails(1, how);
        home.run(&["bench", &model, "--device", "gpu"]).fails(1, how);
        assert!(home.run(&["doctor"]).ok().contains("built without GPU support"));
    }
}

#[test]
fn lora_adapters_are_applied_weighed_and_kept_with_sessions() {
    let home = Home::new();
    let model = home.model();
    let [style, tone] = [1, 2].map(|seed| home.write(&format!("style{seed}.gguf"), &adapter_bytes(seed)));
    let run = |words: &[&str]| {
        home.run(&[&["run", "-q", "-m", &model, "--greedy", "-n", "12"], words, &["hello there"]].concat())
    };
    let half = format!("{style}:0.5");
    let (plain, adapted) = (run(&[]).ok(), run(&["--lora", &style]).ok());
    assert_ne!(plain, adapted);
    assert_eq!(run(&["--lora", &format!("{style}:0")]).ok(), plain);
    assert_eq!(run(&["--lora-scaled", &style, "0.5"]).ok(), run(&["--lora", &half]).ok());
    let both = run(&["--lora", &style, "--lora", &tone]).ok();
    assert_eq!(run(&["--lora", &format!("{style},{tone}")]).ok(), both);
    assert!(both != adapted && both != plain);
    let saved = ["--session", "talk.kvant"];
    run(&[&["--lora", half.as_str()], &saved[..]].concat()).ok();
    run(&saved).fails(1, &["talk.kvant", "read with LoRA style1:0.5"]);
    run(&["--lora", "none.gguf"]).fails(1, &["none.gguf", "cannot open the adapter"]);
    run(&["--lora", &model]).fails(1, &["model.gguf", "is not a LoRA adapter"]);
    run(&["--lora", ":1"]).fails(2, &["FILE:SCALE"]);
    run(&["--lora-scaled", &style, "much"]).fails(2, &["SCALE is not a number"]);
    // A name is for requests: here it says nothing.
    assert_eq!(run(&["--lora", &format!("french={style}")]).ok(), adapted);
    let twice = format!("french={style},french={tone}");
    home.run(&["serve", "-m", &model, "--port", "0", "--lora", &twice])
        .fails(2, &["--lora", "two things are called french"]);
}
