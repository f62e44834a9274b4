//! Models as the server loads them.

use crate::failure::Failure;
use crate::open;
use crate::options::ModelOptions;
use kvant_engine::estimate::MemoryEstimate;
use kvant_engine::scheduler::{Handle, Scheduler, SchedulerOptions};
use kvant_engine::{DiskTier, KvCache, LoadedModel, OpenOptions};
use kvant_model::Checkpoint;
use kvant_server::{ModelLoader, ServedModel};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where prefixes are kept, and the most bytes they may have.
pub type Kept = (PathBuf, u64);

/// Models by name, and where each is.
pub type Found = Vec<(String, String)>;

/// Loads models in the way that the flags say.
pub struct Loader {
    found: Found,
    options: ModelOptions,
    work: SchedulerOptions,
    /// Where each of them keeps prefixes.
    kept: Vec<Option<Kept>>,
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
    /// How keys and values are kept.
    pub policy: String,
    /// The most bytes of keys and values.
    pub cap: Option<u64>,
    /// The most bytes of everything.
    bytes: u64,
}

impl Ready {
    /// Lets it work.
    pub fn start(self) -> std::io::Result<ServedModel> {
        let Self { scheduler, handle, bytes, .. } = self;
        let compute = move || scheduler.run();
        let worker = std::thread::Builder::new().name("kvant-scheduler".into()).spawn(compute)?;
        Ok(ServedModel { handle, worker, bytes })
    }
}

impl Loader {
    /// Models by these names, which keep prefixes where `kept` says.
    pub fn new(
        found: Found,
        options: ModelOptions,
        work: SchedulerOptions,
        kept: impl Fn(&str) -> Option<Kept>,
    ) -> Self {
        let kept = found.iter().map(|(name, _)| kept(name)).collect();
        Self { found, options, work, kept, memory: None }
    }

    /// The same within so many bytes for all of them together.
    pub fn within(self, memory: Option<u64>) -> Self {
        Self { memory, ..self }
    }

    /// The number of a model, and the options to open it with.
    fn options(&self, name: &str) -> Result<(usize, ModelOptions), Failure> {
        let number = self.found.iter().position(|(other, _)| other == name);
        let number = number.ok_or_else(|| Failure::new(format!("there is no model {name}")))?;
        let mut options = self.options.clone();
        options.model = self.found[number].1.clone();
        Ok((number, options))
    }

    /// The context that a model has if no other were there, so that it does not depend on others, and the memory of it.
    fn estimate(
        &self,
        options: &ModelOptions,
        find: fn(&str) -> Result<PathBuf, Failure>,
    ) -> Result<(usize, MemoryEstimate), Failure> {
        let checkpoint = Checkpoint::open(find(&options.model)?)?;
        let asked = OpenOptions { memory: self.memory, ..options.open_options()? };
        asked.estimate(&checkpoint).map_err(|error| open::failure(&error))
    }

    /// Opens a model that may take `room` bytes.
    pub fn open(&self, name: &str, room: Option<u64>) -> Result<Ready, Failure> {
        let (number, options) = self.options(name)?;
        let context = room
            .map(|_| self.estimate(&options, open::find_or_pull))
            .transpose()?
            .map(|(context, _)| context);
        let opened = open::open_within(&options, room, context)?;
        let empty = opened.shared_cache()?;
        let (context, policy) = (opened.context(), empty.policy().to_string());
        let cap = empty.sequence().store().cap().map(|cap| cap as u64);
        let estimate = opened.estimate()?;
        let bytes = estimate.peak().saturating_sub(estimate.cache) + cap.unwrap_or(estimate.cache);
        let device = opened.engine().device().to_owned();
        let tier = self.kept[number].as_ref().map(|kept| disk(kept, &opened, &empty)).transpose()?;
        let mut scheduler = Scheduler::new(Arc::clone(opened.engine()), empty, self.work);
        if let Some(tier) = tier {
            scheduler = scheduler.with_disk(tier)?;
        }
        let handle = scheduler.handle();
        Ok(Ready { scheduler, handle, context, device, policy, cap, bytes })
    }
}

impl ModelLoader for Loader {
    fn names(&self) -> Vec<String> {
        self.found.iter().map(|(name, _)| name.clone()).collect()
    }

    fn context(&self, name: &str) -> Option<usize> {
        let (_, options) = self.options(name).ok()?;
        self.estimate(&options, open::find).ok().map(|(context, _)| context)
    }

    fn size(&self, name: &str) -> Result<u64, String> {
        let estimate =
            self.options(name).and_then(|(_, options)| self.estimate(&options, open::find_or_pull));
        estimate.map(|(_, estimate)| estimate.peak()).map_err(|failure| in_words(name, failure))
    }

    fn load(&self, name: &str, room: Option<u64>) -> Result<ServedModel, String> {
        let ready = self.open(name, room).map_err(|failure| in_words(name, failure))?;
        tracing::info!(model = name, context = ready.context, "model loaded");
        ready.start().map_err(|error| error.to_string())
    }
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
    let layout = Arc::clone(empty.sequence().layout());
    let policy = empty.policy().to_string();
    let tier =
        DiskTier::open(folder, *limit, layout, opened.signature()?, opened.engine().numerics(), &policy);
    let tier = tier.map_err(|e| Failure::new(format!("--kv-dir {e}")))?;
    tier.unusable_files().iter().for_each(|words| tracing::warn!("{words}"));
    if tier.other_numerics() > 0 {
        let count = tier.other_numerics();
        eprintln!(
            "note: {count} files of --kv-dir were computed with other rounding; answers that go on from them may differ in a last bit"
        );
    }
    Ok(tier)
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
