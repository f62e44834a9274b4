//! The bill of materials: a CycloneDX document of what the command and the library are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{field, metadata, packages};
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

const FILE: &str = "target/sbom.cdx.json";

/// The crates that are handed out.
const ROOTS: [&str; 2] = ["kvant-cli", "kvant-capi"];

/// Writes the document to [`FILE`].
pub fn sbom() -> Outcome {
    let text = document()?;
    let broken = |e| Trouble::failed(format!("cannot write {FILE}: {e}"));
    fs::create_dir_all(Path::new(FILE).parent().unwrap_or(Path::new("."))).map_err(broken)?;
    fs::write(FILE, &text).map_err(broken)?;
    println!("{FILE}: {} crates", text.matches("\"purl\"").count());
    Ok(Tally::default())
}

/// The document as text: the same for the same `Cargo.lock` and system.
pub fn document() -> Result<String, Trouble> {
    let lock = fs::read_to_string("Cargo.lock")
        .map_err(|e| Trouble::failed(format!("cannot read Cargo.lock: {e}")))?;
    let document = bill(&metadata()?, &checksums(&lock));
    Ok(format!("{document:#}\n"))
}

/// Crates that the roots need when they are built or run, tests apart, and which of them needs which.
fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let by_id: BTreeMap<&str, &Value> =
        packages(metadata).map(|package| (field(package, "id"), package)).collect();
    let needs = needs(metadata);
    let is_root = |id: &&&str| by_id.get(**id).is_some_and(|package| ROOTS.contains(&field(package, "name")));
    let roots: Vec<&str> = by_id.keys().filter(is_root).copied().collect();
    let mut reached = BTreeSet::new();
    let mut open = roots.clone();
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(needs.get(id).into_iter().flatten());
        }
    }
    let reference = |id: &str| by_id.get(id).map_or_else(String::new, |package| reference(package));
    let components: Vec<Value> =
        reached.iter().filter_map(|id| Some(component(by_id.get(id)?, checksums))).collect();
    let dependencies: Vec<Value> = reached
        .iter()
        .map(|id| {
            let on: BTreeSet<String> = needs.get(id).into_iter().flatten().map(|id| reference(id)).collect();
            json!({"ref": reference(id), "dependsOn": on})
        })
        .collect();
    let version = roots.first().and_then(|id| by_id.get(id)).map_or("", |package| field(package, "version"));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "kvant", "version": version, "bom-ref": "kvant"}},
        "components": components,
        "dependencies": dependencies,
    })
}

/// By crate, the crates that it needs when it is built or run.
fn needs(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let is_needed = |need: &&Value| {
        let kinds = need["dep_kinds"].as_array();
        kinds.is_none_or(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
    };
    nodes
        .map(|node| {
            let all = node["deps"].as_array().into_iter().flatten();
            (field(node, "id"), all.filter(is_needed).map(|need| field(need, "pkg")).collect())
        })
        .collect()
}

fn reference(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", field(package, "name"), field(package, "version"))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (field(package, "name"), field(package, "version"));
    let mut component = json!({
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": reference(package),
        "purl": reference(package),
        // Crates of before SPDX write a stroke for a choice.
        "licenses": [{"expression": field(package, "license").replace(" / ", "/").replace('/', " OR ")}],
    });
    if let Some(sum) = checksums.get(&(name.to_string(), version.to_string())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

/// The sums of `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        line.strip_suffix('"').map(str::to_string)
    };
    let blocks = lock.split("[[package]]").skip(1);
    blocks
        .filter_map(|block| {
            Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_listed_with_sums_and_what_tests_need_is_not() {
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let need = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("kvant-cli"), package("kvant-capi"), package("a"), package("b"), package("tested")],
            "resolve": {"nodes": [
                {"id": "kvant-cli", "deps": [need("a", Value::Null), need("tested", json!("dev"))]},
                {"id": "a", "deps": [need("b", json!("build"))]},
                {"id": "b", "deps": [need("a", json!("dev"))]},
            ]},
        });
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"12ab\"\n\n[[package]]\nname = \"kvant-cli\"\nversion = \"1.0.0\"\n";
        let document = bill(&metadata, &checksums(lock));
        let names: Vec<&str> = document["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|component| field(component, "name"))
            .collect();
        assert_eq!(names, ["a", "b", "kvant-capi", "kvant-cli"]);
        let first = &document["components"][0];
        assert_eq!(
            (field(first, "purl"), &first["hashes"][0]["content"]),
            ("pkg:cargo/a@1.0.0", &json!("12ab"))
        );
        assert_eq!(first["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            document["dependencies"][0],
            json!({"ref": "pkg:cargo/a@1.0.0", "dependsOn": ["pkg:cargo/b@1.0.0"]})
        );
        assert_eq!(document["dependencies"][1]["dependsOn"], json!([]));
    }
}
