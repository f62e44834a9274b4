//! Plans, as `kvant calibrate` makes them and `kvant plan --kl` or `--bits` changes them.

use crate::error::{bad_value, failed};
use crate::evaluate::{load, pool, text_or};
use crate::models;
use crate::work::{Progress, detached};
use kvant_codec::KvSpec;
use kvant_engine::open::{open_plan, plan_path};
use kvant_engine::{ActivationType, Plan, Policy, kv};
use kvant_eval::divergence::{Headway, Models};
use kvant_eval::plans::{
    self, Check, Goal, PlanRequest, Positions, Tried, calibration_windows, search, search_windows,
    sensitivities, spend_bits,
};
use kvant_eval::text;
use kvant_model::{Checkpoint, Model};
use kvant_text::tokenizer::Tokenizer;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(calibrate, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)
}

/// Tokens of a window.
const WINDOW: usize = 2048;

/// What a plan is made from: a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PlanSettings {
    model: String,
    output: Option<PathBuf>,
    text: Option<String>,
    text_name: String,
    tokens: usize,
    threads: Option<usize>,
}

impl PlanSettings {
    /// The text, and its name.
    fn text(&self) -> (&str, &str) {
        text_or(self.text.as_deref(), &self.text_name, (text::calibration(), text::CALIBRATION_NAME))
    }

    fn open(&self, progress: &Progress) -> PyResult<(Checkpoint, Model, Tokenizer)> {
        let checkpoint = Checkpoint::open(models::locate(&self.model, progress)?).map_err(failed)?;
        let model = load(&checkpoint, ActivationType::F32)?;
        let tokenizer = Tokenizer::of(&checkpoint).map_err(failed)?;
        Ok((checkpoint, model, tokenizer))
    }
}

/// Makes a plan and saves it; a JSON object about it.
#[pyfunction]
#[pyo3(signature = (settings, kv, learn, progress=None))]
fn calibrate(
    py: Python<'_>,
    settings: PlanSettings,
    kv: &str,
    learn: Option<&str>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let progress = Progress::new(progress);
    let policy: Policy = kv.parse().map_err(bad_value)?;
    let learn = learn.map_or(Ok(Vec::new()), |list| KvSpec::parse_list(list).map_err(bad_value))?;
    detached(py, move || {
        pool(settings.threads)?.install(|| calibrated(&settings, &policy, &learn, &progress))
    })
}

fn calibrated(
    settings: &PlanSettings,
    policy: &Policy,
    learn: &[KvSpec],
    progress: &Progress,
) -> PyResult<String> {
    let (text, name) = settings.text();
    let (checkpoint, model, tokenizer) = settings.open(progress)?;
    let output = settings.output.clone().unwrap_or_else(|| plan_path(&checkpoint));
    let window = model.context().map_or(WINDOW, |own| own.min(WINDOW)).min(settings.tokens);
    let windows = calibration_windows(&tokenizer, text, window, settings.tokens).map_err(bad_value)?;
    let (model_signature, ranges) = (checkpoint.signature().0, Positions::All);
    let request = PlanRequest { model: model_signature, policy, text: name, learn, ranges, reach: window };
    let total = (windows.ctx() * windows.chunks()) as u64;
    let plan = plans::calibrate(&model, request, &windows, &mut |headway| {
        let done = match headway {
            plans::Progress::Read(tokens) => tokens as u64,
            plans::Progress::Learned(_) => total,
        };
        progress.tell_or_leave(done, total);
    });
    let plan = Arc::new(plan.map_err(failed)?);
    save(&plan, &output)?;
    let policy = plan.with(plan.policy());
    let mut about = about(&plan, &output);
    about["bytes_per_token"] = json!(kv::bytes_per_token(&policy, model.slots()).map_err(failed)?);
    about["bits_per_value"] = json!(bits(&policy, &model)?);
    Ok(about.to_string())
}

/// Bits per value of a policy, over everything a model keeps.
fn bits(policy: &Policy, model: &Model) -> PyResult<f64> {
    let exact: Policy = "f32".parse().map_err(failed)?;
    let per_token = |policy: &Policy| kv::bytes_per_token(policy, model.slots()).map_err(failed);
    Ok(32.0 * per_token(policy)? / per_token(&exact)?)
}

fn save(plan: &Plan, output: &Path) -> PyResult<()> {
    plan.save(output).map_err(|e| failed(format!("{}: {e}", output.display())))
}

fn about(plan: &Plan, output: &Path) -> Value {
    json!({"path": output, "made": plan.made(), "kv": plan.policy().to_string()})
}

/// Changes a plan's policy: bits where they gain most, for a KL divergence or a number of bits. A JSON object about it.
#[pyfunction]
#[pyo3(signature = (settings, path, kl, bits, progress=None))]
fn plan(
    py: Python<'_>,
    settings: PlanSettings,
    path: Option<PathBuf>,
    kl: Option<f64>,
    bits: Option<f64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let goal = match (kl, bits) {
        (Some(kl), None) if kl > 0.0 && kl.is_finite() => Goal::Kl(kl),
        (None, Some(bits)) if bits > 0.0 && bits.is_finite() => Goal::Bits(bits),
        _ => return Err(bad_value("name one goal, kl or bits: a number above zero")),
    };
    let progress = Progress::new(progress);
    detached(py, move || pool(settings.threads)?.install(|| planned(&settings, path, goal, &progress)))
}

fn planned(
    settings: &PlanSettings,
    path: Option<PathBuf>,
    goal: Goal,
    progress: &Progress,
) -> PyResult<String> {
    let (text, name) = settings.text();
    let (checkpoint, model, tokenizer) = settings.open(progress)?;
    let path = path.unwrap_or_else(|| plan_path(&checkpoint));
    let plan = open_plan(&path, &checkpoint).map_err(failed)?;
    let windows = search_windows(&tokenizer, model.context(), text, settings.tokens);
    let windows = windows.map_err(bad_value)?;
    let mut tell = |headway: Headway<'_>| {
        progress.tell_or_leave(headway.done as u64, headway.total as u64);
    };
    let models = Models { reference: &model, subject: &model, arithmetic: "f32" };
    let parts = sensitivities(&models, &plan, &windows, &mut tell).map_err(failed)?;
    let check = Check { models, plan: &plan, windows: &windows.other };
    let tried = search(goal, &parts, &check, &mut tell).map_err(failed)?;
    let best = tried.first().ok_or_else(|| match goal {
        Goal::Kl(kl) => bad_value(format!("no policy is expected to reach a KL divergence of {kl}")),
        Goal::Bits(bits) => bad_value(format!("{bits} bits per value are too few for any policy")),
    })?;
    let output = settings.output.as_deref().unwrap_or(&path);
    let changed = spend_bits(&plan, &best.chosen.policy, &parts, settings.tokens, name).map_err(failed)?;
    save(&changed, output)?;
    let mut about = about(&changed, output);
    about["bits_per_value"] = json!(best.chosen.bits);
    about["kl_measured"] = json!(best.found.kl().0);
    about["tried"] = tried.iter().map(told).collect();
    Ok(about.to_string())
}

fn told(tried: &Tried) -> Value {
    let (measured, error) = tried.found.kl();
    json!({"way": tried.way, "kv": tried.chosen.policy.to_string(), "bits_per_value": tried.chosen.bits,
           "kl_predicted": tried.chosen.kl, "kl_measured": measured, "kl_stderr": error,
           "positions": tried.found.tokens()})
}
