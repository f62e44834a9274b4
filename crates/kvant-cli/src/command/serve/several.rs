//! Several models, loaded when they are asked for.

use super::{Serve, public_name, warn_if_open};
use crate::failure::Failure;
use crate::open;
use crate::options::ModelOptions;
use kvant_engine::memory::{Memory, bytes};
use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
use kvant_server::{LoadedModel, ModelEntry, ModelLoader, Server};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Models by name, and where each is.
pub type Found = Vec<(String, String)>;

/// The models that arguments name, where they name several: paths and names, or a folder of models. None for one model.
pub fn find(arguments: &[String]) -> Result<Found, Failure> {
    let models: Vec<String> = match arguments {
        [only] if is_shelf(Path::new(only)) => in_folder(Path::new(only))?,
        [] | [_] => return Ok(Vec::new()),
        several => several.to_vec(),
    };
    let mut found = Found::new();
    for model in models {
        let name = public_name(&model);
        if found.iter().any(|(other, _)| *other == name) {
            return Err(Failure::Usage(format!("two models are called {name}; rename one of their files")));
        }
        found.push((name, model));
    }
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
        true => Err(Failure::new(format!("{}: there are no models in this folder", folder.display()))),
        false => Ok(models),
    }
}

/// About what a model takes: its files. Its cache comes on top as it is needed.
fn size(model: &str) -> u64 {
    let path = Path::new(model);
    let length = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| length(&entry.path())).sum(),
        Err(_) => length(path),
    }
}

struct Loader {
    found: Found,
    options: ModelOptions,
    work: SchedulerOptions,
}

impl ModelLoader for Loader {
    fn entries(&self) -> Vec<ModelEntry> {
        let entry = |(name, model): &(String, String)| ModelEntry { name: name.clone(), bytes: size(model) };
        self.found.iter().map(entry).collect()
    }

    fn load(&self, name: &str) -> Result<LoadedModel, String> {
        let missing = || format!("there is no model {name}");
        let (_, model) = self.found.iter().find(|(other, _)| other == name).ok_or_else(missing)?;
        let mut options = self.options.clone();
        options.model = model.clone();
        let words = |failure: Failure| match failure {
            Failure::Message(words) | Failure::Usage(words) => format!("{name} cannot be loaded: {words}"),
            Failure::OutputClosed | Failure::Interrupted => format!("{name} was not loaded"),
        };
        let opened = open::open(&options).map_err(words)?;
        let empty = opened.shared_cache().map_err(|e| format!("{name} cannot be loaded: {e}"))?;
        let scheduler = Scheduler::new(Arc::clone(opened.engine()), empty, self.work);
        let handle = scheduler.handle();
        eprintln!("{name} is loaded: contexts of {} tokens", handle.context());
        let worker =
            std::thread::Builder::new().name("kvant-scheduler".into()).spawn(move || scheduler.run());
        Ok(LoadedModel { handle, worker: worker.map_err(|e| e.to_string())? })
    }
}

impl Serve {
    /// Serves them until it is told to end.
    pub(super) fn serve_many(
        &self,
        found: Found,
        keys: &[String],
        ends: UnboundedReceiver<()>,
    ) -> Result<(), Failure> {
        if self.kv_dir.is_some() || self.alias.is_some() {
            let message = "--kv-dir and --alias are for one model; serve one, or leave them out";
            return Err(Failure::Usage(message.into()));
        }
        let available = || Memory::read().map(|memory| memory.available / 4 * 3);
        let memory = self.memory.map(|size| size.0 as u64).or_else(available);
        let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
        let loader = Loader { found, options: self.model.clone(), work: self.scheduler_options() };
        let options = self.server_options("", keys, self.sampling.forced()?);
        let idle = self.idle.map(Duration::from_secs);
        let address = (self.host.as_str(), self.port);
        let server = Server::bind_on_demand(address, Arc::new(loader), memory, idle, options);
        let server = server.map_err(|e| self.cannot_listen(&e))?;
        let address = server.address()?;
        warn_if_open(keys, address);
        let room = memory.map_or("without a limit".to_owned(), |room| format!("in up to {}", bytes(room)));
        eprintln!(
            "{} models, loaded when they are asked for, {room}: {}; Ctrl-C ends",
            names.len(),
            names.join(", ")
        );
        writeln!(std::io::stdout(), "http://{address}")?;
        Ok(server.run(ends)?)
    }
}
