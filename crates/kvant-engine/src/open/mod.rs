//! A model as `kvant run` opens it: the cache that suits it, and a context that fits in memory.
//!
//! ```no_run
//! use kvant_engine::{Event, OpenOptions, Request};
//! use std::ops::ControlFlow;
//!
//! let opened = OpenOptions { kv_memory: Some(1 << 30), ..OpenOptions::default() }.open("model.gguf")?;
//! opened.notes().iter().for_each(|note| eprintln!("note: {note}"));
//! let mut session = opened.session()?;
//! let request = Request { prompt: opened.engine().text_prompt("The sky is blue because")?, ..Request::default() };
//! session.generate(&request, &mut |event| {
//!     if let Event::Text(text) = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is decided, in this order:
//! 1. the device ([`OpenOptions::device`]), by what it runs, its memory and, where nobody asked for it, a short measurement;
//! 2. the cache ([`Plans::choose`]): as asked for, by the plan beside the model, or by its [family](crate::family);
//! 3. the context: as asked for, or the model's own ([`default_context`]); within what positions the model has learned, within
//!    [`OpenOptions::kv_memory`], and within the memory that was available before anything was loaded
//!    ([`MemoryEstimate`]). A context that was asked for is refused where it cannot be had; one that was not is made shorter,
//!    with a note.
//!
//! Nothing is printed, and nothing is fetched.

mod amount;
mod context;
mod draft;
mod error;
mod kv_choice;
mod load;
mod lora;
mod mtp;
mod plans;
mod rope;
mod setting;

pub use amount::{parse_bytes, parse_tokens};
pub use context::{UNKNOWN_CONTEXT, default_context};
pub use error::{OpenError, OpenNote};
pub use kv_choice::{KvChoice, PLAN_EXTENSION};
pub(crate) use load::SHORTEST;
pub use lora::LoraFile;
pub use plans::{ChosenPolicy, PlanFileError, Plans, open_plan, plan_path};
pub use setting::{OPENING, OpenSetting, parse_layers};

use crate::device::{Device, DeviceChoice, LoadProgress, Selection, check_policy, select};
use crate::engine::Engine;
use crate::estimate::{EstimateError, MemoryEstimate, RunConfig, weight_bytes};
use crate::kv;
use crate::memory::Memory;
use crate::session::Session;
use crate::signature::{rotates_by_context, signature};
use crate::speculation::Speculate;
use context::ContextRequest;
use kvant_attention::{KvCache, KvUnsupported};
use kvant_cache::snapshot::Signature;
use kvant_cache::{Arena, ArenaOptions, Policy, SparseV, StateType, Store};
use kvant_cpu::{ActivationType, LoadOptions};
use kvant_model::config::RopeOverride;
use kvant_model::{Checkpoint, DType, Description, LoadError};
use kvant_text::chat::ChatTemplate;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What can be asked for. The default is what `kvant run` does without flags.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// What computes.
    pub device: DeviceChoice,
    /// Layers that run on the device, from the first on, with the rest on the processor; `None` for as many as its memory holds.
    pub gpu_layers: Option<usize>,
    /// The folder where it is kept which of two devices was measured to be faster; `None` to measure each time.
    pub measurements: Option<PathBuf>,
    /// How keys and values are kept; `None` as [`KvChoice::Auto`], and without a note where the family decides.
    pub kv: Option<KvChoice>,
    /// The most tokens to hold, prompt and answer together.
    pub context: Option<usize>,
    /// Streaming attention (StreamingLLM) in place of a context: the sinks and this many last tokens are in view, without end.
    pub window: Option<usize>,
    /// First tokens that are kept exactly, and stay in view of a window.
    pub sinks: Option<usize>,
    /// Below which part of the largest weight the values of a page are not read.
    pub sparse_v: Option<SparseV>,
    /// The numbers that recurrent state is stored in.
    pub state: Option<StateType>,
    /// The most bytes for keys and values; a context or window that needs more is refused, and a context that nobody asked for
    /// is made to fit.
    pub kv_memory: Option<usize>,
    /// The most bytes for all of it, weights included, where less is to be taken than there is.
    pub memory: Option<u64>,
    /// What weights are packed to that the file holds as plain numbers.
    pub weights: Option<DType>,
    /// A chat template in place of the model's own.
    pub chat_template: Option<String>,
    /// The numbers that weights are multiplied with.
    pub activations: ActivationType,
    /// Pins weights, keys and values in memory.
    pub pinned: bool,
    /// Threads that compute, each of which takes some memory; `None` for as many as there are processors.
    pub threads: Option<usize>,
    /// Speculative decoding; `None` for the usual one where the device allows it.
    pub speculate: Option<Speculate>,
    /// LoRA adapters that every session runs with, and that requests to a server may name; on CPUs alone.
    pub lora: Vec<LoraFile>,
    /// Rotary settings in place of the file's.
    pub rope: RopeOverride,
    /// Is told how far the weights are, by devices that say it.
    pub progress: Option<LoadProgress>,
}

