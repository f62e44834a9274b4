//! From `-m` to an engine: a path or a name, fetched if need be, checked against memory, loaded.

use crate::failure::Failure;
use crate::options::ModelOptions;
use crate::progress::Downloads;
use kvant_codec::Tier;
use kvant_engine::memory::{DoesNotFit, Memory, bytes, check_context};
use kvant_engine::{Arena, ArenaOptions, Engine, KvCache, KvUnsupported, Policy, Session, Signature, kv};
use kvant_model::hub::ModelName;
use kvant_model::{Checkpoint, Hub};
use std::path::{Path, PathBuf};

/// The context when none is asked for: long enough to be useful, short enough for a laptop.
pub const USUAL_CONTEXT: usize = 8192;

/// The file of a model that is on this machine, by path or by name.
pub fn find(model: &str) -> Result<PathBuf, Failure> {
    match locate(model)? {
        Place::Here(path) => Ok(path),
        Place::Away(_, name) => Err(Failure::new(format!(
            "model {name} is not on this machine; fetch it with `kvant pull {name}`"
        ))),
    }
}

/// The file of a model, by path or by name, fetched when it is not here.
pub fn find_or_pull(model: &str) -> Result<PathBuf, Failure> {
    match locate(model)? {
        Place::Here(path) => Ok(path),
        Place::Away(hub, name) => pull(&hub, &name),
    }
}

/// Fetches a model, showing progress.
pub fn pull(hub: &Hub, name: &ModelName) -> Result<PathBuf, Failure> {
    let mut downloads = Downloads::new();
    let path = hub.pull(name, &mut |progress| downloads.show(progress));
    downloads.finish();
    Ok(path?)
}

enum Place {
    Here(PathBuf),
    Away(Box<Hub>, ModelName),
}

fn locate(model: &str) -> Result<Place, Failure> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(Place::Here(path.to_path_buf()));
    }
    let is_path = path.is_absolute()
        || model.starts_with("./")
        || model.starts_with("../")
        || (!model.contains(':') && [".gguf", ".safetensors", ".json"].iter().any(|e| model.ends_with(e)));
    if is_path {
        return Err(Failure::new(format!(
            "{model}: no such file; `kvant models` lists the models that are here"
        )));
    }
    let name = ModelName::parse(model)?;
    let hub = Hub::from_env()?;
    Ok(match hub.find(&name) {
        Some(path) => Place::Here(path),
        None => Place::Away(Box::new(hub), name),
    })
}

/// A model ready for sessions, with the context they get.
pub struct Opened {
    pub engine: Engine,
    /// What to call the model.
    pub name: String,
    checkpoint: Checkpoint,
    context: usize,
    policy: Policy,
    options: ModelOptions,
}

impl Opened {
    /// Finds, fetches and loads the model, and decides on the context.
    pub fn new(options: ModelOptions) -> Result<Self, Failure> {
        // A forced instruction set that does not exist is an error before anything else happens.
        Tier::select()?;
        options.threads.apply();
        let path = find_or_pull(&options.model)?;
        let checkpoint = Checkpoint::open(&path)?;
        let engine = Engine::load(&checkpoint, options.load_options())?;
        // A spec that cannot be used is refused before memory is looked at.
        let policy = options.policy(&checkpoint, engine.model())?;
        engine.session(&policy, 1)?;
        if engine.tokenizer().guesses_splits() {
            eprintln!(
                "note: the file does not say how its vocabulary cuts text into words (tokenizer.ggml.pre); answers may \
                 be worse than the model's own, and a newer conversion would help"
            );
        }
        let context = context(&engine, &checkpoint, &options, &policy)?;
        Ok(Self { engine, name: options.model.clone(), checkpoint, context, policy, options })
    }

    /// An empty session.
    pub fn session(&self) -> Result<Session<'_>, Failure> {
        let arena = Arena::with(self.options.arena());
        Ok(self.engine.session_in(arena, &self.policy, self.context)?)
    }

    /// What every sequence of a server begins as. All of them together stay within `--kv-memory` or, where that was not
    /// given, half of the memory there is, but at least one whole context.
    pub fn shared_cache(&self) -> Result<KvCache, Failure> {
        let options = self.options.arena();
        let half =
            || Memory::read().map(|memory| usize::try_from(memory.available / 2).unwrap_or(usize::MAX));
        let whole = kv::memory(&self.policy, self.engine.model().states(), self.context)?;
        let cap = options.cap.or_else(half).map(|cap| cap.max(whole));
        let arena = Arena::with(ArenaOptions { cap, ..options });
        Ok(self.engine.session_in(arena, &self.policy, self.context)?.into_kv())
    }

    /// What sessions of this model are saved and resumed under.
    pub fn signature(&self) -> Result<Signature, Failure> {
        let options = self.options.load_options();
        Ok(kvant_engine::signature(&self.checkpoint, &options, &self.policy, self.context)?)
    }
}

