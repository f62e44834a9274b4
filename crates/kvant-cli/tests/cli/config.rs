//! `KVANT_MODEL` and the configuration file.

use crate::support::{Home, Run};

#[test]
fn the_model_comes_from_the_flag_the_variable_or_the_file() {
    let home = Home::new();
    let model = home.model();
    let run = |variable: Option<&str>, words: &[&str]| {
        let mut command = home.command(&[&["run", "--json", "-n", "1"], words].concat());
        variable.iter().for_each(|value| {
            command.env("KVANT_MODEL", value);
        });
        Run::of(command.output().unwrap())
    };
    assert_eq!(run(Some(&model), &["hi"]).json()["model"], model);
    run(Some("nowhere.gguf"), &["hi"]).fails(1, &["nowhere.gguf"]);
    assert_eq!(run(Some("nowhere.gguf"), &["-m", &model, "hi"]).json()["model"], model);
    assert_eq!(run(Some("nowhere.gguf"), &[&model, "hi"]).json()["model"], model);
    home.write("config.toml", format!("model = {model:?}\nctx = 64\nseed = 1\n").as_bytes());
    let told = run(None, &["hi"]).json();
    assert_eq!((&told["model"], &told["context"]["size"]), (&model.as_str().into(), &64.into()));
    assert_eq!(run(None, &["--ctx", "128", "hi"]).json()["context"]["size"], 128);
    run(Some("nowhere.gguf"), &["hi"]).fails(1, &["nowhere.gguf"]);
}

#[test]
fn a_preset_is_chosen_by_flag_or_as_a_model() {
    let home = Home::new();
    let model = home.model();
    let config = format!(
        "[presets.brief]\nmodel = {model:?}\nsystem = 'be brief'\ntemperature = 0\nmax_tokens = 3\nctx = '1k'\nkv = 'int8'\n"
    );
    home.write("config.toml", config.as_bytes());
    let run = |words: &[&str]| home.run(&[&["run", "--json"], words].concat());
    let told = run(&["brief", "hi"]).json();
    assert_eq!((&told["model"], &told["kv"]["spec"]), (&model.as_str().into(), &"int8".into()));
    assert_eq!((told["tokens"].as_array().unwrap().len(), &told["context"]["size"]), (3, &1024.into()));
    assert_eq!(run(&["--preset", "brief", "hi"]).json()["tokens"], told["tokens"]);
    assert_eq!(run(&["brief", "-n", "2", "--kv", "f16", "hi"]).json()["kv"]["spec"], "f16");
    run(&["--preset", "long", "hi"]).fails(2, &["--preset long", "brief"]);
    let chat = home.run_with_input(&["chat", "brief", "-q"], b"/system\n");
    assert!(chat.err.contains("be brief"), "{chat:?}");
    home.write("config.toml", b"modell = 'x'");
    run(&["-m", &model, "hi"]).fails(1, &["config.toml", "modell"]);
}
