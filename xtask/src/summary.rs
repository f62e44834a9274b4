//! The closing table: one row for every step, and the count of the last line.

use crate::step::{Outcome, Record, Trouble};
use crate::tally::Tally;

/// The outcome in the word used by the table.
pub fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Ok(_) => "ok",
        Err(Trouble::Failed { .. }) => "FAILED",
        Err(Trouble::NotRun { .. }) => "NOT RUN",
    }
}

/// One row per step: name, outcome, time, and the tests or the reason.
pub fn table(records: &[Record]) -> String {
    let width = records.iter().map(|r| r.name.len()).max().unwrap_or(0).max("step".len());
    let mut text = format!("{:width$}  {:<7}  {:>8}\n", "step", "result", "time");
    for record in records {
        let time = format!("{:.1} s", record.elapsed.as_secs_f64());
        let row = format!(
            "{:width$}  {:<7}  {time:>8}  {}",
            record.name,
            word(&record.outcome),
            detail(&record.outcome)
        );
        text += row.trim_end();
        text += "\n";
    }
    text
}

fn detail(outcome: &Outcome) -> String {
    match outcome {
        Ok(tests) => counts(*tests),
        Err(Trouble::NotRun { reason }) => reason.clone(),
        Err(Trouble::Failed { reason, tests }) => [reason.clone(), counts(*tests)]
            .into_iter()
            .filter(|s| !s.is_empty())
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// The tests in words; empty for a step that is a single check.
fn counts(tests: Tally) -> String {
    if tests.reports == 0 {
        return String::new();
    }
    if tests.passed + tests.failed + tests.ignored == 0 {
        return "there were no tests to run".to_string();
    }
    let mut text = format!("{} passed", tests.passed);
    if tests.failed > 0 {
        text += &format!(", {} failed", tests.failed);
    }
    if tests.ignored > 0 {
        text += &format!(", {} ignored", tests.ignored);
    }
    text
}

/// Passed and failed over all steps. A step that runs tests counts as its tests, any other as one; a step
/// that failed counts as one failure at least, and with `strict` so does one that could not run.
pub fn total(records: &[Record], strict: bool) -> Tally {
    let mut total = Tally::default();
    for record in records {
        match &record.outcome {
            Ok(tests) if tests.reports == 0 => total.passed += 1,
            Ok(tests) => total += *tests,
            Err(Trouble::Failed { tests, .. }) => total += Tally { failed: tests.failed.max(1), ..*tests },
            Err(Trouble::NotRun { .. }) => total.failed += usize::from(strict),
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn records() -> Vec<Record> {
        let record = |name: &str, outcome| Record {
            name: name.to_string(),
            outcome,
            elapsed: Duration::from_millis(1500),
        };
        vec![
            record("fmt", Ok(Tally::default())),
            record("test", Ok(Tally { passed: 40, failed: 0, ignored: 2, reports: 1 })),
            record(
                "doctest",
                Err(Trouble::Failed {
                    reason: "exit status: 101".into(),
                    tests: Tally { passed: 3, failed: 2, ignored: 0, reports: 1 },
                }),
            ),
            record("asan", Ok(Tally { reports: 1, ..Tally::default() })),
            record("clippy", Err(Trouble::failed("exit status: 101"))),
            record("aarch64", Err(Trouble::not_run("no qemu-aarch64"))),
        ]
    }

    #[test]
    fn every_step_has_a_row_and_every_trouble_its_reason() {
        let table = table(&records());
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 7, "{table}");
        assert_eq!(rows[1], "fmt      ok          1.5 s");
        assert_eq!(rows[2], "test     ok          1.5 s  40 passed, 2 ignored");
        assert_eq!(rows[3], "doctest  FAILED      1.5 s  exit status: 101; 3 passed, 2 failed");
        assert_eq!(rows[4], "asan     ok          1.5 s  there were no tests to run");
        assert_eq!(rows[6], "aarch64  NOT RUN     1.5 s  no qemu-aarch64");
    }

    #[test]
    fn the_total_counts_tests_and_single_checks() {
        let lenient = total(&records(), false);
        assert_eq!((lenient.passed, lenient.failed), (1 + 40 + 3, 2 + 1));
        let strict = total(&records(), true);
        assert_eq!((strict.passed, strict.failed), (1 + 40 + 3, 2 + 1 + 1));
    }
}