/// The context to use: the one asked for, if it can be; else the model's own within reason and memory.
fn context(
    engine: &Engine,
    checkpoint: &Checkpoint,
    options: &ModelOptions,
    policy: &Policy,
) -> Result<usize, Failure> {
    let model = engine.model();
    let limit = model.position_limit();
    if let (Some(asked), Some(limit)) = (options.ctx(), limit)
        && asked > limit
    {
        return Err(Failure::new(format!(
            "--ctx {asked}: this model has learned {limit} positions and cannot read beyond them"
        )));
    }
    let own = model.context().unwrap_or(USUAL_CONTEXT);
    if let Some(window) = options.window() {
        return endless(engine, checkpoint, options, policy, (window, own));
    }
    if let Some(asked) = options.ctx()
        && asked > own
    {
        eprintln!(
            "note: --ctx {asked} is more than the {own} tokens the model was made for; answers may degrade"
        );
    }
    let wanted = options.ctx().unwrap_or(own.min(USUAL_CONTEXT));
    let wanted = limit.map_or(wanted, |limit| wanted.min(limit));
    let states = model.states();
    within(options, wanted, ("context", "--ctx"), |context| kv::memory(policy, states, context))?;
    match fit(engine, checkpoint, options, policy, wanted)? {
        Ok(()) => Ok(wanted),
        Err(error) if options.ctx().is_none() && error.largest > 0 => {
            eprintln!("note: memory allows a context of {} tokens, not the usual {wanted}", error.largest);
            Ok(error.largest)
        }
        Err(error) => Err(error.into()),
    }
}

/// No limit, if a full window can be.
fn endless(
    engine: &Engine,
    checkpoint: &Checkpoint,
    options: &ModelOptions,
    policy: &Policy,
    (window, own): (usize, usize),
) -> Result<usize, Failure> {
    if let Some(limit) = engine.model().position_limit() {
        return Err(Failure::new(format!(
            "--window {window}: this model has learned {limit} positions, and tokens beyond have none; use --ctx"
        )));
    }
    if window > own {
        eprintln!(
            "note: --window {window} is more than the {own} tokens the model was made for; answers may degrade"
        );
    }
    let (mut streaming, states) = (policy.clone(), engine.model().states());
    within(options, window, ("window", "--window"), |window| {
        streaming.rule.streaming = Some(window);
        kv::memory(&streaming, states, usize::MAX)
    })?;
    fit(engine, checkpoint, options, policy, window)??;
    Ok(usize::MAX)
}

/// Whether a full cache stays within `--kv-memory`. What is bounded, a context or a window, comes with its name and flag, and
/// with the bytes it needs.
fn within(
    options: &ModelOptions,
    wanted: usize,
    (name, flag): (&str, &str),
    mut needs: impl FnMut(usize) -> Result<usize, KvUnsupported>,
) -> Result<(), Failure> {
    let Some(cap) = options.arena().cap else { return Ok(()) };
    let needed = needs(wanted)?;
    if needed <= cap {
        return Ok(());
    }
    // The largest that fits, by halving: `fits` does, `beyond` does not.
    let (mut fits, mut beyond) = (0, wanted);
    while beyond - fits > 1 {
        let middle = fits + (beyond - fits) / 2;
        if needs(middle)? <= cap {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    let advice = match fits {
        0 => "raise it".to_owned(),
        fits => format!("raise it, or use {flag} {fits} at most"),
    };
    let [needed, cap] = [needed, cap].map(|count| bytes(count as u64));
    Err(Failure::new(format!(
        "a {name} of {wanted} tokens takes {needed} for keys and values, but --kv-memory allows {cap}: {advice}"
    )))
}

/// Whether weights and a full cache fit in memory, as far as the system tells.
fn fit(
    engine: &Engine,
    checkpoint: &Checkpoint,
    options: &ModelOptions,
    policy: &Policy,
    context: usize,
) -> Result<Result<(), DoesNotFit>, Failure> {
    let Some(memory) = Memory::read() else { return Ok(Ok(())) };
    let per_token = kv::bytes_per_token(policy, engine.model().states())?;
    Ok(check_context(context, options.weight_bytes(checkpoint)?, per_token, memory.available))
}
