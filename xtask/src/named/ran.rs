//! What is known of the last run of every named step: a file with a line for each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::step::{Outcome, Trouble};
use crate::summary;
use crate::tally::Tally;

/// The last run of a named step.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The word of the closing table.
    result: String,
    /// Year, month and day.
    date: String,
    machine: String,
    passed: usize,
    failed: usize,
    ignored: usize,
    /// A hash of every folder that the step covers.
    tree: BTreeMap<String, String>,
}

impl Ran {
    pub fn new(outcome: &Outcome, date: String, machine: String, tree: BTreeMap<String, String>) -> Ran {
        let tally = match outcome {
            Ok(tests) | Err(Trouble::Failed { tests, .. }) => *tests,
            Err(Trouble::NotRun { .. }) => Tally::default(),
        };
        let Tally { passed, failed, ignored, .. } = tally;
        Ran { result: summary::word(outcome).to_string(), date, machine, passed, failed, ignored, tree }
    }

    fn from_json(value: &Value) -> Option<Ran> {
        let text = |key: &str| value[key].as_str().map(str::to_string);
        let count = |key: &str| value[key].as_u64().and_then(|count| usize::try_from(count).ok());
        let hash = |(folder, hash): (&String, &Value)| Some((folder.clone(), hash.as_str()?.to_string()));
        Some(Ran {
            result: text("result")?,
            date: text("date")?,
            machine: text("machine")?,
            passed: count("passed")?,
            failed: count("failed")?,
            ignored: count("ignored")?,
            tree: value["tree"].as_object()?.iter().map(hash).collect::<Option<_>>()?,
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "result": self.result,
            "date": self.date,
            "machine": self.machine,
            "passed": self.passed,
            "failed": self.failed,
            "ignored": self.ignored,
            "tree": self.tree,
        })
    }
}

/// The last runs, by the names of their steps.
#[derive(Debug, Default, PartialEq)]
pub struct Runs(BTreeMap<String, Ran>);

impl Runs {
    /// Reads the file; there are none where there is no file.
    pub fn read(path: &Path) -> Result<Runs, String> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Runs::default()),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }

    pub fn write(&self, path: &Path) -> Result<(), String> {
        fs::write(path, self.print()).map_err(|e| format!("{}: {e}", path.display()))
    }

    pub fn insert(&mut self, name: &str, ran: Ran) {
        self.0.insert(name.to_string(), ran);
    }

    /// The last run of a step in words, given what its folders hash to now.
    pub fn status(&self, name: &str, tree: &BTreeMap<String, String>) -> String {
        let Some(ran) = self.0.get(name) else { return "never recorded".to_string() };
        let Ran { result, date, machine, passed, failed, .. } = ran;
        let mut text = format!("{result} on {date}, {machine}");
        if passed + failed > 0 {
            text += &format!(", {passed} passed");
        }
        if *failed > 0 {
            text += &format!(", {failed} failed");
        }
        let changed: Vec<&str> = tree
            .iter()
            .filter(|(folder, hash)| ran.tree.get(*folder) != Some(hash))
            .map(|(f, _)| f.as_str())
            .collect();
        match changed.is_empty() {
            true => text,
            false => format!("stale: {} changed since; {text}", changed.join(", ")),
        }
    }

    fn parse(text: &str) -> Result<Runs, String> {
        let steps: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let of = |(name, value): (String, Value)| {
            let ran = Ran::from_json(&value).ok_or_else(|| format!("`{name}` is not what a step writes"))?;
            Ok((name, ran))
        };
        steps.into_iter().map(of).collect::<Result<_, String>>().map(Runs)
    }

    /// One line for each step, so that branches which ran different ones can be merged.
    fn print(&self) -> String {
        let line = |(name, ran): (&String, &Ran)| format!("  {}: {}", json!(name), ran.to_json());
        format!("{{\n{}\n}}\n", self.0.iter().map(line).collect::<Vec<_>>().join(",\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(hash: &str) -> BTreeMap<String, String> {
        [("crates/a", "1111"), ("crates/b", hash)].map(|(f, h)| (f.to_string(), h.to_string())).into()
    }

    fn runs() -> Runs {
        let mut runs = Runs::default();
        let tally = Tally { passed: 12, failed: 0, ignored: 1, reports: 1 };
        let ran = |outcome: &Outcome| {
            Ran::new(outcome, "2031-02-03".into(), "a \"fast\" one, 2 cores".into(), tree("2222"))
        };
        runs.insert("miri", ran(&Ok(tally)));
        let failed = Tally { failed: 3, ..tally };
        runs.insert("asan", ran(&Err(Trouble::Failed { reason: "exit status: 101".into(), tests: failed })));
        runs.insert("fuzz", ran(&Ok(Tally::default())));
        runs
    }

    #[test]
    fn what_is_written_is_read_back() {
        let printed = runs().print();
        assert_eq!(Runs::parse(&printed), Ok(runs()));
        assert_eq!(printed.lines().count(), 2 + 3, "{printed}");
        assert_eq!(Runs::parse(&Runs::default().print()), Ok(Runs::default()));
    }

    #[test]
    fn a_file_of_another_shape_is_refused_by_the_name_of_its_step() {
        assert!(Runs::parse("{").is_err());
        let error = Runs::parse("{\"miri\": {\"result\": \"ok\"}}").unwrap_err();
        assert!(error.contains("`miri`"), "{error}");
    }

    #[test]
    fn no_file_is_no_runs() {
        let path = std::env::temp_dir().join(format!("kvant-xtask-no-such-file-{}", std::process::id()));
        assert_eq!(Runs::read(&path), Ok(Runs::default()));
    }

    #[test]
    fn a_status_names_day_machine_and_what_has_changed() {
        let runs = runs();
        assert_eq!(
            runs.status("miri", &tree("2222")),
            "ok on 2031-02-03, a \"fast\" one, 2 cores, 12 passed"
        );
        let stale = runs.status("miri", &tree("3333"));
        assert!(stale.starts_with("stale: crates/b changed since; ok on 2031-02-03"), "{stale}");
        let failed = runs.status("asan", &tree("2222"));
        assert!(failed.starts_with("FAILED on") && failed.ends_with("12 passed, 3 failed"), "{failed}");
        assert_eq!(runs.status("fuzz", &tree("2222")), "ok on 2031-02-03, a \"fast\" one, 2 cores");
        assert_eq!(runs.status("record", &tree("2222")), "never recorded");
    }

    #[test]
    fn a_folder_that_a_step_covers_since_then_makes_it_stale() {
        let mut wider = tree("2222");
        wider.insert("crates/c".into(), "4444".into());
        assert!(runs().status("miri", &wider).starts_with("stale: crates/c changed"));
    }
}