impl OpenOptions {
    /// Opens the model in a file or folder.
    ///
    /// # Errors
    /// If it cannot be loaded, or what is asked for cannot be had.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<LoadedModel, OpenError> {
        self.open_checkpoint(Checkpoint::open(path)?)
    }

    /// A model with the rotary settings that are asked for, if any are.
    pub fn with_rope(&self, checkpoint: Checkpoint) -> Checkpoint {
        if self.rope.is_empty() { checkpoint } else { checkpoint.with_rope(self.rope) }
    }

    /// Opens a model whose file is open.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_checkpoint(&self, checkpoint: Checkpoint) -> Result<LoadedModel, OpenError> {
        // Before the weights take their part of it.
        let available = self.available();
        self.template()?;
        let checkpoint = self.with_rope(checkpoint);
        let description = Description::of(&checkpoint)?;
        if description.encoder.is_some() {
            self.check_encoder()?;
        }
        let Selection { device, chosen, mut notes } = select(self, &checkpoint, &description)?;
        if let Some((device, chosen)) = device {
            let asked = self.device != DeviceChoice::Auto;
            match self.open_on(&device, chosen, &checkpoint, &description) {
                Ok(opened) => return Ok(opened.into_opened(self, checkpoint)),
                Err(error) if asked => return Err(error),
                Err(error) => notes
                    .push(OpenNote::OnCpu { device: device.name().to_owned(), reason: error.to_string() }),
            }
        }
        let opened = self.open_on_cpu(chosen, &checkpoint, &description, available, notes)?;
        Ok(opened.into_opened(self, checkpoint))
    }

    /// The device that these options stand for, by name, and how keys and values would be kept there; `None` where the model would stay
    /// on the processor.
    ///
    /// # Errors
    /// If a device or a cache that was asked for cannot be had.
    pub fn device_policy(
        &self,
        checkpoint: &Checkpoint,
        description: &Description,
    ) -> Result<Option<(String, Policy)>, OpenError> {
        let selection = select(self, checkpoint, description)?;
        Ok(selection.device.map(|(device, chosen)| (device.name().to_owned(), chosen.policy)))
    }

    /// What opening a model comes to, before anything is loaded: the context that sessions get, and the memory of it all. The
    /// checkpoint has the rotary settings that are asked for ([`with_rope`](Self::with_rope)).
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn estimate(&self, checkpoint: &Checkpoint) -> Result<(usize, MemoryEstimate), OpenError> {
        let description = &Description::of(checkpoint)?;
        let Selection { device, chosen, .. } = select(self, checkpoint, description)?;
        let memory = device.as_ref().and_then(|(device, _)| device.memory());
        let policy = &self.complete(device.map_or(chosen, |(_, chosen)| chosen).policy);
        let (available, on_device) = (memory.or_else(|| self.available()), memory.is_some());
        let request = ContextRequest { checkpoint, description, policy, options: self, available, on_device };
        let context = request.choose(&mut Vec::new())?;
        let run = self.run_config(policy, context, on_device);
        Ok((context, MemoryEstimate::new(checkpoint, description, &run)?))
    }

    pub(crate) fn run_config<'a>(
        &self,
        policy: &'a Policy,
        context: usize,
        on_device: bool,
    ) -> RunConfig<'a> {
        let threads = self.threads.unwrap_or_else(kvant_threads::processors);
        RunConfig { weights: self.weights, on_device, ..RunConfig::answer(policy, context, threads) }
    }

    /// Bytes that may be taken, where that is known.
    fn available(&self) -> Option<u64> {
        let there_is = Memory::read().map(|memory| memory.available);
        there_is.into_iter().chain(self.memory).min()
    }

    /// What the loader has to know.
    pub(crate) fn load_options(&self) -> LoadOptions {
        let mtp = matches!(self.speculate, None | Some(Speculate::Mtp));
        LoadOptions { weights: self.weights, activations: self.activations, lock: self.pinned, mtp }
    }

    /// The policy with what is asked for besides.
    pub(crate) fn complete(&self, mut policy: Policy) -> Policy {
        policy.rule.streaming = self.window;
        policy.rule.sinks = self.sinks.unwrap_or(policy.rule.sinks);
        policy.sparse_v = self.sparse_v.or(policy.sparse_v);
        policy.state = self.state.unwrap_or(policy.state);
        policy
    }

    fn arena(&self) -> ArenaOptions {
        ArenaOptions { cap: self.kv_memory, pinned: self.pinned }
    }

    /// The chat template that was given in place of the model's own.
    fn template(&self) -> Result<Option<ChatTemplate>, OpenError> {
        Ok(self.chat_template.as_deref().map(ChatTemplate::new).transpose()?)
    }
}

