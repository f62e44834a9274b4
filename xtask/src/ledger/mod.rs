//! The ledger: figures in JSON files, and every table in Markdown made from them.
//!
//! A file of `docs/results/` is an object:
//!
//! ```text
//! title, machine, commit, command     words; where, with what and how the rows were made
//! notes                               paragraphs to stand below the title, if any
//! rows                                objects: one figure or text per key
//! tables                              by name: columns, and which rows they show
//! ```
//!
//! A table has `columns`, each with a `head` and a `cell`: a text with keys in braces, such as `{kl_mean:.4} ± {kl_stderr:.4}`
//! or `{top1:.1%}` (a share in percent). `where` names keys with the values, or lists of values, that a row must have;
//! `sort` names the key that puts them in order; `merge` makes one row of several that share the key `by`, and what each of
//! them says is found under its `tag`: `{strict kl_mean:g}`. Rows may have a table's worth of text of their own: a key that
//! is missing is an empty cell.
//!
//! In a Markdown file, what stands between `<!-- ledger: FILE/TABLE -->` and `<!-- /ledger -->` is made from these;
//! `FILE/about` says machine, commit and command. `cargo xtask ledger` writes it; `cargo xtask ledger check`, which is also a
//! step of `cargo xtask test`, fails when a table or a [picture](chart) is not what its figures say, or a table stands without marks.

mod cell;
mod chart;
mod pages;
mod record;
mod results;
mod shown;

use crate::step::{Outcome, Trouble};
use crate::tally::Tally;
use std::fs;

pub use record::record;

/// Brings every table up to date, and says which files changed.
pub fn write() -> Result<(), String> {
    let stale = pages::stale()?;
    for (path, text) in &stale {
        fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
        println!("{path}: written");
    }
    if stale.is_empty() {
        println!("all tables and pictures are up to date");
    }
    Ok(())
}

/// Fails when a table is not what its JSON says.
pub fn check() -> Result<(), String> {
    let stale = pages::stale()?;
    let names: Vec<&str> = stale.iter().map(|(path, _)| path.as_str()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(format!("{}: not what the figures say; run `cargo xtask ledger`", names.join(", "))),
    }
}

/// [`check`] as a step of the tests.
pub fn step() -> Outcome {
    check().map(|()| Tally::default()).map_err(Trouble::failed)
}
