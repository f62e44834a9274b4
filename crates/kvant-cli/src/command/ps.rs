//! `kvant ps`: what a server on this machine has loaded.

use crate::command::bench::wire::Site;
use crate::failure::Failure;
use crate::screen::grouped;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_engine::memory::bytes;
use serde_json::Value;
use std::io::Write;

/// Arguments of `kvant ps`.
#[derive(Args)]
pub struct Ps {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,

    /// API key, if the server requires one
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

impl Ps {
    /// Asks the server for its models.
    pub fn execute(self) -> Result<(), Failure> {
        let site = Site::new(&self.server, self.api_key)?;
        let answer = site.json("/v1/models", None)?;
        // Other servers have no such list.
        let loaded = site.json("/api/ps", None).unwrap_or_default();
        let mut out = crate::shown::stdout();
        if self.json {
            writeln!(out, "{answer}")?;
            return Ok(());
        }
        let mut table = Table::new(&[
            Left("NAME"),
            Right("CONTEXT"),
            Left("STATE"),
            Right("MEMORY"),
            Left("DEVICE"),
            Left("UNTIL"),
        ]);
        for model in answer["data"].as_array().unwrap_or(&Vec::new()) {
            let context = ["context_length", "max_model_len"].iter().find_map(|key| model[key].as_u64());
            let context = context.map_or("-".to_owned(), |tokens| grouped(tokens as usize));
            let state =
                model["state"].as_str().or_else(|| model["status"]["value"].as_str()).unwrap_or("loaded");
            let own =
                loaded["models"].as_array().and_then(|all| all.iter().find(|one| one["name"] == model["id"]));
            let own = own.unwrap_or(&Value::Null);
            let until = match own["expires_at"].as_str() {
                None => "-".to_owned(),
                Some(moment) if moment.starts_with("9999") => "forever".to_owned(),
                Some(moment) => moment.to_owned(),
            };
            table.row([
                model["id"].as_str().map_or_else(|| Value::to_string(&model["id"]), str::to_owned),
                context,
                state.to_owned(),
                own["size"].as_u64().map_or("-".to_owned(), |size| format!("up to {}", bytes(size))),
                own["device"].as_str().unwrap_or("-").to_owned(),
                until,
            ]);
        }
        table.write(&mut out, 0)?;
        Ok(())
    }
}
