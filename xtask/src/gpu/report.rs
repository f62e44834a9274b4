//! The report of `gpu-check`: read from what tests print, and told again for people.

use serde_json::{Value, json};

/// Tests by what libtest prints: `test NAME ... ok`, and the words of those that failed further below.
pub fn tests(lines: &[String]) -> Vec<Value> {
    let mut tests: Vec<Value> = Vec::new();
    let mut words: Option<(String, Vec<&str>)> = None;
    let mut told: Vec<(String, String)> = Vec::new();
    for line in lines {
        if let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            tests.push(json!({ "name": name, "outcome": outcome.to_lowercase() }));
        }
        let begun = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if begun.is_some() || line == "failures:" {
            told.extend(words.take().map(|(name, words)| (name, words.join("\n").trim().to_owned())));
            words = begun.map(|name| (name.to_owned(), Vec::new()));
        } else if let Some((_, words)) = &mut words {
            words.push(line);
        }
    }
    for test in &mut tests {
        let said = told.iter().find(|(name, _)| test["name"] == name.as_str()).map(|(_, said)| said);
        if let (Some(said), Some(test)) = (said, test.as_object_mut()) {
            test.insert("said".to_owned(), json!(said));
        }
    }
    tests
}

fn list<'a>(report: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    report[name].as_array().into_iter().flatten()
}

fn has_passed(test: &Value) -> bool {
    test["outcome"] == "ok"
}

/// Whether tests ran and all passed, and no bench failed.
pub fn is_well(report: &Value) -> bool {
    let ran = list(report, "tests").next().is_some() && report["tests_built"] == true;
    ran && list(report, "tests").all(has_passed) && list(report, "bench").all(|row| row["failed"].is_null())
}

/// For people.
pub fn text(report: &Value) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut text = String::from("kvant on a GPU\n\n");
    for name in ["day", "commit", "changed", "machine", "system", "kernel", "rustc"] {
        text += &format!("{name:<9} {}\n", word(&report[name]));
    }
    let adapter: Vec<String> = list(report, "adapter").map(word).collect();
    text += &format!("adapter   {}\n", adapter.join(", "));
    let (mut passed, mut failed) = (0, Vec::new());
    for test in list(report, "tests") {
        match has_passed(test) {
            true => passed += 1,
            false => failed.push(test),
        }
    }
    text += &format!("\ntests: {passed} passed, {} failed\n", failed.len());
    if report["tests_built"] != true {
        text += "  the tests did not run to their end\n";
    }
    for test in failed {
        text += &format!("  {} {}\n", word(&test["name"]), word(&test["outcome"]));
        for line in test["said"].as_str().unwrap_or_default().lines() {
            text += &format!("      {line}\n");
        }
    }
    text += "\nspeed:\n";
    for row in list(report, "bench") {
        text += &format!("  {}\n", word(&row["command"]));
        let what = if row["failed"].is_null() { &row["figures"] } else { &row["failed"] };
        text += &format!("      {}\n", word(what));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
running 3 tests
test tests::pages::a ... ok
test tests::pages::b ... FAILED
test tests::small::c ... ok

failures:

---- tests::pages::b stdout ----

thread 'tests::pages::b' panicked at src/x.rs:3:
off by 2e-3, allowed 1e-4

failures:
    tests::pages::b

test result: FAILED. 2 passed; 1 failed; 0 ignored
";

    fn report() -> Value {
        let lines: Vec<String> = PRINTED.lines().map(str::to_owned).collect();
        json!({
            "day": "2026-01-02", "adapter": ["Card", "vulkan"], "tests_built": true, "tests": super::tests(&lines),
            "bench": [{ "command": "bench model.gguf", "figures": { "tokens_per_second": 12.5 } }],
        })
    }

    #[test]
    fn tests_are_read_with_their_words() {
        let report = report();
        assert_eq!(report["tests"].as_array().unwrap().len(), 3);
        let failed = &report["tests"][1];
        assert_eq!(failed["outcome"], "failed");
        assert!(failed["said"].as_str().unwrap().ends_with("off by 2e-3, allowed 1e-4"));
        assert!(report["tests"][0]["said"].is_null());
    }

    #[test]
    fn people_are_told_what_failed_and_with_which_numbers() {
        let text = text(&report());
        for words in ["Card, vulkan", "2 passed, 1 failed", "tests::pages::b", "off by 2e-3", "12.5"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }

    #[test]
    fn a_failure_is_not_well_and_neither_is_nothing() {
        let mut report = report();
        assert!(!is_well(&report));
        report["tests"].as_array_mut().unwrap().remove(1);
        assert!(is_well(&report));
        report["bench"][0]["failed"] = json!("no memory");
        assert!(!is_well(&report));
        assert!(!is_well(&json!({ "tests": [], "tests_built": true })));
    }
}
