//! From `-m` to a model that is ready: a path or a name, fetched if need be, opened by the engine.

use crate::failure::Failure;
use crate::options::ModelOptions;
use crate::progress::{self, Downloads};
use crate::shapes;
use kvant_codec::Tier;
use kvant_engine::device;
use kvant_engine::estimate::{ContextKind, DoesNotFit, memory_name, weight_bytes};
use kvant_engine::memory::{Memory, bytes};
use kvant_engine::{GenerateError, LoadedModel, OpenError, OpenNote, OpenOptions};
use kvant_hub::{Hub, KNOWN, ModelName, SHORT_NAMES};
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

/// The file of a model to run, by path or by name, fetched when it is not here and not too large for this machine.
pub fn find_or_pull(model: &str) -> Result<PathBuf, Failure> {
    if let Place::Away(_, name) = locate(model)? {
        refuse_too_large(&name)?;
    }
    find_or_fetch(model)
}

/// The file of a model, by path or by name, fetched when it is not here.
pub fn find_or_fetch(model: &str) -> Result<PathBuf, Failure> {
    match locate(model)? {
        Place::Here(path) => Ok(path),
        Place::Away(hub, name) => pull(&hub, &name),
    }
}

/// Refuses a model whose name says its size, where neither the memory of this machine nor a GPU's holds its weights.
fn refuse_too_large(name: &ModelName) -> Result<(), Failure> {
    let Some(memory) = Memory::read().map(|memory| memory.limit.unwrap_or(memory.total)) else {
        return Ok(());
    };
    if too_large(name, memory)?.is_none() {
        return Ok(());
    }
    let gpus = device::devices().into_iter().filter(|gpu| gpu.unfit.is_none());
    let most = gpus.filter_map(|gpu| gpu.memory).chain([memory]).max().unwrap_or(memory);
    too_large(name, most)?.map_or(Ok(()), |why| Err(Failure::new(why)))
}

/// Why the weights of a model do not fit in so many bytes; `None` where they do, or where the name does not say.
fn too_large(name: &ModelName, memory: u64) -> Result<Option<String>, Failure> {
    let Some((checkpoint, _)) = shapes::described(name, None)? else { return Ok(None) };
    let weights = weight_bytes(&checkpoint, None)?;
    let refusal = || {
        let [weights, most] = [weights, memory].map(bytes);
        format!(
            "{name} takes {weights} for its weights, but this machine has {most} of memory{}",
            smaller(memory, false)
        )
    };
    Ok((weights > memory).then(refusal))
}

/// Fetches a model, showing progress.
pub fn pull(hub: &Hub, name: &ModelName) -> Result<PathBuf, Failure> {
    let mut downloads = Downloads::new();
    let path = hub.pull(name, &mut |step| downloads.show(step));
    downloads.finish();
    Ok(path?)
}

/// Where a model is.
pub enum Place {
    Here(PathBuf),
    Away(Box<Hub>, ModelName),
}

/// Finds a model by path or by name.
pub fn locate(model: &str) -> Result<Place, Failure> {
    let path = Path::new(model);
    if path.exists() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(kind) =
            kvant_hub::sidecar(&name).filter(|kind| !kind.contains("MTP")).filter(|_| path.is_file())
        {
            return Err(Failure::new(format!(
                "{model}: this is an {kind}, not a model; name the model it belongs to: its text side runs"
            )));
        }
        return Ok(Place::Here(path.to_path_buf()));
    }
    let is_path = path.is_absolute()
        || model.starts_with("./")
        || model.starts_with("../")
        || (!model.contains(':') && [".gguf", ".safetensors", ".json"].iter().any(|e| model.ends_with(e)));
    if is_path {
        return Err(Failure::new(format!("{model}: no such file; `kvant models` lists downloaded models")));
    }
    let name = ModelName::parse(model).map_err(|error| match meant(model) {
        Some(near) => Failure::new(format!("there is no model {model}; did you mean {near}?")),
        None => Failure::new(error),
    })?;
    let hub = Hub::from_env()?;
    if let Some(path) = hub.find(&name) {
        return Ok(Place::Here(path));
    }
    Ok(Place::Away(Box::new(hub), name))
}

/// What a short name stands for, where nobody has fetched it under that name yet.
fn say_unverified(model: &str) {
    let Ok(name) = ModelName::parse(model) else { return };
    if let Some(short) = name.short().filter(|short| !short.is_verified) {
        let (repo, quant) = (short.repo, short.quant);
        eprintln!(
            "note: {name} stands for {repo}:{quant}, which is unverified: it was never downloaded under this name"
        );
    }
}

