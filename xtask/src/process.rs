//! Runs other programs: shows the command as one could type it, passes the output through, counts tests.

use std::env;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::step::{Outcome, Trouble};
use crate::tally::{Counter, Tally};

/// A program with its arguments and the environment it gets on top of ours.
pub struct Call {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Keeps the keyboard, so that sudo can ask for a password.
    keyboard: bool,
}

/// `cargo` of the toolchain in use.
pub fn cargo<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Call {
    call("cargo", args)
}

/// Any program.
pub fn call<S: AsRef<str>>(program: &str, args: impl IntoIterator<Item = S>) -> Call {
    let args = args.into_iter().map(|arg| arg.as_ref().to_string()).collect();
    Call { program: program.to_string(), args, env: Vec::new(), keyboard: false }
}

impl Call {
    /// More arguments.
    pub fn args<S: AsRef<str>>(mut self, args: impl IntoIterator<Item = S>) -> Call {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_string()));
        self
    }

    /// An environment variable.
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Call {
        self.env.push((key.to_string(), value.into()));
        self
    }

    /// An environment variable that gives way to the one already set.
    pub fn env_default(self, key: &str, value: &str) -> Call {
        if env::var_os(key).is_some() { self } else { self.env(key, value) }
    }

    /// Lets the program read the keyboard.
    pub fn with_keyboard(mut self) -> Call {
        self.keyboard = true;
        self
    }

    /// Runs it in the open. Fails with its exit status, and with the tests counted until then.
    pub fn run(self) -> Outcome {
        println!("$ {}", self.shown());
        let mut command = self.command();
        command.stdin(if self.keyboard { Stdio::inherit() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if std::io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut child = command
            .spawn()
            .map_err(|error| Trouble::not_run(format!("cannot start {}: {error}", self.program)))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let tests = thread::scope(|scope| {
            let errors = scope.spawn(|| stderr.map(|from| pass_through(from, std::io::stderr())));
            let mut tests = stdout.map(|from| pass_through(from, std::io::stdout())).unwrap_or_default();
            tests += errors.join().ok().flatten().unwrap_or_default();
            tests
        });
        let status = child
            .wait()
            .map_err(|error| Trouble::failed(format!("lost track of {}: {error}", self.program)))?;
        if status.success() { Ok(tests) } else { Err(Trouble::Failed { reason: status.to_string(), tests }) }
    }

    /// Runs it quietly; what it printed if it succeeded, `None` if it failed or does not exist.
    pub fn probe(self) -> Option<String> {
        let output = self.command().stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The same with `input` to read.
    pub fn probe_with(self, input: &str) -> Option<String> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let mut stdin = child.stdin.take()?;
        let output = thread::scope(|scope| {
            // A program may answer before it has read everything, and neither may wait for the other.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
            child.wait_with_output()
        });
        let output = output.ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // What cargo says of this program to itself. A build script that looks at it (ring has one) would run again, and all that
        // depends on it be compiled again, whenever `cargo xtask` and plain cargo take turns.
        for (key, _) in env::vars_os() {
            let is_own = |key: &str| key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_");
            if key.to_str().is_some_and(is_own) {
                command.env_remove(&key);
            }
        }
        command.args(&self.args).envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }

    /// The command as one would type it.
    fn shown(&self) -> String {
        let env = self.env.iter().map(|(key, value)| format!("{key}={}", quoted(value)));
        let args = self.args.iter().map(|arg| quoted(arg));
        env.chain([self.program.clone()]).chain(args).collect::<Vec<_>>().join(" ")
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Copies line by line and counts the tests that go by.
fn pass_through(from: impl Read, mut to: impl Write) -> Tally {
    let mut from = BufReader::new(from);
    let mut counter = Counter::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        // A reader who has gone away is no reason to stop the tests.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        counter.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    counter.tests()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_one_would_type_them() {
        let call = cargo(["test", "-p", "kvant-codec"]).args(["it's"]).env("RUNNER", "qemu-aarch64 -cpu max");
        assert_eq!(call.shown(), r"RUNNER='qemu-aarch64 -cpu max' cargo test -p kvant-codec 'it'\''s'");
    }

    #[test]
    fn output_passes_through_unchanged_and_is_counted() {
        let text = b"running\ntest result: ok. 2 passed; 0 failed; 1 ignored\nno newline at the end\xff";
        let mut copy = Vec::new();
        let tests = pass_through(&text[..], &mut copy);
        assert_eq!(copy, text);
        assert_eq!(tests, Tally { passed: 2, failed: 0, ignored: 1, reports: 1 });
    }

    #[test]
    fn a_program_reads_what_it_is_given() {
        let long = "line\n".repeat(100_000);
        assert_eq!(call("cat", ["-"]).probe_with(&long).as_deref(), Some(long.as_str()));
        assert_eq!(call("false", [""; 0]).probe_with("x"), None);
    }

    #[test]
    fn a_program_that_does_not_exist_is_not_run() {
        assert!(call("kvant-no-such-program", ["x"]).probe().is_none());
        let outcome = call("kvant-no-such-program", ["x"]).run();
        assert!(matches!(outcome, Err(Trouble::NotRun { .. })), "{outcome:?}");
    }
}
