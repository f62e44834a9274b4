//! Other people's programs against `kvant serve`: packages of Python and of JavaScript, in node and in a browser, and schemathesis,
//! which asks whatever the description of the server lets it think of. `cargo xtask test clients` and `clients-js` install them
//! (`requirements.txt`, `package.json`), and tell by `KVANT_PYTHON` and `KVANT_NODE_MODULES` where they are.

#[path = "../cli/home.rs"]
mod home;
mod passes;
#[path = "../cli/served.rs"]
mod served;
mod site;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use home::Home;
use passes::passes;
use served::Served;
use site::Site;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

/// What schemathesis looks at in every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method,\
    allow_header_conformance";

/// A server whose model knows tools. Its context is short, so that answers without a limit are.
fn served(home: &Home, more: &[&str]) -> Served {
    let model = home.write("model.gguf", &tiny::model_with(Some(TOOLS)));
    Served::start(home, &model, &[&["--ctx", "320", "--log", "off"], more].concat())
}

fn python(arguments: &[&str]) -> Command {
    let program = std::env::var_os("KVANT_PYTHON")
        .expect("KVANT_PYTHON names a Python with the packages; `cargo xtask test clients` sees to it");
    let mut command = Command::new(program);
    // The folder of the tests is not littered with what Python compiles.
    command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1");
    command
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn node_modules() -> PathBuf {
    let folder = std::env::var_os("KVANT_NODE_MODULES");
    folder
        .expect(
            "KVANT_NODE_MODULES names a folder with the packages; `cargo xtask test clients-js` sees to it",
        )
        .into()
}

#[test]
fn python_packages_work_unchanged() {
    let home = Home::new();
    let open = served(&home, &[]);
    let strict = served(&home, &["--strict", "--strict-model"]);
    let plain = home.write("plain.gguf", &tiny::model_bytes(true));
    let locked = Served::start(&home, &plain, &["--alias", "model", "--api-key", "sesame", "--log", "off"]);
    let mut command = python(&["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    command.args(["test_openai.py", "test_responses.py", "test_anthropic.py", "test_ollama.py"].map(here));
    command.current_dir(home.path(""));
    for (name, server) in [("OPEN", &open), ("STRICT", &strict), ("LOCKED", &locked)] {
        command.env(format!("KVANT_{name}"), format!("http://{}", server.address));
    }
    passes(command);
}

#[test]
fn python_schemathesis_finds_nothing() {
    let home = Home::new();
    let served = served(&home, &[]);
    let document = format!("http://{}/openapi.json", served.address);
    let mut command = python(&["-m", "schemathesis.cli", "run", &document, "--checks", CHECKS]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "30", "--seed", "1"]);
    command.args(["--continue-on-failure", "--request-timeout", "60"]).current_dir(home.path(""));
    passes(command);
}

#[test]
fn javascript_packages_work_in_node() {
    let home = Home::new();
    let served = served(&home, &[]);
    // Packages are found beside the script.
    let script = home.path("openai.mjs");
    std::fs::copy(here("openai.mjs"), &script).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(node_modules(), home.path("node_modules")).unwrap();
    let mut command = Command::new("node");
    command.arg(script).arg(format!("http://{}", served.address)).current_dir(home.path(""));
    passes(command);
}

#[test]
fn javascript_packages_work_in_a_browser_on_another_origin() {
    let home = Home::new();
    let served = served(&home, &["--cors", "*"]);
    let site = Site::start(&node_modules(), &here("openai.mjs"), &format!("http://{}", served.address));
    let name = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let mut browser = Command::new(&name)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
        .arg(format!("--user-data-dir={}", home.path("profile").display()))
        .arg(site.address())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("{name}: {e}; `cargo xtask test clients-js` installs Chromium"));
    let result = site.result();
    let _ = browser.kill();
    let _ = browser.wait();
    assert_eq!(result, "7 checks passed");
}
