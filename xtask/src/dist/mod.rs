//! Everything there is to hand out.
//!
//! For each platform an archive:
//!
//! ```text
//! kvant-VERSION-TRIPLE/
//!   bin/kvant                          the command
//!   include/kvant.h
//!   lib/libkvant.a, libkvant.so.ABI    and libkvant.so, a link to it
//!   lib/pkgconfig/kvant.pc             finds the others wherever the folder is put
//!   lib/cmake/kvant                    so does find_package(kvant)
//!   share/man/man1                     manual pages
//!   share/{bash-completion, zsh, fish} completions
//!   share/doc/kvant                    licences, the bill of materials, the manual for C, the examples
//!   SHA256SUMS                         of every file
//! ```
//!
//! Beside the archives in `target/dist`: a wheel that has the command in it, packages for npm, a recipe for a container, manifests for
//! Homebrew and winget, and `SHA256SUMS` of all files. [`platform`] says what is made for whom, [`clean`] tries it all in clean places.
//!
//! **Invariant:** nothing in an archive was compiled for this machine's processor or C library. Kernels choose their instruction set at run time.

mod build;
pub mod clean;
mod files;
mod libraries;
mod manifests;
mod npm;
mod platform;

use std::fs;
use std::path::{Path, PathBuf};

use crate::package;
use crate::process::call;
use crate::step::{Outcome, Trouble};
use crate::supply;
use crate::tally::Tally;
use build::Built;
use files::{broken, checksums, copy, write};
use libraries::Names;
use platform::{Kind, Platform};

/// Where everything is made.
const FOLDER: &str = "target/dist";

/// Texts that go along.
const DOCUMENTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE", "THIRD_PARTY.md", "docs/c.md"];

/// Where each shell looks for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/kvant"),
    ("zsh", "share/zsh/site-functions/_kvant"),
    ("fish", "share/fish/vendor_completions.d/kvant.fish"),
];

/// Builds and packs it all for these triples, or for this machine.
pub fn make(triples: &[String]) -> Outcome {
    let platforms = Platform::named(triples)?;
    let workspace = package::workspace()?;
    let version = version_of(&workspace, "kvant-capi")?;
    let abi = libraries::abi_of(&files::read("include/kvant.h")?)?;
    let dist = Path::new(FOLDER);
    fs::create_dir_all(dist).map_err(broken("make a folder"))?;
    let mut archives = Vec::new();
    for platform in &platforms {
        let names = Names::of(&platform.triple, abi);
        let built = build::build(platform, &names)?;
        let archive = archive(platform, &built, &names, &version)?;
        if let Some(module) = &built.module {
            wheel(platform, module, &built.command)?;
        }
        npm::package(platform, &built.command, &version)?;
        archives.push((platform.clone(), archive));
    }
    npm::launcher(&version)?;
    manifests::write(&archives, &version)?;
    let all: Vec<PathBuf> = files::files(dist)?.into_iter().filter(|path| is_handed_out(path)).collect();
    write(&dist.join("SHA256SUMS"), &checksums(dist, &all)?)?;
    for path in &all {
        let size = fs::metadata(path).map_err(broken("look at a file"))?.len();
        println!("{:<64} {:>7.1} MB", path.display(), size as f64 / 1e6);
    }
    Ok(Tally::default())
}

/// Archives, wheels and npm's packages: what people fetch, in contrast to the folders that they are made of.
fn is_handed_out(path: &Path) -> bool {
    path.extension().is_some_and(|ending| matches!(ending.to_str(), Some("gz" | "tgz" | "whl")))
}

/// The version of a crate of the workspace.
fn version_of(workspace: &serde_json::Value, name: &str) -> Result<String, Trouble> {
    let mut packages = workspace["packages"].as_array().into_iter().flatten();
    let version =
        packages.find(|package| package["name"] == name).and_then(|package| package["version"].as_str());
    version.map(str::to_string).ok_or_else(|| Trouble::failed(format!("there is no crate {name}")))
}

/// The name of an archive without its ending, and of the one folder in it.
fn stem(version: &str, triple: &str) -> String {
    format!("kvant-{version}-{triple}")
}

/// Puts an archive's folder together and packs it.
fn archive(platform: &Platform, built: &Built, names: &Names, version: &str) -> Result<PathBuf, Trouble> {
    let name = stem(version, &platform.triple);
    let root = Path::new(FOLDER).join(&name);
    files::empty(&root)?;
    let own = built.command.file_name().map(Path::new).unwrap_or(Path::new("kvant"));
    copy(&built.command, &root.join("bin").join(own))?;
    if platform.kind != Kind::Static {
        copy(Path::new("include/kvant.h"), &root.join("include/kvant.h"))?;
        libraries::put(&built.folder, &root.join("lib"), names, version, &platform.triple)?;
    }
    shell_and_manual(&built.runner, &root)?;
    let documents = root.join("share/doc/kvant");
    for path in DOCUMENTS.iter().map(Path::new) {
        copy(path, &documents.join(path.file_name().unwrap_or_default()))?;
    }
    write(&documents.join("sbom.cdx.json"), &supply::document()?)?;
    for file in files::files(Path::new("examples/c"))? {
        copy(&file, &documents.join(&file))?;
    }
    let all = files::files(&root)?;
    write(&root.join("SHA256SUMS"), &checksums(&root, &all)?)?;
    let archive = Path::new(FOLDER).join(format!("{name}.tar.gz"));
    files::pack(Path::new(FOLDER), &name, &archive)?;
    Ok(archive)
}

/// Completions and manual pages, from the command itself.
fn shell_and_manual(runner: &[String], root: &Path) -> Result<(), Trouble> {
    let (program, before) = runner.split_first().ok_or_else(|| Trouble::failed("nothing to run"))?;
    let kvant = || call(program, before);
    for (shell, place) in COMPLETIONS {
        let script = kvant().args(["completions", shell]).probe();
        let script = script.ok_or_else(|| Trouble::failed(format!("`kvant completions {shell}` failed")))?;
        write(&root.join(place), &script)?;
    }
    let pages = root.join("share/man/man1");
    fs::create_dir_all(&pages).map_err(broken("make a folder for manual pages"))?;
    kvant().args(["man", "--folder", &pages.display().to_string()]).run().map(drop)
}

/// The Python package with the command in it: `pip install` brings both.
fn wheel(platform: &Platform, module: &Path, command: &Path) -> Result<(), Trouble> {
    let (module, command) = (module.display().to_string(), command.display().to_string());
    let pack = call("python3", ["python/pack_wheel.py", &module, FOLDER, "--command", &command]);
    match platform.wheel_tag() {
        Some(tag) => pack.args(["--platform", &tag]).run().map(drop),
        None => pack.run().map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_fetch_is_summed_up_and_what_it_is_made_of_is_not() {
        for name in ["a/kvant-1-x.tar.gz", "kvant-1.whl", "npm/kvant-1.tgz"] {
            assert!(is_handed_out(Path::new(name)), "{name}");
        }
        for name in ["SHA256SUMS", "kvant-1-x/bin/kvant", "kvant.rb"] {
            assert!(!is_handed_out(Path::new(name)), "{name}");
        }
    }
}
