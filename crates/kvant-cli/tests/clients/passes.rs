//! A program that has to end well.

use std::process::Command;

/// Runs it, shows what it said, and fails with all of it where it failed.
#[track_caller]
pub fn passes(mut command: Command) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text[0], text[1]);
    println!("{}", text[0]);
}
