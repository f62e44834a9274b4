//! `kvant models`: what is in the cache.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_engine::memory::bytes;
use kvant_hub::{Hub, KNOWN};
use serde_json::{Value, json};
use std::io::Write;

/// Arguments of `kvant models`.
#[derive(Args)]
pub struct Models {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Models {
    /// Prints a line per model.
    pub fn execute(self) -> Result<(), Failure> {
        let hub = Hub::from_env()?;
        let models = hub.models()?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<Value> =
                models.iter().map(|m| json!({"name": m.name, "bytes": m.bytes, "path": m.path})).collect();
            writeln!(out, "{}", Value::Array(list))?;
            return Ok(());
        }
        if models.is_empty() {
            let known: Vec<&str> = KNOWN.iter().map(|known| known.short).collect();
            eprintln!(
                "no models in {} yet; try `kvant pull {}`",
                hub.folder().display(),
                known.join("` or `")
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
}
