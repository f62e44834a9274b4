//! The programs of `examples/c`, compiled by the lines of `docs/c.md`, and run on a tiny model.
//!
//! `KVANT_CC` names the compilers (`gcc,clang`; else `cc`), `KVANT_C_FLAGS` what they get besides, such as `-fsanitize=address`,
//! and `KVANT_C_RUNNER` what the programs run under, such as `valgrind`. `cargo xtask test capi` sets them.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What everything is compiled with: examples are to be copied.
const STRICT: [&str; 5] = ["-g", "-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The most tokens of an answer, so that both turns of a chat fit into the model's context of 512 whatever is drawn; and the seed.
const CHAT_TOKENS: &str = "100";
const CHAT_SEED: &str = "7";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo has put libkvant for this test.
fn libraries() -> String {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().unwrap();
    assert!(folder.join("libkvant.a").is_file(), "there is no libkvant.a in {}", folder.display());
    folder.to_str().unwrap().to_owned()
}

fn setting(name: &str) -> Vec<String> {
    let value = std::env::var(name).unwrap_or_default();
    value.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn compilers() -> Vec<String> {
    let named = setting("KVANT_CC");
    if named.is_empty() { vec!["cc".to_owned()] } else { named }
}

/// The compiler of C++ that belongs to one of C.
fn for_cpp(compiler: &str) -> String {
    match compiler {
        "cc" => "c++".to_owned(),
        other if other.starts_with("gcc") => other.replacen("gcc", "g++", 1),
        other => format!("{other}++"),
    }
}

/// The lines of the manual that compile an example.
fn lines(example: &str) -> Vec<String> {
    let manual = std::fs::read_to_string(root().join("docs/c.md")).unwrap();
    let compiles = |line: &&str| line.starts_with("cc ") || line.starts_with("c++ ");
    let of_example = manual.lines().filter(compiles).filter(|line| line.contains(example));
    of_example.map(str::to_owned).collect()
}

/// Runs a command of the manual with another compiler; the program it has made.
fn compile(line: &str, compiler: &str, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let mut words = line.split_whitespace().map(|word| word.replace("target/release", &libraries()));
    let compiler = match words.next().as_deref() {
        Some("c++") => for_cpp(compiler),
        _ => compiler.to_owned(),
    };
    let mut command = Command::new(&compiler);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => drop(words.next()),
            _ => drop(command.arg(word)),
        }
    }
    command.args(STRICT).args(setting("KVANT_C_FLAGS")).arg("-o").arg(&program).current_dir(root());
    let output = command.output().unwrap_or_else(|e| panic!("{compiler}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    program
}

fn run(program: &Path, arguments: &[&Path], input: &str) -> Output {
    let runner = setting("KVANT_C_RUNNER");
    let mut command = match runner.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Compiles an example by every line of the manual with every compiler, and hands over each run's output.
fn each(example: &str, input: &str, check: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let (model, saved) = (folder.path().join("model.gguf"), folder.path().join("saved"));
    std::fs::write(&model, tiny::model_bytes(true)).unwrap();
    let lines = lines(example);
    assert!(!lines.is_empty(), "docs/c.md does not say how {example} is compiled");
    for compiler in compilers() {
        for line in &lines {
            let program = compile(line, &compiler, folder.path());
            let arguments: &[&Path] = match example {
                "chat.c" => &[&model, Path::new(CHAT_TOKENS), Path::new(CHAT_SEED)],
                "session.cpp" => &[&model, &saved],
                _ => &[],
            };
            let output = run(&program, arguments, input);
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler}, {line}: {}\n{said}\n{errors}", output.status);
            check(&said);
        }
    }
}

#[test]
fn a_chat_answers_every_line() {
    each("chat.c", "hello\nand you\n", |said| {
        let turns: Vec<&str> = said.split("> ").collect();
        // Before the first prompt, two answers, and the prompt at which the input ends.
        assert!(turns.len() >= 4 && turns[0].is_empty(), "{said:?}");
        assert!(turns[1].trim().len() > 1, "{said:?}");
    });
}

#[test]
fn a_chat_that_does_not_fit_says_so_and_frees_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    std::fs::write(&model, tiny::model_bytes(true)).unwrap();
    for compiler in compilers() {
        let program = compile(&lines("chat.c")[0], &compiler, folder.path());
        let input = format!("hello\n{}\n", "x".repeat(2000));
        let output = run(&program, &[&model, Path::new(CHAT_TOKENS), Path::new(CHAT_SEED)], &input);
        let said = String::from_utf8_lossy(&output.stderr);
        // AddressSanitizer and valgrind end a program that leaks with a status of their own.
        assert!(output.status.code() == Some(1) && said.contains("error: "), "{compiler}: {output:?}");
        assert!(said.contains("512"), "{said:?}");
    }
}

#[test]
fn attention_on_the_compressed_cache_is_close_to_exact() {
    each("attention.c", "", |said| {
        assert!(said.contains("500 tokens in ") && said.contains("relative error 0.0"), "{said:?}");
    });
}

#[test]
fn packed_products_are_close_to_exact() {
    each("matmul.c", "", |said| assert!(said.contains("96 x 256 weights in "), "{said:?}"));
}

#[test]
fn a_cpp_program_steps_forks_saves_resumes_and_is_stopped() {
    each("session.cpp", "", |said| {
        assert!(said.contains("the same again: yes") && said.contains("stopped: "), "{said:?}");
    });
}

/// What the fragments of the manual take for granted: variables of the program around them. Tokens are those of a text, or counts.
fn surroundings(fragment: &str) -> String {
    let tokens = if fragment.contains("kvant_engine_embed") { "uint32_t" } else { "size_t" };
    format!(
        "#include <kvant.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         void fragment(kvant_engine *engine, const {tokens} *tokens, size_t count, kvant_cache *cache, kvant_pass *pass,\n\
         kvant_sequence *sequence, const kvant_sequence *const *sequences, size_t query_heads, const kvant_rows *keys,\n\
         const kvant_rows *values, const kvant_rows *queries, const kvant_output *outputs)\n{{\n{{\n"
    )
}

#[test]
fn the_fragments_of_the_manual_compile() {
    let folder = tempfile::tempdir().unwrap();
    let manual = std::fs::read_to_string(root().join("docs/c.md")).unwrap();
    let fragments: Vec<&str> =
        manual.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(fragments.len(), 4);
    for fragment in fragments {
        let source = folder.path().join("fragment.c");
        std::fs::write(&source, format!("{}{fragment}\n}}\n}}\n", surroundings(fragment))).unwrap();
        for compiler in compilers() {
            let mut command = Command::new(&compiler);
            // A fragment uses what it needs.
            command.args(["-fsyntax-only", "-std=c11", "-Iinclude"]).args(STRICT);
            command.args(["-Wno-unused-parameter", "-Wno-unused-variable", "-Wno-unused-but-set-variable"]);
            let output = command.arg(&source).current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{fragment}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn a_program_that_cannot_open_its_model_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&lines("chat.c")[0], &compilers()[0], folder.path());
    let output = run(&program, &[&folder.path().join("nothing.gguf")], "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("nothing.gguf"), "{output:?}");
}

#[test]
fn the_header_is_plain_c_and_plain_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.c");
    std::fs::write(&source, "#include <kvant.h>\n#include <kvant.h>\nint version = KVANT_ABI_VERSION;\n")
        .unwrap();
    for compiler in compilers() {
        for (compiler, language) in
            [(compiler.clone(), ["c", "-std=c99"]), (for_cpp(&compiler), ["c++", "-std=c++11"])]
        {
            let mut command = Command::new(&compiler);
            command.args(["-fsyntax-only", "-Iinclude", "-x"]).args(language).args(STRICT).arg(&source);
            let output = command.current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// 51 functions of llguidance were exported beside kvant's own.
#[test]
#[cfg(target_os = "linux")]
fn the_shared_library_exports_kvants_own_symbols_alone() {
    let library = Path::new(&libraries()).join("libkvant.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let foreign: Vec<&&str> = names.iter().filter(|name| !name.starts_with("kvant_")).collect();
    assert!(foreign.is_empty(), "{} exports {foreign:?}", library.display());
    let header = std::fs::read_to_string(root().join("include/kvant.h")).unwrap();
    for name in &names {
        assert!(header.contains(&format!("{name}(")), "{name} is exported and not in kvant.h");
    }
    assert!(names.contains(&"kvant_engine_open"), "{names:?}");
}
