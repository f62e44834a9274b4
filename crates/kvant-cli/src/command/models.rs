//! `kvant models` (`list`, `ls`): what is in the cache.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_engine::memory::bytes;
use kvant_hub::{Hub, KNOWN, SHORT_NAMES};
use serde_json::{Value, json};
use std::io::Write;

/// Arguments of `kvant models`.
#[derive(Args)]
pub struct Models {
    /// List the known short names and what they stand for, instead of downloaded models
    #[arg(long)]
    known: bool,

    /// With --known, mark the names that are unverified
    #[arg(short = 'v', long, requires = "known")]
    verbose: bool,

    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Models {
    /// Prints a line per model.
    pub fn execute(self) -> Result<(), Failure> {
        if self.known {
            return self.known();
        }
        let hub = Hub::from_env()?;
        let models = hub.models()?;
        let mut out = crate::shown::stdout();
        if self.json {
            let list: Vec<Value> =
                models.iter().map(|m| json!({"name": m.name, "bytes": m.bytes, "path": m.path})).collect();
            writeln!(out, "{}", Value::Array(list))?;
            return Ok(());
        }
        if models.is_empty() {
            eprintln!(
                "no models in {} yet; try `kvant pull {}`; `kvant models --known` lists more names",
                hub.folder().display(),
                KNOWN[0].short
            );
            return Ok(());
        }
        let mut table = Table::new(&[Left("NAME"), Right("SIZE"), Left("FILE")]);
        for model in models {
            table.row([model.name, bytes(model.bytes), model.path.display().to_string()]);
        }
        table.write(&mut out, 0)?;
        Ok(())
    }

    /// Short names, with what was tried under them.
    fn known(&self) -> Result<(), Failure> {
        let pinned = KNOWN.iter().map(|known| (known.short.to_owned(), known.repo, known.file, true));
        let short = SHORT_NAMES.iter().map(|line| (line.name(), line.repo, line.quant, line.is_verified));
        let lines: Vec<_> = pinned.chain(short).collect();
        let mut out = crate::shown::stdout();
        if self.json {
            let list = lines.iter().map(|(name, repo, file, is_verified)| {
                json!({"name": name, "repo": repo, "file": file, "verified": is_verified})
            });
            writeln!(out, "{}", Value::Array(list.collect()))?;
            return Ok(());
        }
        let mut table = Table::new(&[Left("NAME"), Left("ON HUGGING FACE"), Left("")]);
        for (name, repo, file, is_verified) in lines {
            let remark = if is_verified || !self.verbose { "" } else { "unverified" };
            table.row([name, format!("{repo}:{file}"), remark.to_owned()]);
        }
        table.write(&mut out, 0)?;
        if self.verbose {
            writeln!(out, "\nunverified: never downloaded and run under this name")?;
        }
        Ok(())
    }
}
