//! The second form of `kvant eval`: caches against the exact one.

use super::speed::Speeds;
use super::{Against, EXACT, Eval, layers, table};
use crate::failure::Failure;
use crate::open;
use crate::progress;
use kvant_engine::device::DeviceModel;
use kvant_engine::open::Plans;
use kvant_engine::{ActivationType, Policy, load_model};
use kvant_eval::divergence::{
    Divergence, DivergenceRow, FastPath, Headway, Mode, Models, Request, Same, device_divergence, divergence,
};
use kvant_eval::html::Page;
use kvant_eval::kept::Kept;
use kvant_eval::layers::layer_views;
use kvant_eval::{EvalError, PassLimits, Setting, Windows, every_cache};
use kvant_model::{Checkpoint, Model};
use std::io::{self, Write};

impl Eval {
    pub(super) fn compare(
        &self,
        checkpoint: &Checkpoint,
        placed: &DeviceModel,
        windows: &Windows,
        setting: Setting,
    ) -> Result<(), Failure> {
        let model = &placed.model;
        let caches = self.caches(checkpoint, model)?;
        let mode = self.mode();
        for policy in &caches {
            placed.check(policy).map_err(|error| open::failure(&error))?;
        }
        let exact = match self.activations.kind() {
            ActivationType::F32 if placed.device.is_none() => None,
            _ => Some(load_model(checkpoint, ActivationType::F32)?),
        };
        let reference = exact.as_ref().unwrap_or(model);
        let mut kept = match self.against {
            Against::Exact => self.open_kept(checkpoint, reference, windows),
            Against::Cpu | Against::Decoded | Against::Pages => None,
        };
        let models = Models { reference, subject: model, arithmetic: &self.arithmetic(placed.name()) };
        let request = Request { models, windows, caches: &caches, mode, limits: PassLimits::default() };
        let found = measure(&request, self.against, kept.as_mut())?;
        let fast = match self.fast {
            true => Some(measure_fast(checkpoint, &request, kept.as_mut())?),
            false => None,
        };
        let speeds = match self.speed {
            true => Some(self.measure_speed(checkpoint, placed, &caches)?),
            false => None,
        };
        let views = match (self.layers, windows.iter().next()) {
            (true, Some(window)) => {
                Some(layer_views(reference, window, &caches, mode, PassLimits::default())?)
            }
            _ => None,
        };
        let rows: Vec<DivergenceRow> = (0..caches.len())
            .map(|place| {
                let spec = caches[place].to_string();
                let mut row = DivergenceRow::new(spec, mode, &found[place], windows, setting.clone());
                row.against = self.against.name();
                row.fast = fast.as_ref().map(|fast| fast[place]);
                row.decode = speeds.as_ref().and_then(|speeds: &Speeds| speeds.of(&caches[place]));
                row
            })
            .collect();
        if let Some(path) = &self.html {
            let points = speeds.as_ref().map(Speeds::points).unwrap_or_default();
            let page = Page { rows: &rows, layers: views.as_ref(), speed: &points };
            std::fs::write(path, page.to_html())
                .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        }
        let mut out = crate::shown::stdout();
        if self.json {
            for row in &rows {
                serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            if let Some(views) = &views {
                serde_json::to_writer(&mut out, views).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        table::write(&mut out, &rows)?;
        if let Some(views) = &views {
            layers::write(&mut out, views)?;
        }
        Ok(())
    }

    /// The caches asked for.
    pub(super) fn caches(&self, checkpoint: &Checkpoint, model: &Model) -> Result<Vec<Policy>, Failure> {
        if self.all {
            return Ok(every_cache(model.slots()));
        }
        let plans = Plans::new(checkpoint);
        let lists = self.kv.iter();
        let lists = lists.map(|list| list.policies(self.sparse_v, self.state, &plans, model.description()));
        Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
    }

    pub(super) fn mode(&self) -> Mode {
        if self.strict { Mode::Strict } else { Mode::Deployed }
    }
}

/// The same caches with int8 activations, and an exact one with them.
fn measure_fast(
    checkpoint: &Checkpoint,
    request: &Request<'_>,
    kept: Option<&mut Kept>,
) -> Result<Vec<FastPath>, Failure> {
    let model = load_model(checkpoint, ActivationType::Int8)?;
    let models = Models { subject: &model, arithmetic: "int8", ..request.models };
    let mut caches = request.caches.to_vec();
    caches.push(EXACT.parse().expect("a spec of the grammar"));
    let mut found = measure(&Request { models, caches: &caches, ..*request }, Against::Exact, kept)?;
    let floor = found.pop().unwrap_or_default();
    Ok(found.iter().map(|found| FastPath::new(found, &floor)).collect())
}

fn measure(
    request: &Request<'_>,
    against: Against,
    mut kept: Option<&mut Kept>,
) -> Result<Vec<Divergence>, EvalError> {
    let bar = progress::bar("{bar:30} {percent} %  {msg}  {eta} left");
    let mut tell = |headway: Headway<'_>| {
        bar.set_length(headway.total as u64);
        bar.set_position(headway.done as u64);
        let so_far = request
            .caches
            .iter()
            .zip(headway.so_far)
            .take(4)
            .map(|(cache, found)| format!("{cache} {}", table::nats(found.kl().0)));
        bar.set_message(format!("KL {}", so_far.collect::<Vec<_>>().join(", ")));
    };
    let found = match against {
        Against::Exact => divergence(request, kept.as_deref_mut(), &mut tell),
        Against::Cpu => device_divergence(request, Same::Kernels, &mut tell),
        Against::Decoded => device_divergence(request, Same::Decoded, &mut tell),
        Against::Pages => device_divergence(request, Same::Pages, &mut tell),
    };
    bar.finish_and_clear();
    for note in kept.map(Kept::notes).unwrap_or_default() {
        eprintln!("note: {note}");
    }
    found
}
