//! Models as the server loads them.

use crate::failure::Failure;
use crate::open;
use crate::options::ModelOptions;
use kvant_engine::estimate::MemoryEstimate;
use kvant_engine::scheduler::{Handle, Scheduler, SchedulerOptions};
use kvant_engine::{DiskTier, KvCache, LoadedModel, OpenOptions, OpenedAdapter};
use kvant_hub::{Hub, ModelName, Progress};
use kvant_model::Checkpoint;
use kvant_server::{ModelFacts, ModelLoader, PullProgress, ServedModel};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where prefixes are kept, and the most bytes they may have.
pub type Kept = (PathBuf, u64);

/// Where the model of a name keeps prefixes.
type KeptOf = Box<dyn Fn(&str) -> Option<Kept> + Send + Sync>;

/// Models by name, and where each is.
pub type FoundModels = Vec<(String, String)>;

/// Loads models in the way that the flags say.
pub struct Loader {
    found: Mutex<FoundModels>,
    options: ModelOptions,
    work: SchedulerOptions,
    /// Where each of them keeps prefixes, by its name.
    kept: KeptOf,
    /// Bytes that all of them may take together.
    memory: Option<u64>,
}

/// A model that is in memory and not at work yet.
pub struct Ready {
    scheduler: Scheduler,
    handle: Handle,
    /// Tokens of a context.
    pub context: usize,
    /// What computes.
    pub device: String,
    /// How keys and values are kept; none by an encoder.
    pub policy: Option<String>,
    /// The most bytes of keys and values.
    pub cap: Option<u64>,
    /// The memory of it all, with as many keys and values as there may be.
    pub estimate: MemoryEstimate,
}

impl Ready {
    /// Lets it work.
    pub fn start(self) -> std::io::Result<ServedModel> {
        let Self { scheduler, handle, estimate, .. } = self;
        let compute = move || scheduler.run();
        let worker = std::thread::Builder::new().name("kvant-scheduler".into()).spawn(compute)?;
        Ok(ServedModel { handle, worker, bytes: estimate.peak() })
    }
}

impl Loader {
    /// Models by these names, which keep prefixes where `kept` says.
    pub fn new(
        found: FoundModels,
        options: ModelOptions,
        work: SchedulerOptions,
        kept: impl Fn(&str) -> Option<Kept> + Send + Sync + 'static,
    ) -> Self {
        Self { found: Mutex::new(found), options, work, kept: Box::new(kept), memory: None }
    }

    fn found(&self) -> MutexGuard<'_, FoundModels> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same within so many bytes for all of them together.
    pub fn within(self, memory: Option<u64>) -> Self {
        Self { memory, ..self }
    }

    /// The options to open a model with.
    fn options(&self, name: &str) -> Result<ModelOptions, Failure> {
        let place = self.found().iter().find(|(other, _)| other == name).map(|(_, place)| place.clone());
        let place = place.ok_or_else(|| Failure::new(format!("there is no model {name}")))?;
        let mut options = self.options.clone();
        options.model = place;
        Ok(options)
    }

    /// Adds a name; false if it is taken.
    fn add(&self, name: &str, place: String) -> bool {
        let mut found = self.found();
        let is_free = !found.iter().any(|(other, _)| other == name);
        if is_free {
            found.push((name.to_owned(), place));
        }
        is_free
    }

    /// The context that a model has if no other were there, so that it does not depend on others, and the memory of it.
    fn estimate(
        &self,
        options: &ModelOptions,
        find: fn(&str) -> Result<PathBuf, Failure>,
    ) -> Result<(usize, MemoryEstimate), Failure> {
        let asked = OpenOptions { memory: self.memory, ..options.open_options()? };
        let checkpoint = asked.with_rope(Checkpoint::open(find(&options.model)?)?);
        asked.estimate(&checkpoint).map_err(|error| open::failure(&error))
    }

    /// Opens a model that may take `room` bytes.
    pub fn open(&self, name: &str, room: Option<u64>) -> Result<Ready, Failure> {
        let options = self.options(name)?;
        let context = room
            .map(|_| self.estimate(&options, open::find_or_pull))
            .transpose()?
            .map(|(context, _)| context);
        let opened = open::open_within(&options, room, context)?;
        check_names(name, opened.engine().library())?;
        let empty = opened.shared_cache()?;
        let is_encoder = opened.engine().model().is_encoder();
        let policy = (!is_encoder).then(|| empty.policy().to_string());
        let context = opened.context();
        // An encoder keeps nothing.
        let cap = empty.sequence().store().cap().filter(|_| !is_encoder).map(|cap| cap as u64);
        let estimate = opened.estimate()?;
        let adapters: u64 =
            opened.engine().library().iter().map(|of| of.applied.adapter.bytes() as u64).sum();
        let estimate = MemoryEstimate {
            cache: cap.unwrap_or(estimate.cache),
            weights: estimate.weights + adapters,
            ..estimate
        };
        let device = opened.engine().device().to_owned();
        let tier =
            (self.kept)(name).filter(|_| !is_encoder).map(|kept| disk(&kept, &opened, &empty)).transpose()?;
        let mut scheduler = Scheduler::new(Arc::clone(opened.engine()), empty, self.work);
        if let Some(tier) = tier {
            scheduler = scheduler.with_disk(tier)?;
        }
        let handle = scheduler.handle();
        Ok(Ready { scheduler, handle, context, device, policy, cap, estimate })
    }
}

