//! Libraries and agents of other people against `kvant serve`, which take long to install: `cargo xtask test clients-wide` does
//! (`requirements.txt`, `package.json`), and tells by `KVANT_PYTHON` and `KVANT_NODE_MODULES` where they are.
//!
//! The model is tiny and talks nonsense, so what is tested is that each understands what comes; where tools must be called, the
//! request says so and a grammar sees to it.

#[path = "../cli/home.rs"]
mod home;
#[path = "../cli/served.rs"]
mod served;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use home::Home;
use served::Served;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

/// Tokens of the context: agents have long prompts, and this vocabulary takes a token for a letter or two.
const CONTEXT: u32 = 1 << 18;

/// The model with that context.
fn model() -> Vec<u8> {
    const KEY: &[u8] = b"qwen2.context_length";
    let mut model = tiny::model_with(Some(TOOLS));
    let key = model.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap();
    // After the key comes the type of its value, in four bytes.
    let value = key + KEY.len() + 4;
    model[value..value + 4].copy_from_slice(&CONTEXT.to_le_bytes());
    model
}

fn served(home: &Home) -> Served {
    let model = home.write("model.gguf", &model());
    Served::start(home, &model, &["--ctx", &CONTEXT.to_string(), "--log", "off"])
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients_wide").join(name)
}

fn from_environment(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is not set; `cargo xtask test clients-wide` sees to it")).into()
}

#[track_caller]
fn passes(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text[0], text[1]);
    println!("{}", text[0]);
    text.concat()
}

#[test]
fn libraries_of_python_work_unchanged() {
    let home = Home::new();
    let served = served(&home);
    let mut command = Command::new(from_environment("KVANT_PYTHON"));
    command.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(here("test_wide.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1").env("HOME", home.path(""));
    command.env("KVANT_OPEN", format!("http://{}", served.address)).current_dir(home.path(""));
    passes(command);
}

#[test]
fn libraries_of_javascript_work_unchanged() {
    let home = Home::new();
    let served = served(&home);
    let script = home.path("wide.mjs");
    std::fs::copy(here("wide.mjs"), &script).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(from_environment("KVANT_NODE_MODULES"), home.path("node_modules")).unwrap();
    let mut command = Command::new("node");
    command.arg(script).arg(format!("http://{}", served.address)).current_dir(home.path(""));
    passes(command);
}

#[test]
fn codex_runs_a_task_to_its_end() {
    let home = Home::new();
    let served = served(&home);
    let program = from_environment("KVANT_NODE_MODULES").join(".bin/codex");
    let mut command = Command::new(program);
    let provider = format!(
        "model_providers.kvant={{name=\"kvant\",base_url=\"http://{}/v1\",wire_api=\"responses\"}}",
        served.address
    );
    command.args(["exec", "--skip-git-repo-check", "--sandbox", "read-only", "-c", &provider]);
    command.args(["-c", "model_provider=\"kvant\"", "-c", "model=\"model\"", "Say hello."]);
    command.env("CODEX_HOME", home.path("codex")).env("HOME", home.path("")).current_dir(home.path(""));
    std::fs::create_dir(home.path("codex")).unwrap();
    let said = passes(command);
    assert!(said.contains("tokens used") || !said.trim().is_empty(), "{said}");
}
