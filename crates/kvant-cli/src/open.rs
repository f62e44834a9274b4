//! From `-m` to a model that is ready: a path or a name, fetched if need be, opened by the engine.

use crate::failure::Failure;
use crate::options::ModelOptions;
use crate::progress::Downloads;
use kvant_codec::Tier;
use kvant_engine::estimate::{ContextKind, DoesNotFit};
use kvant_engine::memory::bytes;
use kvant_engine::{OpenError, OpenNote, Opened};
use kvant_hub::{Hub, ModelName};
use std::path::{Path, PathBuf};

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

/// Finds, fetches and opens the model, and says what was decided.
pub fn open(options: &ModelOptions) -> Result<Opened, Failure> {
    // A forced instruction set that does not exist is an error before anything else happens.
    Tier::select()?;
    let path = find_or_pull(&options.model)?;
    let opened = options.open_options().open(&path).map_err(|error| failure(&error))?;
    opened.notes().iter().for_each(|note| eprintln!("note: {}", with_flag(note)));
    Ok(opened)
}

/// The flag that asks for it.
fn flag(kind: ContextKind) -> &'static str {
    match kind {
        ContextKind::Context => "--ctx",
        ContextKind::Window => "--window",
    }
}

fn with_flag(note: &OpenNote) -> String {
    match note {
        OpenNote::BeyondTraining { kind, asked, trained } => format!(
            "{} {asked} is more than the {trained} tokens the model was made for; answers may degrade",
            flag(*kind)
        ),
        note => note.to_string(),
    }
}

/// The error in words that name the flags.
fn failure(error: &OpenError) -> Failure {
    Failure::new(match error {
        OpenError::TooFewPositions { kind: ContextKind::Context, asked, limit } => {
            format!("--ctx {asked}: this model has learned {limit} positions and cannot read beyond them")
        }
        OpenError::TooFewPositions { kind: ContextKind::Window, asked, limit } => format!(
            "--window {asked}: this model has learned {limit} positions, and tokens beyond have none; use --ctx"
        ),
        OpenError::ExceedsCap { kind, tokens, needed, cap, longest } => {
            let advice = match longest {
                None => "raise it".to_owned(),
                Some(longest) => format!("raise it, or use {} {longest} at most", flag(*kind)),
            };
            let [needed, cap] = [*needed, *cap].map(|count| bytes(count as u64));
            format!(
                "a {kind} of {tokens} tokens takes {needed} for keys and values, but --kv-memory allows {cap}: {advice}"
            )
        }
        OpenError::DoesNotFit(error) => {
            let DoesNotFit { kind, tokens, estimate, available, longest } = &**error;
            let advice = match longest {
                None => "close other programs or use a smaller model".to_owned(),
                Some(longest) => format!("the largest that fits is {} {longest}", flag(*kind)),
            };
            let (sum, available) = (estimate.sum(), bytes(*available));
            format!(
                "a {kind} of {tokens} tokens does not fit in memory: {sum}, but {available} are available; {advice}"
            )
        }
        error => error.to_string(),
    })
}
