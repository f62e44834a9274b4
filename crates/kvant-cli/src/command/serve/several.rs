//! Several models, loaded when they are asked for.

use super::loader::{FoundModels, Loader, folder_of};
use super::{Serve, public_name, warn_if_open};
use crate::failure::Failure;
use kvant_engine::memory::{Memory, bytes};
use kvant_hub::Hub;
use kvant_server::Server;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// The models that arguments name, where they name several: paths and names, or a folder of models. None for one model.
pub fn find(arguments: &[String]) -> Result<FoundModels, Failure> {
    let models: Vec<String> = match arguments {
        [only] if is_shelf(Path::new(only)) => in_folder(Path::new(only))?,
        [] | [_] => return Ok(Vec::new()),
        several => several.to_vec(),
    };
    let mut found = FoundModels::new();
    for model in models {
        let name = public_name(&model);
        if found.iter().any(|(other, _)| *other == name) {
            return Err(Failure::Usage(format!("two models are named {name}; rename one of the files")));
        }
        found.push((name, model));
    }
    Ok(found)
}

/// All models that were fetched, by their names, the default one first; none where there are none.
pub fn pulled(default: &str) -> Result<FoundModels, Failure> {
    let Ok(hub) = Hub::from_env() else { return Ok(FoundModels::new()) };
    let mut found: FoundModels =
        hub.models()?.into_iter().map(|model| (model.name.clone(), model.name)).collect();
    found.sort_by_key(|(name, _)| name != default);
    Ok(found)
}

/// A folder that is not itself a model.
fn is_shelf(path: &Path) -> bool {
    path.is_dir() && !path.join("config.json").exists()
}

/// Files and folders that are models, by name.
fn in_folder(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut models = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        if is_gguf || path.join("config.json").exists() {
            models.push(path.display().to_string());
        }
    }
    models.sort();
    match models.is_empty() {
        true => Err(Failure::new(format!("{}: this folder has no models", folder.display()))),
        false => Ok(models),
    }
}

impl Serve {
    /// Serves them until it is told to end.
    pub(super) fn serve_several(
        &self,
        found: FoundModels,
        keys: &[String],
        ends: UnboundedReceiver<()>,
    ) -> Result<(), Failure> {
        if self.alias.is_some() {
            let message = "--alias names one model; several models have the names of their files";
            return Err(Failure::Usage(message.into()));
        }
        let available = || Memory::read().map(|memory| memory.available / 4 * 3);
        let memory = self.memory.map(|size| size.0 as u64).or_else(available);
        let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
        let (folder, share) = (self.kv_dir.clone(), self.kv_dir_size.0 as u64 / names.len() as u64);
        let kept = move |name: &str| folder.as_ref().map(|folder| (folder_of(folder, name), share));
        let loader = Loader::new(found, self.model.clone(), self.scheduler_options(), kept).within(memory);
        let options = self.server_options("", keys, self.sampling.overrides()?);
        let idle = self.idle.map(Duration::from_secs);
        let address = (self.host.as_str(), self.port);
        let server = Server::bind_on_demand(address, Arc::new(loader), memory, idle, options);
        let server = server.map_err(|e| self.cannot_listen(&e))?;
        let address = server.address()?;
        warn_if_open(keys, address);
        let room = memory.map_or("without a limit".to_owned(), |room| format!("in up to {}", bytes(room)));
        eprintln!(
            "{} model{}, loaded on demand, {room}: {}; press Ctrl-C to stop",
            names.len(),
            if names.len() == 1 { "" } else { "s" },
            names.join(", ")
        );
        writeln!(crate::shown::stdout(), "http://{address}")?;
        Ok(server.run(ends)?)
    }
}