/// The short name that a mistyped one is nearest to.
fn meant(model: &str) -> Option<String> {
    let typed = model.to_ascii_lowercase();
    let known = KNOWN.iter().map(|known| known.short.to_owned());
    let short = SHORT_NAMES.iter().flat_map(|short| [short.name(), short.family.to_owned()]);
    let near = known.chain(short).map(|name| (strsim::damerau_levenshtein(&typed, &name), name));
    near.filter(|(distance, name)| *distance <= 2 && *distance < name.len() / 2).min().map(|(_, name)| name)
}

/// Below this many tokens a shortened context is worth a line.
const SHORT: usize = 8192;

/// Finds, fetches and opens a model that writes text, and says what was decided.
pub fn open(options: &ModelOptions) -> Result<LoadedModel, Failure> {
    let opened = open_within(options, None, None)?;
    if let Some(encoder) = opened.engine().model().encoder() {
        return Err(Failure::new(format!(
            "{model} writes no text: it gives {}; serve it: `kvant serve {model}`",
            encoder.gives(),
            model = options.model
        )));
    }
    Ok(opened)
}

/// The same where all of it may take so many bytes, and with this context where none is asked for.
pub fn open_within(
    options: &ModelOptions,
    memory: Option<u64>,
    context: Option<usize>,
) -> Result<LoadedModel, Failure> {
    // A forced instruction set that does not exist is an error before anything else happens.
    Tier::select()?;
    let asked = options.open_options()?;
    let asked = OpenOptions { memory, context: asked.context.or(context), ..asked };
    options.remarks().iter().for_each(|remark| eprintln!("note: {remark}"));
    let path = find_or_pull(&options.model)?;
    if options.verbose {
        say_unverified(&options.model);
    }
    let opened = asked.open(&path);
    progress::end_loading();
    let opened = opened.map_err(|error| failure(&error))?;
    for note in opened.notes() {
        // Few machines hold the longest contexts, and few talks fill what is left.
        let is_news =
            options.verbose || !matches!(note, OpenNote::ShorterContext { context, .. } if *context >= SHORT);
        if is_news {
            eprintln!("note: {}", with_flag(note));
        }
    }
    Ok(opened)
}

/// A prompt that the context does not hold, in words that name the flag.
pub fn generate_failure(error: GenerateError) -> Failure {
    match error {
        GenerateError::PromptTooLong { prompt, context } => Failure::new(format!(
            "the prompt has {prompt} tokens, but the context holds {context}: --ctx {} would hold it",
            (prompt + prompt / 4).next_multiple_of(256)
        )),
        error => error.into(),
    }
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
        OpenNote::ShorterContext { context, usual } => {
            format!(
                "the context is {context} tokens, not the model's own {usual}: more does not fit in memory"
            )
        }
        note => note.to_string(),
    }
}

/// Models that would fit instead, for people.
fn smaller(available: u64, on_device: bool) -> String {
    let fitting = shapes::that_fit(available, kvant_threads::threads(), on_device).unwrap_or_default();
    let names: Vec<&str> = fitting.iter().take(3).map(|candidate| candidate.name.as_str()).collect();
    match names[..] {
        [] => String::new(),
        _ => format!(": {} would fit; `kvant fit` lists more", names.join(", ")),
    }
}

/// The error in words that name the flags.
pub fn failure(error: &OpenError) -> Failure {
    Failure::new(match error {
        OpenError::TooFewPositions { kind: ContextKind::Context, asked, limit } => {
            format!("--ctx {asked}: this model was trained with {limit} positions and cannot read more")
        }
        OpenError::TooFewPositions { kind: ContextKind::Window, asked, limit } => format!(
            "--window {asked}: this model was trained with {limit} positions and cannot stream beyond them; use --ctx"
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
            let DoesNotFit { kind, tokens, estimate, available, longest, on_device } = &**error;
            let advice = match longest {
                None => {
                    format!("close other programs or use a smaller model{}", smaller(*available, *on_device))
                }
                Some(longest) => format!("the largest that fits is {} {longest}", flag(*kind)),
            };
            let (sum, available) = (estimate.sum(), bytes(*available));
            let memory = memory_name(*on_device);
            format!(
                "a {kind} of {tokens} tokens does not fit in {memory}: {sum}, but {available} are available; {advice}"
            )
        }
        OpenError::Template(error) => format!("--chat-template: {error}"),
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_too_large_to_run_is_refused_before_it_is_fetched() {
        let refusal = |name: &str, gib: u64| too_large(&ModelName::parse(name).unwrap(), gib << 30).unwrap();
        let why = refusal("llama3.1:70b", 8).unwrap();
        assert!(why.contains("this machine has 8.0 GiB") && why.contains("would fit"), "{why}");
        assert_eq!(refusal("llama3.1:70b", 64), None);
        assert_eq!(refusal("org/some-model-70b", 1), None, "nobody knows its size");
    }
}
