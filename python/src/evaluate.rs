//! What caches cost, as `kvant eval` measures it.

use crate::engine::activations;
use crate::error::{bad_value, failed};
use crate::models;
use crate::work::{Progress, detached};
use kvant_engine::open::Plans;
use kvant_engine::{ActivationType, KvChoice, Policy, load_model};
use kvant_eval::divergence::{DivergenceRow, Mode, Models, Request, divergence};
use kvant_eval::{
    Machine, PassLimits, Report, Score, Setting, Windows, check_context, every_cache, perplexity, text,
};
use kvant_model::{Checkpoint, Model};
use kvant_text::tokenizer::Tokenizer;
use kvant_threads::Pool;
use pyo3::prelude::*;
use serde_json::Value;
use std::time::Instant;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(evaluate, module)?)
}

/// The cache of a perplexity.
const EXACT: &str = "f32";

/// What is measured: a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct EvaluateSettings {
    model: String,
    /// None for perplexity alone; an empty list for every cache there is a name for.
    kv: Option<Vec<String>>,
    text: Option<String>,
    text_name: String,
    ctx: usize,
    chunks: usize,
    strict: bool,
    activations: String,
    score: Option<String>,
    threads: Option<usize>,
}

/// Measures; a JSON object of a perplexity, or a list with one for each cache.
#[pyfunction]
#[pyo3(signature = (settings, progress=None))]
fn evaluate(py: Python<'_>, settings: EvaluateSettings, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let progress = Progress::new(progress);
    detached(py, move || pool(settings.threads)?.install(|| measure(&settings, &progress)))
}

/// Threads of a chore.
pub fn pool(threads: Option<usize>) -> PyResult<Pool> {
    match threads {
        None => Ok(Pool::default()),
        Some(0) => Err(bad_value("threads must be at least 1")),
        Some(threads) => Ok(Pool::new(threads)),
    }
}

/// A model with these activations.
pub fn load(checkpoint: &Checkpoint, activations: ActivationType) -> PyResult<Model> {
    load_model(checkpoint, activations).map_err(failed)
}

/// A text as it was given, or one that comes with kvant.
pub fn text_or<'t>(
    given: Option<&'t str>,
    name: &'t str,
    own: (&'static str, &'static str),
) -> (&'t str, &'t str) {
    given.map_or(own, |text| (text, name))
}

fn measure(settings: &EvaluateSettings, progress: &Progress) -> PyResult<String> {
    let (text, name) =
        text_or(settings.text.as_deref(), &settings.text_name, (text::test(), text::TEST_NAME));
    let path = models::locate(&settings.model, progress)?;
    let checkpoint = Checkpoint::open(&path).map_err(failed)?;
    let score = match (settings.score.as_deref(), &settings.kv) {
        (Some(name), _) => name.parse::<Score>().map_err(bad_value)?,
        (None, Some(_)) => Score::All,
        (None, None) => Score::SecondHalf,
    };
    let tokenizer = Tokenizer::of(&checkpoint).map_err(failed)?;
    let windows =
        Windows::of_text(&tokenizer, text, settings.ctx, settings.chunks, score).map_err(bad_value)?;
    let model = load(&checkpoint, activations(&settings.activations)?)?;
    check_context(&model, settings.ctx).map_err(bad_value)?;
    let setting = Setting {
        model: settings.model.clone(),
        architecture: model.description().architecture.to_owned(),
        text: name.to_owned(),
        activations: settings.activations.clone(),
        threads: kvant_threads::threads(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Machine::this(),
    };
    let found = match &settings.kv {
        None => of_perplexity(&model, &windows, setting, progress)?,
        Some(specs) => {
            let caches = caches(&checkpoint, &model, specs)?;
            let compared =
                Compared { checkpoint: &checkpoint, model: &model, windows: &windows, caches: &caches };
            compared.rows(settings, &setting, progress)?
        }
    };
    Ok(found.to_string())
}

fn of_perplexity(model: &Model, windows: &Windows, setting: Setting, progress: &Progress) -> PyResult<Value> {
    let start = Instant::now();
    let exact = EXACT.parse().map_err(failed)?;
    let estimate = perplexity(model, windows, &exact, PassLimits::default(), &mut |headway| {
        progress.tell_or_leave(headway.done as u64, headway.windows as u64);
    });
    let estimate = estimate.map_err(failed)?;
    let report = Report::new(setting, EXACT.to_owned(), windows, &estimate, start.elapsed());
    serde_json::to_value(report).map_err(failed)
}

/// The caches asked for; every one there is a name for where the list is empty.
fn caches(checkpoint: &Checkpoint, model: &Model, specs: &[String]) -> PyResult<Vec<Policy>> {
    if specs.is_empty() {
        return Ok(every_cache(model.slots()));
    }
    let plans = Plans::new(checkpoint);
    let policy = |spec: &String| {
        let choice: KvChoice = spec.parse().map_err(bad_value)?;
        Ok(plans.choose(Some(&choice), model.description()).map_err(failed)?.policy)
    };
    specs.iter().map(policy).collect()
}

struct Compared<'a> {
    checkpoint: &'a Checkpoint,
    model: &'a Model,
    windows: &'a Windows,
    caches: &'a [Policy],
}

impl Compared<'_> {
    fn rows(&self, settings: &EvaluateSettings, setting: &Setting, progress: &Progress) -> PyResult<Value> {
        let mode = if settings.strict { Mode::Strict } else { Mode::Deployed };
        let exact = match setting.activations.as_str() {
            "f32" => None,
            _ => Some(load(self.checkpoint, ActivationType::F32)?),
        };
        let request = Request {
            models: Models {
                reference: exact.as_ref().unwrap_or(self.model),
                subject: self.model,
                arithmetic: &setting.activations,
            },
            windows: self.windows,
            caches: self.caches,
            mode,
            limits: PassLimits::default(),
        };
        let found = divergence(&request, None, &mut |headway| {
            progress.tell_or_leave(headway.done as u64, headway.total as u64);
        });
        let row = |(policy, found): (&Policy, _)| {
            let row = DivergenceRow::new(policy.to_string(), mode, found, self.windows, setting.clone());
            serde_json::to_value(row).map_err(failed)
        };
        let found = found.map_err(failed)?;
        Ok(Value::Array(self.caches.iter().zip(&found).map(row).collect::<PyResult<_>>()?))
    }
}
