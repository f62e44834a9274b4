//! Libraries and agents of other people against `kvant serve`, which take long to install: `cargo xtask test clients-wide` does
//! (`requirements.txt`, `package.json`), and tells by `KVANT_PYTHON` and `KVANT_NODE_MODULES` where they are.
//!
//! The model is tiny and talks nonsense, so what is tested is that each understands what comes; where tools must be called, the
//! request says so and a grammar sees to it. Agents never say so: `scripted.py` stands between them and the server, and does.

#[path = "../cli/home.rs"]
mod home;
#[path = "../clients/passes.rs"]
mod passes;
#[path = "../cli/served.rs"]
mod served;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use home::Home;
use passes::passes;
use served::Served;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

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

/// A model that follows a script: it calls a tool once.
struct Script {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Script {
    /// Stands before a server.
    fn before(served: &Served) -> Self {
        let mut command = Command::new(from_environment("KVANT_PYTHON"));
        command.arg(here("scripted.py")).arg(format!("http://{}", served.address)).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = said.next().unwrap().unwrap();
        Self { child, said, address }
    }

    /// The tool was called on this route, and what it said came back.
    #[track_caller]
    fn was_followed(mut self, path: &str) {
        self.child.kill().unwrap();
        let lines: Vec<String> = self.said.by_ref().map(Result::unwrap).collect();
        let here = |line: &&String| line.contains(&format!("\"path\": \"{path}\""));
        assert!(lines.iter().filter(here).any(|line| line.contains("\"forced\": true")), "{lines:?}");
        let came_back = |line: &String| line.contains("hello from the script");
        assert!(lines.iter().filter(here).any(came_back), "{lines:?}");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn libraries_of_python_work_unchanged() {
    let home = Home::new();
    let served = served(&home);
    let mut command = Command::new(from_environment("KVANT_PYTHON"));
    command.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(here("test_wide.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1").env("HOME", home.path(""));
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", home.path("hf"));
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
fn codex_calls_a_tool_and_runs_a_task_to_its_end() {
    let home = Home::new();
    let served = served(&home);
    let script = Script::before(&served);
    let mut command = Command::new(from_environment("KVANT_NODE_MODULES").join(".bin/codex"));
    let provider = format!(
        "model_providers.kvant={{name=\"kvant\",base_url=\"{}/v1\",wire_api=\"responses\"}}",
        script.address
    );
    // Commands run in this home alone; a sandbox in a sandbox cannot be had everywhere.
    command.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]);
    command.args(["-c", &provider, "-c", "model_provider=\"kvant\"", "-c", "model=\"model\"", "Say hello."]);
    command.env("CODEX_HOME", home.path("codex")).env("HOME", home.path("")).current_dir(home.path(""));
    std::fs::create_dir(home.path("codex")).unwrap();
    passes(command);
    script.was_followed("/v1/responses");
}

#[test]
fn opencode_calls_a_tool_and_runs_a_task_to_its_end() {
    let home = Home::new();
    let served = served(&home);
    let script = Script::before(&served);
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let package = format!(
        "opencode-{}-{arch}/bin/opencode",
        if cfg!(target_os = "macos") { "darwin" } else { "linux" }
    );
    let settings = format!(
        r#"{{"model": "kvant/model", "share": "disabled", "autoupdate": false, "permission": {{"bash": "allow"}}, "provider": {{"kvant":
        {{"npm": "@ai-sdk/openai-compatible", "name": "kvant", "options": {{"baseURL": "{}/v1", "apiKey": "none"}},
        "models": {{"model": {{"name": "model", "tool_call": true}}}}}}}}}}"#,
        script.address
    );
    home.write("opencode.json", settings.as_bytes());
    let mut command = Command::new(from_environment("KVANT_NODE_MODULES").join(package));
    command.args(["run", "Say hello."]).env("HOME", home.path("")).current_dir(home.path(""));
    command.env("OPENCODE_CONFIG", home.path("opencode.json")).env("OPENCODE_DISABLE_MODELS_FETCH", "1");
    for folder in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env(folder, home.path(folder));
    }
    command.stdin(Stdio::null());
    passes(command);
    script.was_followed("/v1/chat/completions");
}

/// Claude Code is not openly licensed, so nothing installs it: it is tested where `KVANT_CLAUDE_CODE` names the program.
#[test]
fn claude_code_calls_a_tool_on_request() {
    let Some(program) = std::env::var_os("KVANT_CLAUDE_CODE") else {
        println!("Claude Code is tested on request only: KVANT_CLAUDE_CODE names its program");
        return;
    };
    let home = Home::new();
    let served = served(&home);
    let script = Script::before(&served);
    let mut command = Command::new(program);
    command.args(["-p", "Say hello.", "--allowedTools", "Bash(echo:*)", "--model", "claude-any"]);
    command.env("ANTHROPIC_BASE_URL", &script.address).env("ANTHROPIC_API_KEY", "none");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("HOME", home.path(""));
    command.current_dir(home.path("")).stdin(Stdio::null());
    passes(command);
    script.was_followed("/v1/messages");
}
