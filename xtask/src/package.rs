//! Library crates as others would get them: what `cargo package` says, and what it does not ask for.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::process::cargo;
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

/// What a registry takes at most.
const MOST_BYTES: u64 = 10 << 20;

/// Packs every crate that may be published, and looks at what it says of itself. Nothing is compiled again from the packages:
/// they are the sources that the other steps compile, without tests.
pub fn check() -> Outcome {
    let workspace = workspace()?;
    let packages: Vec<&Value> = packages(&workspace).collect();
    let complaints: Vec<String> = packages.iter().flat_map(|package| complaints(package)).collect();
    if !complaints.is_empty() {
        return Err(Trouble::failed(complaints.join("; ")));
    }
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let pack = cargo(["package", "--quiet", "--no-verify", "--allow-dirty", "--exclude-lockfile"]);
    pack.args(names.iter().flat_map(|name| ["--package", name])).run()?;
    let folder = Path::new(workspace["target_directory"].as_str().unwrap_or("target")).join("package");
    for package in &packages {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let file = folder.join(format!("{}-{}.crate", field("name"), field("version")));
        let size =
            fs::metadata(&file).map_err(|e| Trouble::failed(format!("{}: {e}", file.display())))?.len();
        println!("{:<16} {:>6} KiB", field("name"), size.div_ceil(1024));
        if size > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            return Err(Trouble::failed(format!(
                "{}: more than {most} MiB; leave test data out",
                field("name")
            )));
        }
    }
    Ok(Tally { passed: packages.len(), reports: 1, ..Tally::default() })
}

/// What cargo knows of the workspace.
pub fn workspace() -> Result<Value, Trouble> {
    let text = cargo(["metadata", "--no-deps", "--format-version", "1"]).probe();
    let text = text.ok_or_else(|| Trouble::failed("`cargo metadata` failed"))?;
    serde_json::from_str(&text)
        .map_err(|e| Trouble::failed(format!("`cargo metadata` said something else: {e}")))
}

/// The crates that may be published.
fn packages(workspace: &Value) -> impl Iterator<Item = &Value> {
    let all = workspace["packages"].as_array().into_iter().flatten();
    all.filter(|package| package["publish"].as_array().is_none_or(|registries| !registries.is_empty()))
}

/// What a crate fails to say.
fn complaints(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let is_empty = |field: &&str| match &package[*field] {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    };
    let mut found: Vec<String> = ["description", "license", "readme", "keywords", "categories"]
        .iter()
        .filter(|field| is_empty(field))
        .map(|field| format!("{name} has no {field}"))
        .collect();
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    // Those of tests are left out of packages where they have no version, and so crates can be published one after another.
    let own = dependencies.filter(|dependency| dependency["path"].is_string());
    for dependency in own {
        let other = dependency["name"].as_str().unwrap_or("?");
        let (is_test, is_free) = (dependency["kind"] == "dev", dependency["req"] == "*");
        if is_test && !is_free {
            found.push(format!("{name} needs {other} for tests: by its path alone, without a version"));
        }
        if !is_test && is_free {
            found.push(format!("{name} needs {other} without a version beside its path"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(changed: &Value) -> Value {
        let mut package = json!({
            "name": "a", "description": "d", "license": "l", "readme": "r", "keywords": ["k"], "categories": ["c"],
            "dependencies": [{"name": "b", "path": "../b", "kind": null, "req": "^0.1"},
                             {"name": "c", "path": "../c", "kind": "dev", "req": "*"},
                             {"name": "half", "kind": "dev", "req": "^2"}]
        });
        for (name, value) in changed.as_object().unwrap() {
            package[name] = value.clone();
        }
        package
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(complaints(&package(&json!({}))), [""; 0]);
        assert_eq!(
            complaints(&package(&json!({"readme": null, "keywords": []}))),
            ["a has no readme", "a has no keywords"]
        );
        let free = json!({"dependencies": [{"name": "b", "path": "../b", "kind": null, "req": "*"}]});
        assert!(complaints(&package(&free))[0].contains("without a version"));
        let bound = json!({"dependencies": [{"name": "b", "path": "../b", "kind": "dev", "req": "^0.1"}]});
        assert!(complaints(&package(&bound))[0].contains("path alone"));
    }

    #[test]
    fn crates_that_are_not_published_are_left_out() {
        let all = json!({"packages": [{"name": "a", "publish": null}, {"name": "b", "publish": []}]});
        assert_eq!(
            packages(&all).map(|package| package["name"].as_str().unwrap()).collect::<Vec<_>>(),
            ["a"]
        );
    }
}
