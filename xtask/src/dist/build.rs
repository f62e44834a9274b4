//! What is compiled for a platform.

use std::path::{Path, PathBuf};

use super::libraries::Names;
use super::platform::{Kind, Platform};
use crate::needs;
use crate::package;
use crate::process::{Call, cargo};
use crate::step::Trouble;
use crate::steps;

/// Zig, which links against any glibc, and its cargo subcommand.
const ZIG: &str = "target/zig";
const ZIG_LIST: &str = "packaging/zig.txt";

/// The command, the library for C and the module for Python, with GPUs.
const EVERYTHING: [&str; 8] = [
    "--package",
    "kvant-cli",
    "--package",
    "kvant-capi",
    "--package",
    "kvant-python",
    "--features",
    "kvant-capi/cuda,kvant-capi/gpu,kvant-python/gpu",
];
/// The command without the backends whose drivers a static program cannot load.
const COMMAND: [&str; 5] =
    ["--package", "kvant-cli", "--no-default-features", "--features", "kvant-cli/grammar,kvant-cli/hub"];

/// What came of a build.
pub struct Built {
    /// Where cargo put it.
    pub folder: PathBuf,
    /// The command.
    pub command: PathBuf,
    /// How the command is started here: itself, or an emulator and itself.
    pub runner: Vec<String>,
    /// The module for Python, where there is one.
    pub module: Option<PathBuf>,
}

/// Compiles everything that a platform gets.
pub fn build(platform: &Platform, names: &Names) -> Result<Built, Trouble> {
    let workspace = package::workspace()?;
    let target = PathBuf::from(workspace["target_directory"].as_str().unwrap_or("target"));
    let parts = match platform.kind {
        Kind::Static => &COMMAND[..],
        Kind::Glibc | Kind::Own => &EVERYTHING[..],
    };
    let (build, folder) = match platform.kind {
        Kind::Own => (cargo(["build"]), target.join("release")),
        Kind::Glibc | Kind::Static => (zig(platform)?, target.join(&platform.triple).join("release")),
    };
    let build = build.args(["--release", "--locked"]).args(parts);
    match names.soname() {
        Some(name) => build.env("KVANT_SONAME", name).run()?,
        None => build.run()?,
    };
    let ending = if platform.triple.contains("windows") { "exe" } else { "" };
    let command = folder.join("kvant").with_extension(ending);
    let module = (platform.kind != Kind::Static).then(|| folder.join(module_name(&platform.triple)));
    Ok(Built { runner: runner(platform, &command)?, folder, command, module })
}

/// cargo-zigbuild for a platform.
fn zig(platform: &Platform) -> Result<Call, Trouble> {
    let python = needs::environment(ZIG, ZIG_LIST)?;
    needs::target(&platform.triple)?;
    let tools = Path::new(&python).parent().unwrap_or(Path::new("")).display().to_string();
    let others = std::env::var("PATH").unwrap_or_default();
    // The module's build must not look for a Python of this machine: it is for every one.
    let build = cargo(["zigbuild", "--target", &platform.zig_target()]).env("PYO3_NO_PYTHON", "1");
    Ok(build.env("PATH", format!("{tools}:{others}")))
}

/// How a platform's command is started here.
fn runner(platform: &Platform, command: &Path) -> Result<Vec<String>, Trouble> {
    let command = command.display().to_string();
    if platform.runs_here() {
        return Ok(vec![command]);
    }
    if platform.processor() != "aarch64" {
        return Err(Trouble::not_run(format!("nothing here runs programs for {}", platform.triple)));
    }
    let emulator = steps::arm_emulator()?;
    Ok(emulator.into_iter().chain([command]).collect())
}

/// What cargo calls the module.
fn module_name(triple: &str) -> &'static str {
    if triple.contains("apple") {
        "lib_kvant.dylib"
    } else if triple.contains("windows") {
        "_kvant.dll"
    } else {
        "lib_kvant.so"
    }
}
