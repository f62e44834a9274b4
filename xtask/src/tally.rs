//! Counts tests from what `cargo test`, `cargo nextest`, pytest and the record print.

use std::ops::AddAssign;

/// How many tests ran, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Known to the runner and not run.
    pub ignored: usize,
    /// Closing lines read. None means a program that is no test runner, not one that had nothing to run.
    pub reports: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.reports += other.reports;
    }
}

/// Reads the output of a test runner line by line.
#[derive(Default)]
pub struct Counter {
    /// From `test result: ok. 3 passed; 0 failed; 1 ignored; …`, one for each test program.
    cargo_test: Tally,
    /// From `Summary [ 0.012s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 0 skipped`.
    nextest: Option<Tally>,
    /// From `247 lines of avx512 compared, 0 differ`.
    record: Tally,
    /// From `1 failed, 3 passed, 1 skipped in 0.12s`, between signs or not.
    pytest: Tally,
}

impl Counter {
    /// Takes note of the line if it is a closing line of either runner.
    pub fn read(&mut self, line: &str) {
        let line = without_parentheses(&without_colour(line));
        if let Some((_, result)) = line.split_once("test result: ") {
            let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
            self.cargo_test += sum(counts);
        } else if line.trim_start().starts_with("Summary [")
            && let Some((_, counts)) = line.split_once(" run: ")
        {
            *self.nextest.get_or_insert_default() += sum(counts);
        } else if let Some(tally) = compared(&line) {
            self.record += tally;
        } else if let Some(tally) = of_pytest(&line) {
            self.pytest += tally;
        }
    }

    /// The tests so far. nextest repeats what a failed test printed, `test result` and all, so where it has
    /// spoken nothing else counts.
    pub fn tests(&self) -> Tally {
        let mut tests = self.nextest.unwrap_or(self.cargo_test);
        tests += self.record;
        // A test of cargo's that runs pytest is one test.
        if tests.reports == 0 {
            tests += self.pytest;
        }
        tests
    }
}

/// The lines of a record that are as recorded, and those that are not.
fn compared(line: &str) -> Option<Tally> {
    let (lines, differ) = line.trim().strip_suffix(" differ")?.split_once(" compared, ")?;
    let (compared, failed) = (lines.split_once(" lines of ")?.0.parse().ok()?, differ.parse().ok()?);
    Some(Tally { passed: usize::saturating_sub(compared, failed), failed, ignored: 0, reports: 1 })
}

/// The counts of a closing line of pytest: a list of nothing but counts, and a time.
fn of_pytest(line: &str) -> Option<Tally> {
    let (counts, time) = line.trim().trim_matches('=').trim().rsplit_once(" in ")?;
    time.trim().strip_suffix('s')?.parse::<f64>().ok()?;
    let is_count = |count: &str| {
        count.trim().split_once(' ').is_some_and(|(number, what)| {
            number.parse::<usize>().is_ok() && what.chars().all(|c| c.is_ascii_lowercase())
        })
    };
    counts.split(',').all(is_count).then(|| sum(counts))
}

/// The sum of a list such as `3 passed, 1 failed`.
fn sum(counts: &str) -> Tally {
    let mut tally = Tally { reports: 1, ..Tally::default() };
    for count in counts.split([';', ',']) {
        let Some((number, what)) = count.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        match what.trim() {
            "passed" => tally.passed += number,
            "failed" | "timed out" | "exec failed" | "error" | "errors" => tally.failed += number,
            "ignored" | "skipped" => tally.ignored += number,
            _ => {}
        }
    }
    tally
}

/// Drops terminal colour codes (`ESC [ … m`).
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(|&c| c == 'm');
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Drops `(…)`, where nextest puts commas of its own.
fn without_parentheses(line: &str) -> String {
    let mut depth = 0_usize;
    line.chars()
        .filter(|&c| {
            depth += usize::from(c == '(');
            let outside = depth == 0;
            depth -= usize::from(c == ')' && depth > 0);
            outside
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> (usize, usize, usize) {
        let mut counter = Counter::default();
        text.lines().for_each(|line| counter.read(line));
        let tests = counter.tests();
        (tests.passed, tests.failed, tests.ignored)
    }

    #[test]
    fn reads_cargo_test() {
        let text = "
test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 7 filtered out; finished in 0.01s
     Running tests/pages.rs
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(count(text), (13, 2, 3));
    }

    #[test]
    fn reads_nextest() {
        assert_eq!(count("     Summary [   0.012s] 3 tests run: 3 passed, 0 skipped"), (3, 0, 0));
        let text =
            " Summary [  61.3s] 9/12 tests run: 4 passed (1 slow, 1 leaky), 3 failed, 2 timed out, 1 skipped";
        assert_eq!(count(text), (4, 5, 1));
        let text = "\u{1b}[32;1m     Summary\u{1b}[0m [ 0.1s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \
                    \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        assert_eq!(count(text), (1, 0, 0));
    }

    #[test]
    fn reads_the_record() {
        let text = "avx2 fixture gemma f32 logits: 12, recorded 34\n247 lines of avx2 compared, 1 differ";
        assert_eq!(count(text), (246, 1, 0));
        assert_eq!(count("no lines of code compared, all differ"), (0, 0, 0));
    }

    #[test]
    fn reads_pytest() {
        assert_eq!(count("..F.\n1 failed, 56 passed, 2 skipped, 3 warnings in 4.56s"), (56, 1, 2));
        assert_eq!(count("======= 3 passed, 1 error in 61.00s (0:01:01) ======="), (3, 1, 0));
        assert_eq!(count("3 passed the gate in 5s\nfound 2 pages in 4s"), (0, 0, 0));
        assert_eq!(count("2 passed in 0.1s\ntest result: ok. 1 passed; 0 failed; 0 ignored"), (1, 0, 0));
    }

    #[test]
    fn a_failure_that_nextest_repeats_counts_once() {
        let text = "
        FAIL [   0.004s] kvant-codec fails
    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 33 filtered out; finished in 0.00s
     Summary [   0.100s] 34 tests run: 33 passed, 1 failed, 0 skipped";
        assert_eq!(count(text), (33, 1, 0));
    }

    #[test]
    fn other_lines_count_nothing() {
        let text = "test spec::round_trip ... ok\nrunning 3 tests\n3 passed, 0 failed\nSummary of it all";
        let mut counter = Counter::default();
        text.lines().for_each(|line| counter.read(line));
        assert_eq!(counter.tests(), Tally::default());
    }
}
