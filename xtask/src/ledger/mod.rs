//! The ledger: figures in JSON files, and every table in Markdown made from them.
//!
//! A file of `docs/results/` is an object:
//!
//! ```text
//! title, answer, topic, order        a question, its answer in a sentence, and where BENCHMARKS.md lists it
//! machine, commit, command            where, with what and how the rows were made
//! covers                              paths whose change makes the figures old, with their hashes at that commit
//! charts, notes, short                pictures by name; paragraphs below them; what fell short, point by point
//! rows                                objects: one figure or text per key
//! tables                              by name: columns, and which rows they show
//! ```
//!
//! A table has `columns`, each with a `head` and a `cell`: a text with keys in braces, such as `{kl_mean:.4} ± {kl_stderr:.4}`
//! or `{top1:.1%}` (a share in percent). `where` names keys with the values, or lists of values, that a row must have;
//! `sort` names the key that puts them in order; `runs` names the keys that runs of the same thing share, and shows their
//! median, with `{ms:.1~}` beside its spread; `merge` makes one row of several that share the key `by`, and what each of
//! them says is found under its `tag`: `{strict kl_mean:g}`. Rows may have a table's worth of text of their own: a key that
//! is missing is an empty cell. A table that is `elsewhere` is shown by a marker alone.
//!
//! In a Markdown file, what stands between `<!-- ledger: FILE/TABLE -->` and `<!-- /ledger -->` is made from these;
//! `FILE/about` says machine, commit and command, `index/TOPIC` lists questions. `cargo xtask ledger` writes it;
//! `cargo xtask ledger check`, which is also a step of `cargo xtask test`, fails when a table or a [picture](chart) is not
//! what its figures say, when either comes from no figures, or when a page is [too long](limits) to be read. It lists the
//! pages whose code has changed since ([`stale`]), and does not fail for that.

mod cell;
mod chart;
mod limits;
mod pages;
mod record;
mod results;
mod shown;
mod stale;

use crate::step::{Outcome, Trouble};
use crate::tally::Tally;
use std::fs;

pub use record::record;

/// Brings every table up to date, and says which files changed.
pub fn write() -> Result<(), String> {
    pages::fill_hashes()?;
    let fresh = pages::stale()?;
    for file in &fresh {
        fs::write(&file.path, &file.text).map_err(|e| format!("{}: {e}", file.path))?;
        println!("{}: written", file.path);
    }
    if fresh.is_empty() {
        println!("all tables and pictures are up to date");
    }
    Ok(())
}

/// Fails when a table is not what its JSON says. Pages whose code has changed since are listed.
pub fn check() -> Result<(), String> {
    let wrong: Vec<String> =
        pages::stale()?.into_iter().filter(|file| file.wrong).map(|file| file.path).collect();
    if !wrong.is_empty() {
        return Err(format!("{}: not what the figures say; run `cargo xtask ledger`", wrong.join(", ")));
    }
    let marked = pages::marked()?;
    if !marked.is_empty() {
        println!("figures of older code ({}): {}", marked.len(), marked.join(", "));
    }
    Ok(())
}

/// [`check`] as a step of the tests.
pub fn step() -> Outcome {
    check().map(|()| Tally::default()).map_err(Trouble::failed)
}
