//! `kvant rm`: a model out of the cache.

use crate::failure::Failure;
use clap::Args;
use kvant_engine::memory::bytes;
use kvant_hub::{Hub, ModelName};
use std::path::Path;

/// Arguments of `kvant rm`.
#[derive(Args)]
pub struct Rm {
    /// Models as `kvant models` names them
    #[arg(required = true, value_name = "MODEL")]
    names: Vec<String>,
}

impl Rm {
    /// Removes them one by one.
    pub fn execute(self) -> Result<(), Failure> {
        let hub = Hub::from_env()?;
        for name in &self.names {
            if Path::new(name).exists() {
                return Err(Failure::Usage(format!(
                    "{name} is your own file: `kvant rm` removes only models that kvant downloaded"
                )));
            }
            let freed = hub.remove(&ModelName::parse(name)?)?;
            eprintln!("removed {name}, {}", bytes(freed));
        }
        Ok(())
    }
}
