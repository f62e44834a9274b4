//! Components, targets and toolchains through rustup; programs through `cargo install`.

use std::path::Path;

use super::on_path;
use crate::process::{call, cargo};
use crate::step::Trouble;

/// A cargo subcommand that comes as a rustup component: `component("rustfmt", "fmt")`.
pub fn component(name: &str, subcommand: &str) -> Result<(), Trouble> {
    let present = || cargo([subcommand, "--version"]).probe().is_some();
    if present() {
        return Ok(());
    }
    install(["component", "add", name], &format!("the Rust component {name}"), present)
}

/// The standard library for another target.
pub fn target(triple: &str) -> Result<(), Trouble> {
    let present = || {
        call("rustc", ["--print", "target-libdir", "--target", triple])
            .probe()
            .is_some_and(|folder| Path::new(folder.trim()).is_dir())
    };
    if present() {
        return Ok(());
    }
    install(["target", "add", triple], &format!("the Rust target {triple}"), present)
}

/// A nightly toolchain no older than the Rust this workspace asks for, with these components.
pub fn nightly(components: &[&str]) -> Result<(), Trouble> {
    let recent = || {
        let version = call("rustup", ["run", "nightly", "rustc", "--version"]).probe();
        version.as_deref().and_then(version_of)
            >= version_of(concat!("rustc ", env!("CARGO_PKG_RUST_VERSION")))
    };
    if !recent() {
        install(
            ["toolchain", "install", "nightly", "--profile", "minimal", "--no-self-update"],
            "a recent Rust nightly toolchain",
            recent,
        )?;
    }
    for component in components {
        let present = || {
            call("rustup", ["component", "list", "--installed", "--toolchain", "nightly"])
                .probe()
                .is_some_and(|list| list.lines().any(|line| line.starts_with(component)))
        };
        if !present() {
            install(
                ["component", "add", component, "--toolchain", "nightly"],
                &format!("the nightly Rust component {component}"),
                present,
            )?;
        }
    }
    Ok(())
}

/// A cargo subcommand from crates.io: `cargo_tool("cargo-fuzz")`.
pub fn cargo_tool(name: &str) -> Result<(), Trouble> {
    if on_path(name) {
        return Ok(());
    }
    println!("{name} is missing: installing it");
    match cargo(["install", "--locked", name]).run() {
        Ok(_) if on_path(name) => Ok(()),
        Ok(_) => Err(Trouble::not_run(format!("{name} was installed, but its folder is not on the PATH"))),
        Err(_) => Err(Trouble::not_run(format!("{name} is missing and `cargo install {name}` failed"))),
    }
}

/// The triple this machine compiles for when nothing else is said.
pub fn host_triple() -> Result<String, Trouble> {
    let version = call("rustc", ["-vV"]).probe().ok_or_else(|| Trouble::not_run("`rustc -vV` failed"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_string).ok_or_else(|| Trouble::not_run("`rustc -vV` names no host"))
}

fn install<const N: usize>(args: [&str; N], what: &str, present: impl Fn() -> bool) -> Result<(), Trouble> {
    if !on_path("rustup") {
        return Err(Trouble::not_run(format!("{what} is missing, and there is no rustup to install it")));
    }
    println!("{what} is missing: installing it");
    let outcome = call("rustup", args).run();
    if present() {
        return Ok(());
    }
    let how = args.join(" ");
    Err(Trouble::not_run(match outcome {
        Ok(_) => format!("{what} is still missing after `rustup {how}`"),
        Err(_) => format!("{what} is missing and `rustup {how}` failed"),
    }))
}

/// Major and minor of `rustc 1.97.0-nightly (…)`.
fn version_of(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.strip_prefix("rustc ")?.split(['.', '-', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version_of("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)"), Some((1, 97)));
        assert_eq!(version_of("rustc 1.95"), Some((1, 95)));
        assert!(version_of("rustc 1.100.0") > version_of("rustc 1.95"));
        assert_eq!(version_of("error: toolchain 'nightly' is not installed"), None);
        assert!(None < version_of("rustc 1.95"), "no toolchain counts as too old");
    }
}