impl ModelLoader for Loader {
    fn names(&self) -> Vec<String> {
        self.found().iter().map(|(name, _)| name.clone()).collect()
    }

    fn context(&self, name: &str) -> Option<usize> {
        let options = self.options(name).ok()?;
        self.estimate(&options, open::find).ok().map(|(context, _)| context)
    }

    fn facts(&self, name: &str) -> Option<ModelFacts> {
        let options = self.options(name).ok()?;
        crate::command::inspect::facts(&Checkpoint::open(open::find(&options.model).ok()?).ok()?).ok()
    }

    fn pull(&self, name: &str, report: &mut dyn FnMut(PullProgress<'_>)) -> Result<(), String> {
        // A path on this machine is nobody's business.
        let wanted = ModelName::parse(name).map_err(|error| error.to_string())?;
        let hub = Hub::from_env().map_err(|error| error.to_string())?;
        let tell = &mut |progress: Progress<'_>| match progress {
            Progress::File { name, done, total } => report(PullProgress { file: name, done, total }),
            Progress::Note(words) => eprintln!("note: {words}"),
        };
        hub.pull(&wanted, tell).map_err(|error| error.to_string())?;
        self.add(name, name.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        let place = self.options(name).map_err(|failure| in_words(name, failure))?.model;
        if Path::new(&place).exists() {
            return Err(format!("{name} is a file outside kvant's model cache and is not deleted"));
        }
        let is_shared = self.found().iter().filter(|(_, other)| *other == place).count() > 1;
        if !is_shared {
            let hub = Hub::from_env().map_err(|error| error.to_string())?;
            let wanted = ModelName::parse(&place).map_err(|error| error.to_string())?;
            hub.remove(&wanted).map_err(|error| error.to_string())?;
        }
        self.found().retain(|(other, _)| other != name);
        Ok(())
    }

    fn copy(&self, name: &str, other: &str) -> Result<(), String> {
        let place = self.options(name).map_err(|failure| in_words(name, failure))?.model;
        match self.add(other, place) {
            true => Ok(()),
            false => Err(format!("model {other} already exists")),
        }
    }

    fn size(&self, name: &str) -> Result<u64, String> {
        let estimate = self.options(name).and_then(|options| self.estimate(&options, open::find_or_pull));
        estimate.map(|(_, estimate)| estimate.peak()).map_err(|failure| in_words(name, failure))
    }

    fn load(&self, name: &str, room: Option<u64>) -> Result<ServedModel, String> {
        let ready = self.open(name, room).map_err(|failure| in_words(name, failure))?;
        tracing::info!(model = name, context = ready.context, "model loaded");
        ready.start().map_err(|error| error.to_string())
    }
}

/// Requests name adapters as they name models: a name means one thing.
fn check_names(model: &str, adapters: &[OpenedAdapter]) -> Result<(), Failure> {
    let mut known = vec![model];
    for name in adapters.iter().map(|opened| opened.applied.adapter.name()) {
        if known.contains(&name) {
            let message =
                format!("--lora: two things are called {name}; give the adapter a name: --lora NAME=FILE");
            return Err(Failure::Usage(message));
        }
        known.push(name);
    }
    Ok(())
}

/// A failure as clients are told of it.
fn in_words(name: &str, failure: Failure) -> String {
    match failure {
        Failure::Message(words) | Failure::Usage(words) => format!("{name} cannot be loaded: {words}"),
        Failure::OutputClosed | Failure::Interrupted => format!("{name} was not loaded"),
    }
}

/// The prefixes in a folder.
fn disk((folder, limit): &Kept, opened: &LoadedModel, empty: &KvCache) -> Result<DiskTier, Failure> {
    make_folder(folder)?;
    let layout = Arc::clone(empty.sequence().layout());
    let policy = empty.policy().to_string();
    let tier =
        DiskTier::open(folder, *limit, layout, opened.signature()?, opened.engine().numerics(), &policy);
    let tier = tier.map_err(|e| Failure::new(format!("--kv-dir {e}")))?;
    tier.unusable_files().iter().for_each(|words| tracing::warn!("{words}"));
    if tier.other_numerics() > 0 {
        let count = tier.other_numerics();
        eprintln!(
            "note: {count} files in --kv-dir were computed with other rounding; answers that reuse them may differ in the last bit"
        );
    }
    Ok(tier)
}

/// Makes a folder for prefixes that this user alone can read, unless it is there.
fn make_folder(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let refused = |e| Failure::new(format!("--kv-dir {}: cannot make this folder: {e}", folder.display()));
    builder.create(folder).map_err(refused)
}

/// The folder of a model among several, by its name: what no file may be called is written otherwise.
pub fn folder_of(folder: &Path, name: &str) -> PathBuf {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    folder.join(name.trim_start_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_folder_is_in_the_folder() {
        let of = |name| folder_of(Path::new("kept"), name);
        assert_eq!(of("model-1.5b"), Path::new("kept/model-1.5b"));
        assert_eq!(of("org/repo:Q4_K_M"), Path::new("kept/org_repo_Q4_K_M"));
        assert_eq!(of("../../etc"), Path::new("kept/_.._etc"));
    }
}
