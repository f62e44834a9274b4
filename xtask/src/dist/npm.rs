//! Packages for npm, so that `npx kvant chat` works without Rust.
//!
//! One package for each system carries the command; the package `kvant` names them all as optional, npm installs the one that
//! fits, and a launcher of a few lines starts it.

use std::path::Path;

use serde_json::json;

use super::FOLDER;
use super::files::{self, copy, write};
use super::platform::Platform;
use crate::process::call;
use crate::step::Trouble;

/// Every system that there is a package for, as npm calls system and processor.
const SYSTEMS: [(&str, &str); 5] =
    [("linux", "x64"), ("linux", "arm64"), ("darwin", "x64"), ("darwin", "arm64"), ("win32", "x64")];

const LAUNCHER: &str = "packaging/npm/kvant.js";

/// The package that carries the command of a platform, where npm's users have it.
pub fn package(platform: &Platform, command: &Path, version: &str) -> Result<(), Trouble> {
    let Some((system, processor)) = platform.npm() else { return Ok(()) };
    let name = format!("kvant-{system}-{processor}");
    let folder = Path::new(FOLDER).join("npm").join(&name);
    files::empty(&folder)?;
    let program = command.file_name().map(Path::new).unwrap_or(Path::new("kvant"));
    copy(command, &folder.join("bin").join(program))?;
    let about = json!({
        "name": name,
        "version": version,
        "description": format!("The kvant command for {system} on {processor}"),
        "license": "Apache-2.0",
        "os": [system],
        "cpu": [processor],
        "files": ["bin"],
    });
    pack(&folder, &about)
}

/// The package that people name.
pub fn launcher(version: &str) -> Result<(), Trouble> {
    let folder = Path::new(FOLDER).join("npm/kvant");
    files::empty(&folder)?;
    copy(Path::new(LAUNCHER), &folder.join("kvant.js"))?;
    pack(&folder, &about_launcher(version))
}

fn about_launcher(version: &str) -> serde_json::Value {
    let systems =
        SYSTEMS.iter().map(|(system, processor)| (format!("kvant-{system}-{processor}"), json!(version)));
    json!({
        "name": "kvant",
        "version": version,
        "description": "A local LLM engine whose 4-bit KV cache is faster than fp16",
        "license": "Apache-2.0",
        "bin": { "kvant": "kvant.js" },
        "files": ["kvant.js"],
        "engines": { "node": ">=18" },
        "optionalDependencies": systems.collect::<serde_json::Map<_, _>>(),
    })
}

/// Writes package.json and lets npm pack the folder; without npm the folder stays as it is, and that is said.
fn pack(folder: &Path, about: &serde_json::Value) -> Result<(), Trouble> {
    let text =
        serde_json::to_string_pretty(about).map_err(|e| Trouble::failed(format!("package.json: {e}")))?;
    write(&folder.join("package.json"), &(text + "\n"))?;
    if call("npm", ["--version"]).probe().is_none() {
        println!("{} is not packed: there is no npm here", folder.display());
        return Ok(());
    }
    let (from, to) = (folder.display().to_string(), format!("{FOLDER}/npm"));
    call("npm", ["pack", "--silent", &from, "--pack-destination", &to]).run().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_looks_for_packages_that_exist() {
        let about = about_launcher("1.2.3");
        assert_eq!(about["optionalDependencies"]["kvant-linux-arm64"], "1.2.3");
        let script =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(LAUNCHER)).unwrap();
        assert!(script.contains("`kvant-${process.platform}-${process.arch}`"), "{script}");
    }
}