/// A model ready for sessions, with the cache and the context they get.
pub struct LoadedModel {
    engine: Arc<Engine>,
    checkpoint: Checkpoint,
    policy: Policy,
    context: usize,
    notes: Vec<OpenNote>,
    options: OpenOptions,
    device: Option<Arc<dyn Device>>,
}

impl LoadedModel {
    /// The model with its words.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// How keys and values are kept, a window included.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The cache for people: the name of the plan that decides, or the policy.
    pub fn cache_name(&self) -> String {
        let plan = self.notes.iter().find_map(|note| match note {
            OpenNote::Plan { plan, .. } => Some(error::plan_name(plan)),
            _ => None,
        });
        plan.unwrap_or_else(|| self.policy.to_string())
    }

    /// The most tokens that a session holds; `usize::MAX` with a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What was decided that people may want to know.
    pub fn notes(&self) -> &[OpenNote] {
        &self.notes
    }

    /// What it runs on; `None` for the processor.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    /// Whether weights and pages lie in memory of a device's own.
    fn on_device(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.memory().is_some())
    }

    /// Where sessions take their pages from: an arena of their own with this cap, or the device's store, whose cap is for all of
    /// them together.
    fn store(&self, cap: Option<usize>) -> Store {
        let arena = || Arena::with(ArenaOptions { cap, ..self.options.arena() }).into();
        self.engine.model().device_store().unwrap_or_else(arena)
    }

    /// An empty session, whose keys and values stay within [`OpenOptions::kv_memory`].
    ///
    /// # Errors
    /// If no cache keeps keys and values that way.
    pub fn session(&self) -> Result<Session, KvUnsupported> {
        self.engine.session_in(self.store(self.options.kv_memory), &self.policy, self.context)
    }

    /// The memory of one whole context, with all that is beside it.
    ///
    /// # Errors
    /// If a file beside the weights cannot be read.
    pub fn estimate(&self) -> Result<MemoryEstimate, EstimateError> {
        let run = self.options.run_config(&self.policy, self.context, self.on_device());
        MemoryEstimate::new(&self.checkpoint, self.engine.model().description(), &run)
    }

    /// What every sequence of a scheduler begins as. All of them together stay within [`OpenOptions::kv_memory`] or, where that
    /// was not given, half of the memory there is, or of what [`OpenOptions::memory`] leaves, but at least one whole context.
    ///
    /// # Errors
    /// As [`LoadedModel::session`].
    pub fn shared_cache(&self) -> Result<KvCache, KvUnsupported> {
        let half = || {
            let left = match (self.options.memory, self.estimate()) {
                (Some(memory), Ok(estimate)) => {
                    Some(memory.saturating_sub(estimate.peak().saturating_sub(estimate.cache)))
                }
                _ => Memory::read().map(|memory| memory.available),
            };
            left.map(|left| usize::try_from(left / 2).unwrap_or(usize::MAX))
        };
        let whole = kv::memory(&self.policy, self.engine.model().slots(), self.context)?;
        let cap = self.options.kv_memory.or_else(half).map(|cap| cap.max(whole));
        Ok(self.engine.session_in(self.store(cap), &self.policy, self.context)?.into_kv())
    }

    /// Gives a session, and those to come, another context. What the session holds stays held, except where the model rotates by its
    /// context (LongRoPE, dynamic scaling): it is then read again with the next prompt.
    ///
    /// # Errors
    /// If the model has not learned as many positions, or the memory does not suffice; nothing has changed then.
    pub fn grow(&mut self, session: &mut Session, context: usize) -> Result<(), OpenError> {
        let options = OpenOptions { context: Some(context), window: None, ..self.options.clone() };
        let held = session.kv().footprint().bytes();
        self.check(&self.policy, &options, held)?;
        self.context = context;
        self.options = options;
        if rotates_by_context(&self.checkpoint) {
            session.clear();
        }
        session.set_context(context);
        Ok(())
    }

    /// An empty session with streaming attention (StreamingLLM): the sinks and the last `window` tokens are in view, without end; and
    /// the same for those to come. `held` are bytes of keys and values that are given back for it.
    ///
    /// # Errors
    /// If the model has learned positions one by one, or the memory does not suffice; nothing has changed then.
    pub fn stream(&mut self, window: usize, held: usize) -> Result<Session, OpenError> {
        let options = OpenOptions { context: None, window: Some(window), ..self.options.clone() };
        let policy = options.complete(self.policy.clone());
        if let Some(device) = &self.device {
            check_policy(&**device, &options, &policy, self.engine.model().description())?;
        }
        self.context = self.check(&policy, &options, held)?;
        (self.policy, self.options) = (policy, options);
        Ok(self.session()?)
    }

    /// Whether sessions can be had under other options now that weights are loaded, and the tokens that they hold.
    fn check(&self, policy: &Policy, options: &OpenOptions, held: usize) -> Result<usize, OpenError> {
        let description = self.engine.model().description();
        let weights = weight_bytes(&self.checkpoint, self.options.weights)?;
        // What is in use already is no longer available, and will not be needed twice.
        let on_host = || Memory::read().map(|memory| memory.available + weights + held as u64);
        let memory = self.device.as_ref().and_then(|device| device.memory());
        let (available, on_device) = (memory.or_else(on_host), memory.is_some());
        let (checkpoint, mut notes) = (&self.checkpoint, Vec::new());
        ContextRequest { checkpoint, description, policy, options, available, on_device }.choose(&mut notes)
    }

    /// What sessions of this model are saved and resumed under.
    ///
    /// # Errors
    /// If a file beside the weights cannot be read.
    pub fn signature(&self) -> Result<Signature, LoadError> {
        signature(&self.checkpoint, &self.options.load_options(), &self.policy, self.context)
    }
}
