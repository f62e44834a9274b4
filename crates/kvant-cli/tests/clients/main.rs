//! Other people's programs against `kvant serve`: the `openai` package of Python, and schemathesis, which asks whatever the
//! description of the server lets it think of. `cargo xtask test clients` installs both (`requirements.txt`), and tells by
//! `KVANT_PYTHON` where they are.

#[path = "../cli/home.rs"]
mod home;
#[path = "../cli/served.rs"]
mod served;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use home::Home;
use served::Served;
use std::path::Path;
use std::process::Command;

const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

/// What schemathesis looks at in every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method,\
    allow_header_conformance";

/// A server whose model knows tools. Its context is short, so that answers without a limit are.
fn served(home: &Home) -> Served {
    Served::start(home, &home.write("model.gguf", &tiny::model_with(Some(TOOLS))), &["--ctx", "320"])
}

fn python(arguments: &[&str]) -> Command {
    let program = std::env::var_os("KVANT_PYTHON")
        .expect("KVANT_PYTHON names a Python with the packages; `cargo xtask test clients` sees to it");
    let mut command = Command::new(program);
    // The folder of the tests is not littered with what Python compiles.
    command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1");
    command
}

#[track_caller]
fn passes(mut command: Command) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text[0], text[1]);
    println!("{}", text[0]);
}

#[test]
fn the_openai_package_works_unchanged() {
    let home = Home::new();
    let open = served(&home);
    let plain = home.write("plain.gguf", &tiny::model_bytes(true));
    let locked = Served::start(&home, &plain, &["--alias", "model", "--api-key", "sesame"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/test_openai.py");
    let mut command = python(&["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    command.arg(script).current_dir(home.path(""));
    command.env("KVANT_OPEN", format!("http://{}", open.address));
    command.env("KVANT_LOCKED", format!("http://{}", locked.address));
    passes(command);
}

#[test]
fn schemathesis_finds_nothing() {
    let home = Home::new();
    let served = served(&home);
    let document = format!("http://{}/openapi.json", served.address);
    let mut command = python(&["-m", "schemathesis.cli", "run", &document, "--checks", CHECKS]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "40", "--seed", "1"]);
    command.args(["--continue-on-failure", "--request-timeout", "60"]).current_dir(home.path(""));
    passes(command);
}
