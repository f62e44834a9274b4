//! `kvant plan`, which is two commands now.

use crate::failure::Failure;
use clap::Args;

/// Whatever was asked of `kvant plan`.
#[derive(Args)]
pub struct Plan {
    /// The old arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Plan {
    /// Names the command that does it.
    pub fn execute(self) -> Result<(), Failure> {
        let is_search = self.arguments.iter().any(|argument| {
            ["--kl", "--bits"]
                .iter()
                .any(|flag| argument == flag || argument.starts_with(&format!("{flag}=")))
        });
        let (this, other) = match is_search {
            true => ("kvant tune", "kvant fit tells what memory contexts and caches take"),
            false => ("kvant fit", "kvant tune --kl or --bits searches for a plan"),
        };
        let asked = self.arguments.join(" ");
        Err(Failure::Usage(format!("kvant plan is two commands now: use `{this} {}`; {other}", asked.trim())))
    }
}
