//! The supply chain: what kvant is made of besides its own code.
//!
//! The step `supply` holds every crate of `Cargo.lock` that is compiled on this system to the lists of `deny.toml`: its licence, and
//! where it comes from. `cargo xtask sbom` writes what is in the command and the library as CycloneDX ([`bill`]). Both know what
//! `cargo metadata` and `Cargo.lock` say and ask nobody else. `cargo deny check` reads the same `deny.toml`, and asks the database of
//! advisories besides.

mod bill;
mod licence;

pub use bill::{document, sbom};

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::needs;
use crate::process::cargo;
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

const LISTS: &str = "deny.toml";

/// Every crate has a licence and a source that [`LISTS`] allows.
pub fn check() -> Outcome {
    let lists =
        fs::read_to_string(LISTS).map_err(|e| Trouble::failed(format!("cannot read {LISTS}: {e}")))?;
    let metadata = metadata()?;
    let packages: Vec<&Value> = packages(&metadata).collect();
    let wrong = complaints(&packages, &lists);
    if !wrong.is_empty() {
        return Err(Trouble::failed(wrong.join("; ")));
    }
    let twice = several_versions(&packages);
    println!(
        "{} crates; in several versions: {}",
        packages.len(),
        if twice.is_empty() { "none" } else { &twice }
    );
    Ok(Tally { passed: packages.len(), reports: 1, ..Tally::default() })
}

/// What cargo knows of all crates that are compiled for this system, as `Cargo.lock` has them.
fn metadata() -> Result<Value, Trouble> {
    let host = needs::host_triple()?;
    let text = cargo(["metadata", "--locked", "--filter-platform", &host, "--format-version", "1"]).probe();
    let text = text.ok_or_else(|| {
        Trouble::failed(
            "`cargo metadata --locked` failed: Cargo.lock is out of date, or a crate cannot be fetched",
        )
    })?;
    serde_json::from_str(&text)
        .map_err(|e| Trouble::failed(format!("`cargo metadata` said something else: {e}")))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// A text of a package; empty where it has none.
fn field<'a>(package: &'a Value, name: &str) -> &'a str {
    package[name].as_str().unwrap_or_default()
}

fn complaints(packages: &[&Value], lists: &str) -> Vec<String> {
    let (allowed, registries) = (list(lists, "licenses", "allow"), list(lists, "sources", "allow-registry"));
    let mut found = Vec::new();
    for package in packages {
        let (name, version, licence) =
            (field(package, "name"), field(package, "version"), field(package, "license"));
        if !licence::is_allowed(licence, &allowed) {
            let licence = if licence.is_empty() { "no licence" } else { licence };
            found.push(format!("{name} {version} has {licence}, which {LISTS} does not allow"));
        }
        // Crates of the workspace have no source.
        let source = package["source"].as_str();
        let is_known = |source: &str| {
            source.strip_prefix("registry+").is_some_and(|url| registries.iter().any(|known| known == url))
        };
        if let Some(source) = source.filter(|source| !is_known(source)) {
            found.push(format!("{name} {version} comes from {source}, which {LISTS} does not allow"));
        }
    }
    found
}

/// The texts of a list of a TOML file that is written as ours are: `key = [` on a line of its section, texts in quotes.
fn list(toml: &str, section: &str, key: &str) -> Vec<String> {
    let header = format!("[{section}]");
    let lines = toml.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let own = |line: &&str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
    let body: String = lines.skip_while(|line| !own(line)).collect::<Vec<_>>().join("\n");
    let body = body.split_once('[').map_or("", |(_, rest)| rest.split(']').next().unwrap_or(""));
    body.split('"').skip(1).step_by(2).map(str::to_string).collect()
}

/// Names that there are several versions of, with their number.
fn several_versions(packages: &[&Value]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    packages.iter().for_each(|package| *counts.entry(field(package, "name")).or_default() += 1);
    let several = counts.iter().filter(|(_, count)| **count > 1);
    several.map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOML: &str = "[licenses]\n# why\nallow = [\n    \"MIT\",\n    \"ISC\",\n]\n\n[sources]\nallow-registry = [\"https://one\"]\n";

    #[test]
    fn lists_are_those_of_their_section() {
        assert_eq!(list(TOML, "licenses", "allow"), ["MIT", "ISC"]);
        assert_eq!(list(TOML, "sources", "allow-registry"), ["https://one"]);
        assert!(list(TOML, "licenses", "deny").is_empty() && list(TOML, "bans", "allow").is_empty());
    }

    #[test]
    fn strange_licences_and_sources_are_named() {
        let crate_of = |name: &str, licence: Option<&str>, source: Option<&str>| json!({"name": name, "version": "1.0.0", "license": licence, "source": source});
        let packages = [
            crate_of("ours", Some("MIT"), None),
            crate_of("good", Some("MIT OR GPL-3.0"), Some("registry+https://one")),
            crate_of("bare", None, Some("registry+https://one")),
            crate_of("viral", Some("GPL-3.0"), Some("registry+https://one")),
            crate_of("forked", Some("MIT"), Some("git+https://one")),
        ];
        let found = complaints(&packages.iter().collect::<Vec<_>>(), TOML);
        assert_eq!(found.len(), 3, "{found:?}");
        for (complaint, words) in
            found.iter().zip(["bare 1.0.0 has no licence", "has GPL-3.0", "git+https://one"])
        {
            assert!(complaint.contains(words), "{complaint}");
        }
    }

    #[test]
    fn the_lists_of_the_repository_are_found() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(LISTS);
        let text = fs::read_to_string(file).unwrap();
        assert!(list(&text, "licenses", "allow").contains(&"Apache-2.0".to_string()));
        assert_eq!(list(&text, "sources", "allow-registry").len(), 1);
    }
}
