//! Counts tests from what `cargo test` and `cargo nextest` print.

use std::ops::AddAssign;

/// How many tests ran, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Known to the runner and not run.
    pub ignored: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Tally {
    /// The counts in one line of output, when it is a closing line of either runner:
    ///
    /// ```text
    /// test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
    ///      Summary [   0.012s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 0 skipped
    /// ```
    pub fn from_line(line: &str) -> Option<Tally> {
        let line = without_parentheses(&without_colour(line));
        let counts = if let Some((_, counts)) = line.split_once("test result: ") {
            counts.split_once(". ")?.1
        } else if line.trim_start().starts_with("Summary [") {
            line.split_once(" run: ")?.1
        } else {
            return None;
        };
        let mut tally = Tally::default();
        for count in counts.split([';', ',']) {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match what.trim() {
                "passed" => tally.passed += number,
                "failed" | "timed out" | "exec failed" => tally.failed += number,
                "ignored" | "skipped" => tally.ignored += number,
                _ => {}
            }
        }
        Some(tally)
    }
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

    fn tally(passed: usize, failed: usize, ignored: usize) -> Option<Tally> {
        Some(Tally { passed, failed, ignored })
    }

    #[test]
    fn reads_cargo_test() {
        let line =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 7 filtered out; finished in 0.01s";
        assert_eq!(Tally::from_line(line), tally(12, 0, 3));
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Tally::from_line(line), tally(1, 2, 0));
    }

    #[test]
    fn reads_nextest() {
        let line = "     Summary [   0.012s] 3 tests run: 3 passed, 0 skipped";
        assert_eq!(Tally::from_line(line), tally(3, 0, 0));
        let line = "     Summary [  61.3s] 9/12 tests run: 4 passed (1 slow, 1 leaky), 3 failed, 2 timed out, 1 skipped";
        assert_eq!(Tally::from_line(line), tally(4, 5, 1));
        let line = "\u{1b}[32;1m     Summary\u{1b}[0m [ 0.1s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \
                    \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        assert_eq!(Tally::from_line(line), tally(1, 0, 0));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in
            ["", "test spec::round_trip ... ok", "running 3 tests", "3 passed, 0 failed", "Summary of it all"]
        {
            assert_eq!(Tally::from_line(line), None, "{line}");
        }
    }
}
