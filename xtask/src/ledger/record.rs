//! New figures into a file of results.

use super::results::{FOLDER, Results};
use super::stale;
use crate::process::call;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// Replaces the rows of `docs/results/NAME.json` by those of a file of JSON lines, such as `kvant eval --json` writes. A
/// file that is not there yet gets a table of divergences, to be edited. The commit is the one that is checked out.
pub fn record(name: &str, lines: &str, command: &str) -> Result<(), String> {
    let text = fs::read_to_string(lines).map_err(|e| format!("{lines}: {e}"))?;
    let commit = call("git", ["rev-parse", "--short", "HEAD"]).probe();
    let commit = commit.ok_or("git does not tell the commit")?.trim().to_owned();
    let path = format!("{FOLDER}/{name}.json");
    let old = match Path::new(&path).exists() {
        true => {
            let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
            serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?
        }
        false => fresh(name),
    };
    let mut value = recorded(old, &text, &commit, command).map_err(|e| format!("{lines}: {e}"))?;
    value["covers"] = stale::renewed(&value)?;
    Results::new(name, value.clone())?;
    let text = serde_json::to_string_pretty(&value).map_err(|e| e.to_string())?;
    fs::write(&path, text + "\n").map_err(|e| format!("{path}: {e}"))?;
    println!("{path}: written; now `cargo xtask ledger`");
    Ok(())
}

fn fresh(name: &str) -> Value {
    let column = |head: &str, cell: &str| json!({"head": head, "cell": cell});
    json!({
        "title": format!("{name}?"),
        "answer": "Not written down yet.",
        "topic": "quality",
        "covers": {"docs/results/record.json": ""},
        "tables": {"caches": {"columns": [
            {"head": "model", "cell": "{model}", "left": true},
            {"head": "cache", "cell": "`{spec}`", "left": true},
            {"head": "mode", "cell": "{mode}", "left": true},
            column("bits/value", "{bits_per_value:.2}"),
            column("mean KL", "{kl_mean:g} ± {kl_stderr:g}"),
            column("median KL", "{kl_median:g}"),
            column("99.9 % KL", "{kl_p999:g}"),
            column("worst KL", "{kl_max:g}"),
            column("top-1", "{top1:.1%}"),
            column("ΔPPL", "{dppl_percent:+.2} %"),
        ]}}
    })
}

/// The old file with new rows. Paths lose their folders, which are those of one machine, and what all rows say about the
/// machine is said once.
fn recorded(mut old: Value, lines: &str, commit: &str, command: &str) -> Result<Value, String> {
    let mut rows = Vec::new();
    for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut row: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| format!("line {}: {e}", number + 1))?;
        if let Some(machine) = row.remove("machine").filter(Value::is_object) {
            let (cpu, cores) = (machine["cpu"].as_str().unwrap_or_default(), &machine["cores"]);
            old["machine"] = format!("{cpu}, {cores} cores").into();
        }
        for key in ["model", "text"] {
            if let Some(Value::String(path)) = row.get_mut(key)
                && let Some((_, file)) = path.rsplit_once('/')
            {
                *path = file.to_owned();
            }
        }
        match row.get("caches") {
            Some(caches) => rows.extend(layers(caches)),
            None => rows.push(Value::Object(row)),
        }
    }
    old["commit"] = commit.into();
    old["command"] = command.into();
    old["rows"] = Value::Array(rows);
    Ok(old)
}

/// What `kvant eval --layers` says about caches: a row for every layer of each.
fn layers(caches: &Value) -> impl Iterator<Item = Value> {
    caches.as_array().into_iter().flatten().flat_map(|cache| {
        let layers = cache["layers"].as_array().into_iter().flatten();
        layers.enumerate().map(|(number, errors)| {
            let mut row = errors.clone();
            row["spec"] = cache["spec"].clone();
            row["layer"] = number.into();
            row
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_become_rows() {
        let line = "{\"layers\": [], \"caches\": [{\"spec\": \"int4\", \"layers\": [{\"key_error\": 0.1}, {\"key_error\": 0.2}]}]}";
        let found = recorded(fresh("n"), line, "abc", "kvant eval --layers").unwrap();
        assert_eq!(found["rows"][1], json!({"spec": "int4", "layer": 1, "key_error": 0.2}));
    }

    #[test]
    fn rows_are_taken_over_and_machines_said_once() {
        let lines = "{\"spec\": \"int4\", \"mode\": \"strict\", \"model\": \"a/b/m.gguf\", \"kl_mean\": 0.5, \"kl_stderr\": 0.1, \
                     \"machine\": {\"cpu\": \"X\", \"cores\": 2}}\n\n{\"spec\": \"int8\", \"mode\": \"strict\", \"model\": \"m\"}\n";
        let found = recorded(fresh("n"), lines, "abc", "kvant eval").unwrap();
        assert_eq!((&found["machine"], &found["commit"]), (&json!("X, 2 cores"), &json!("abc")));
        assert_eq!(found["rows"][0]["model"], "m.gguf");
        assert!(found["rows"][0].get("machine").is_none() && found["rows"].as_array().unwrap().len() == 2);
        let table = Results::new("n", found).unwrap().table("caches").unwrap();
        assert!(table.contains("| m.gguf | `int4` | strict |  | 0.500 ± 0.100 |"), "{table}");
        assert!(recorded(fresh("n"), "nonsense", "abc", "x").unwrap_err().contains("line 1"));
    }
}
