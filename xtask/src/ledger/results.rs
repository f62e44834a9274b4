//! One file of results.

use super::{cell, chart, shown, stale};
use serde_json::{Map, Value};
use std::fs;

/// Where the files are.
pub const FOLDER: &str = "docs/results";

/// A file of results.
pub struct Results {
    name: String,
    value: Value,
}

impl Results {
    /// Reads `docs/results/NAME.json`.
    pub fn read(name: &str) -> Result<Self, String> {
        let path = format!("{FOLDER}/{name}.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?;
        Self::new(name, value)
    }

    /// Checks that everything is there that a figure needs beside it.
    pub fn new(name: &str, value: Value) -> Result<Self, String> {
        for key in ["title", "answer", "topic", "machine", "commit", "command"] {
            if value[key].as_str().is_none_or(str::is_empty) {
                return Err(format!(
                    "{name}.json: `{key}` is missing: a figure says what was asked, what came out, and where and how it was made"
                ));
            }
        }
        if value["rows"].as_array().is_none_or(Vec::is_empty) {
            return Err(format!("{name}.json: there are no `rows`"));
        }
        if value["covers"].as_object().is_none_or(Map::is_empty) {
            return Err(format!("{name}.json: `covers` names no path: which code are these figures of?"));
        }
        Ok(Self { name: name.to_owned(), value })
    }

    /// A text of the file.
    pub fn text(&self, key: &str) -> &str {
        self.value[key].as_str().unwrap_or_default()
    }

    /// Its place among the questions of its topic.
    pub fn order(&self) -> u64 {
        self.value["order"].as_u64().unwrap_or(u64::MAX)
    }

    /// Machine, commit and command.
    pub fn about(&self) -> String {
        let (machine, commit, command) = (self.text("machine"), self.text("commit"), self.text("command"));
        format!("Machine: {machine}. Commit `{commit}`.\n\n```sh\n{command}\n```\n")
    }

    /// The rows that a table or a series of a chart shows.
    pub fn rows(&self, table: &Value) -> Result<Vec<Value>, String> {
        shown::rows(&self.value["rows"], table).map_err(|e| format!("{}.json: {e}", self.name))
    }

    /// A table in Markdown.
    pub fn table(&self, name: &str) -> Result<String, String> {
        let wrong = |what: &str| format!("{}.json, table {name}: {what}", self.name);
        let table = &self.value["tables"][name];
        let columns = table["columns"].as_array().ok_or_else(|| wrong("there is none with `columns`"))?;
        let shown = shown::rows(&self.value["rows"], table).map_err(|e| wrong(&e))?;
        let mut lines: Vec<Vec<String>> = Vec::new();
        for row in &shown {
            let cells =
                columns.iter().map(|column| cell::filled(column["cell"].as_str().unwrap_or_default(), row));
            lines.push(cells.collect::<Result<_, _>>().map_err(|e| wrong(&e))?);
        }
        if lines.is_empty() {
            return Err(wrong("no row fits"));
        }
        let heads: Vec<&str> =
            columns.iter().map(|column| column["head"].as_str().unwrap_or_default()).collect();
        let rules: Vec<&str> =
            columns.iter().map(|column| if column["left"] == true { "---" } else { "--:" }).collect();
        let mut out = format!("| {} |\n|{}|\n", heads.join(" | "), rules.join("|"));
        for cells in lines {
            out += &format!("| {} |\n", cells.join(" | "));
        }
        Ok(out)
    }

    /// A page: what `docs/results/NAME.md` holds.
    pub fn page(&self, now: &mut stale::Now) -> Result<String, String> {
        let mut out = format!("# {}\n\n**{}**\n\n", self.text("title"), self.text("answer"));
        for chart in self.texts("charts") {
            out += &format!("![{}](../charts/{chart}.svg)\n\n", chart::title(chart)?);
        }
        for note in self.texts("notes") {
            out += &format!("{note}\n\n");
        }
        for (name, table) in self.value["tables"].as_object().into_iter().flatten() {
            if table["elsewhere"] == true {
                continue;
            }
            if let Some(title) = table["title"].as_str() {
                out += &format!("## {title}\n\n");
            }
            out += &format!("{}\n", self.table(name)?);
            if let Some(below) = table["below"].as_str() {
                out += &format!("{below}\n\n");
            }
        }
        out += &format!("## How to repeat it\n\n{}{}\n", now.mark(&self.value), self.about());
        out += &format!("Raw rows: [{0}.json]({0}.json).\n\n", self.name);
        let short: Vec<&str> = self.texts("short").collect();
        if !short.is_empty() {
            out += "## What fell short\n\n";
            out += &short.iter().map(|line| format!("- {line}\n")).collect::<String>();
        }
        Ok(format!("{}\n", out.trim_end()))
    }

    /// Whether the code has changed since the figures were taken.
    pub fn is_stale(&self, now: &mut stale::Now) -> bool {
        !now.mark(&self.value).is_empty()
    }

    /// The texts of a list.
    fn texts(&self, key: &str) -> impl Iterator<Item = &str> {
        self.value[key].as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results() -> Value {
        json!({
            "title": "T?", "answer": "Yes.", "topic": "t", "covers": {"a": "1"}, "machine": "M", "commit": "abc", "command": "kvant eval",
            "rows": [{"spec": "a", "kl": 0.5, "mode": "x"}, {"spec": "b", "kl": 0.25, "mode": "y"}],
            "tables": {
                "all": {"title": "All", "columns": [{"head": "cache", "cell": "`{spec}`", "left": true}, {"head": "KL", "cell": "{kl:.2}"}]},
                "some": {"where": {"mode": ["y", "z"]}, "columns": [{"head": "KL", "cell": "{kl:.1}"}], "below": "That was it."},
                "none": {"where": {"mode": "q"}, "columns": []}
            }
        })
    }

    #[test]
    fn tables_show_the_rows_that_fit() {
        let results = Results::new("r", results()).unwrap();
        assert_eq!(
            results.table("all").unwrap(),
            "| cache | KL |\n|---|--:|\n| `a` | 0.50 |\n| `b` | 0.25 |\n"
        );
        assert_eq!(results.table("some").unwrap(), "| KL |\n|--:|\n| 0.2 |\n");
        assert!(results.table("none").unwrap_err().contains("no row fits"));
        assert!(results.table("absent").unwrap_err().contains("table absent"));
        assert!(results.about().contains("Commit `abc`"));
    }

    #[test]
    fn figures_without_a_machine_or_rows_are_refused() {
        for key in ["title", "answer", "topic", "machine", "commit", "command", "rows", "covers"] {
            let mut value = results();
            value[key] = Value::Null;
            assert!(Results::new("r", value).err().unwrap().contains(key));
        }
    }

    #[test]
    fn a_page_has_everything() {
        let mut value = results();
        value["notes"] = json!(["First.", "Second."]);
        value["short"] = json!(["It is slow.", "It is young."]);
        value["tables"].as_object_mut().unwrap().remove("none");
        value["tables"]["all"]["elsewhere"] = true.into();
        let page = Results::new("r", value).unwrap().page(&mut stale::Now::default()).unwrap();
        assert!(page.starts_with("# T?\n\n**Yes.**\n\nFirst.\n\nSecond.\n\n| KL |"), "{page}");
        assert!(page.contains("That was it.\n\n## How to repeat it\n\n"), "{page}");
        assert!(page.contains("Machine: M. Commit `abc`.") && !page.contains("All"), "{page}");
        assert!(
            page.ends_with("[r.json](r.json).\n\n## What fell short\n\n- It is slow.\n- It is young.\n"),
            "{page}"
        );
    }
}
