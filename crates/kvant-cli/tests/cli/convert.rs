//! `kvant convert`, from a file, from a folder, and where it refuses.

use crate::support::Home;
use std::fs;
use std::path::Path;

const SHAPE: &str =
    "--layers 2 --hidden 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96 --vocab 300 --ctx 256";

/// A model of random weights in half precision.
fn source(home: &Home) {
    let shape: Vec<&str> = SHAPE.split(' ').collect();
    home.run(&[&["synth", "f16.gguf", "--weights", "f16"], &shape[..]].concat()).ok();
}

fn folder(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    fixtures.join(name).display().to_string()
}

#[test]
fn a_converted_file_runs_like_any_other() {
    let home = Home::new();
    source(&home);
    for (weights, stored) in [("int4", "Q4_0"), ("q8_0", "Q8_0"), ("mxfp4", "MXFP4")] {
        let name = format!("{weights}.gguf");
        let said = home.run(&["convert", "f16.gguf", "-o", &name, "--weights", weights]).ok();
        assert!(said.starts_with(&name) && said.contains("bits per weight"), "{said}");
        let about = home.run(&["inspect", &name]).ok();
        assert!(about.contains(stored), "{about}");
        let reply =
            home.run(&["run", "-m", &name, "--json", "--greedy", "-n", "8", "It was the best"]).json();
        assert!(reply["decode"]["tokens"].as_u64().unwrap() > 0);
    }
}

#[test]
fn calibration_shows_divergence_before_and_after_and_leaves_one_file() {
    let home = Home::new();
    source(&home);
    let before = fs::read_dir(home.path("")).unwrap().count();
    let said = home.run(&["convert", "f16.gguf", "-o", "x.gguf", "--calibrate", "--tokens", "1024"]).ok();
    for words in ["KL divergence from the source", "plain rounding", "weighted", "×"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(fs::read_dir(home.path("")).unwrap().count(), before + 1);
}

#[test]
fn a_mix_is_weighed_by_an_importance_matrix_and_warned_of_when_it_is_rounded_again() {
    let home = Home::new();
    let shape =
        "--layers 2 --hidden 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 256 --vocab 300 --ctx 256";
    let shape: Vec<&str> = shape.split(' ').collect();
    home.run(&[&["synth", "f16.gguf", "--weights", "f16"], &shape[..]].concat()).ok();
    let said = home.run(&["calibrate", "f16.gguf", "--imatrix", "seen.gguf", "--tokens", "1024"]).ok();
    assert!(said.contains("matrices"), "{said}");
    let convert = |output: &str, more: &[&str]| {
        home.run(&[&["convert", "f16.gguf", "-o", output, "--weights", "q4_k_m"], more].concat())
    };
    assert!(!convert("plain.gguf", &[]).err.contains("already quantized"));
    let weighed = convert("weighed.gguf", &["--imatrix", "seen.gguf"]);
    assert!(weighed.code == Some(0) && !weighed.err.contains("has no effect"), "{weighed:?}");
    assert_ne!(fs::read(home.path("plain.gguf")).unwrap(), fs::read(home.path("weighed.gguf")).unwrap());
    let about = home.run(&["inspect", "weighed.gguf"]).ok();
    for words in ["Q4_K_M", "Q4_K ", "Q6_K "] {
        assert!(about.contains(words), "{words}: {about}");
    }
    let reply = home.run(&["run", "-m", "weighed.gguf", "--json", "--greedy", "-n", "4", "It was"]).json();
    assert!(reply["decode"]["tokens"].as_u64().unwrap() > 0);
    let again = home.run(&["convert", "weighed.gguf", "-o", "again.gguf", "--weights", "q8_0"]);
    assert!(again.code == Some(0) && again.err.contains("already quantized"), "{again:?}");
    convert("x.gguf", &["--imatrix", "plain.gguf"]).fails(1, &["plain.gguf: not an importance matrix"]);
}

#[test]
fn a_folder_becomes_gguf_or_another_folder() {
    let home = Home::new();
    let said = home.run(&["convert", &folder("llama"), "-o", "llama.gguf", "--weights", "int8"]).ok();
    assert!(said.contains("llama.gguf"), "{said}");
    home.run(&["convert", &folder("lfm2"), "-o", "packed/model.safetensors"]).ok();
    let about = home.run(&["inspect", "packed"]).ok();
    assert!(about.contains("lfm2"), "{about}");
}

#[test]
fn a_file_becomes_a_folder_that_runs() {
    let home = Home::new();
    source(&home);
    home.run(&["convert", "f16.gguf", "-o", "folder", "--to", "safetensors", "--weights", "f16"]).ok();
    assert!(home.path("folder/config.json").exists());
    let reply = |model: &str| {
        home.run(&["run", "-m", model, "--json", "--greedy", "-n", "8", "It was the best"]).json()
    };
    assert_eq!(reply("f16.gguf")["text"], reply("folder")["text"]);
}

#[test]
fn refusals_say_what_to_do() {
    let home = Home::new();
    source(&home);
    let convert = |more: &[&str]| home.run(&[&["convert", "f16.gguf", "-o"], more].concat());
    convert(&["x.bin"]).fails(2, &["--to"]);
    convert(&["x.gguf", "--weights", "q5_x"]).fails(2, &["q5_x", "q4_k"]);
    convert(&["x.safetensors", "--weights", "q4_k"]).fails(1, &["q4_k", "int8"]);
    home.write("there.gguf", b"precious");
    convert(&["there.gguf"]).fails(1, &["there.gguf: already exists", "--force"]);
    assert_eq!(fs::read(home.path("there.gguf")).unwrap(), b"precious");
    convert(&["there.gguf", "--force"]).ok();
    assert_ne!(fs::read(home.path("there.gguf")).unwrap(), b"precious");
    home.run(&["convert", &folder("gpt_oss"), "-o", "x.gguf"]).fails(1, &["clamp", "--to safetensors"]);
    assert!(!home.path("x.gguf").exists() && !home.path("x.gguf.part").exists());
}

/// A file that may not grow stands for a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_is_named_and_nothing_is_left() {
    let home = Home::new();
    source(&home);
    let kvant = env!("CARGO_BIN_EXE_kvant");
    let script = format!("trap '' XFSZ; ulimit -f 16; exec {kvant} convert f16.gguf -o x.gguf");
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).current_dir(home.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("x.gguf") && said.contains("no room"), "{said}");
    assert!(!home.path("x.gguf").exists() && !home.path("x.gguf.part").exists());
}
