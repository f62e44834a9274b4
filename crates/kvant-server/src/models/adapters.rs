//! The LoRA adapters of a served model: which there are, and which a request runs with.
//!
//! A request says nothing, and runs with the usual ones: those that the server was started with and that have no name of their own,
//! each at its scale, until somebody sets other scales. It names one in place of the model, as vLLM has it, and runs with that alone.
//! Or it lists them in its field `lora`, as llama.cpp has it, by number or name; those that it leaves out are not applied.

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::{AdapterMix, AppliedAdapter, Engine, OpenedAdapter};
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};

/// The largest multiplier that a request may ask for.
const LARGEST_SCALE: f64 = 100.0;

/// The adapters of a model.
pub struct Adapters {
    known: Vec<OpenedAdapter>,
    /// What requests run with that say nothing.
    usual: Mutex<AdapterMix>,
}

impl Adapters {
    /// Those that a model was opened with.
    pub fn of(engine: &Engine) -> Self {
        let known = engine.library().to_vec();
        let usual = match known.is_empty() {
            true => engine.adapters().clone(),
            false => AdapterMix::new(
                known.iter().filter(|opened| !opened.on_request).map(|opened| opened.applied.clone()),
            ),
        };
        Self { known, usual: Mutex::new(usual) }
    }

    /// What they are called.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|opened| opened.applied.adapter.name())
    }

    /// The adapter of a name alone, as strongly as it is meant to be applied.
    pub fn named(&self, name: &str) -> Option<AdapterMix> {
        let opened = self.known.iter().find(|opened| opened.applied.adapter.name() == name)?;
        Some(AdapterMix::new([opened.applied.clone()]))
    }

    /// What requests run with that say nothing.
    pub fn usual(&self) -> AdapterMix {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets requests that say nothing run with these from now on.
    pub fn set_usual(&self, mix: AdapterMix) {
        *self.usual.lock().unwrap_or_else(PoisonError::into_inner) = mix;
    }

    /// All of them with the scale that requests run with which say nothing, as llama.cpp lists them.
    pub fn list(&self) -> Value {
        let usual = self.usual();
        let scale = |opened: &OpenedAdapter| {
            let same =
                usual.iter().filter(|applied| applied.adapter.digest() == opened.applied.adapter.digest());
            same.map(|applied| applied.scale).next().unwrap_or(0.0)
        };
        let one = |(id, opened): (usize, &OpenedAdapter)| {
            // Where its file is, is nobody's business.
            let name = opened.applied.adapter.name();
            json!({"id": id, "path": name, "name": name, "scale": scale(opened)})
        };
        self.known.iter().enumerate().map(one).collect()
    }

    /// Reads `[{"id": 0, "scale": 0.5}]`, with names in place of numbers where that is wanted: those that are left out are not applied.
    pub fn read(&self, fields: &Fields, place: &str, items: Vec<Value>) -> Result<AdapterMix, ApiError> {
        let mut applied: Vec<AppliedAdapter> = Vec::new();
        let mut given = vec![false; self.known.len()];
        for (at, item) in items.into_iter().enumerate() {
            let full = fields.name(&format!("{place}[{at}]"));
            let mut item = fields.inside(&full, item)?;
            let id = item.integer("id", 0..=u64::MAX)?;
            let name = item.text("name")?;
            let scale = item.number("scale", -LARGEST_SCALE..=LARGEST_SCALE)?;
            // What llama.cpp lists may be sent back.
            item.ignore(&["path"]);
            item.end()?;
            let index = match (id, &name) {
                (Some(id), _) => usize::try_from(id).ok().filter(|&id| id < self.known.len()),
                (None, Some(name)) => self.names().position(|known| known == name),
                (None, None) => return Err(ApiError::field(&full, format!("{full} needs an id or a name"))),
            };
            let Some(index) = index else { return Err(self.unknown(&full)) };
            if std::mem::replace(&mut given[index], true) {
                return Err(ApiError::field(&full, format!("{full} names an adapter for the second time")));
            }
            let AppliedAdapter { adapter, scale: own } = self.known[index].applied.clone();
            applied.push(AppliedAdapter { adapter, scale: scale.unwrap_or(own) });
        }
        Ok(AdapterMix::new(applied))
    }

    fn unknown(&self, place: &str) -> ApiError {
        let names: Vec<&str> = self.names().collect();
        let message = match names.as_slice() {
            [] => {
                format!("{place}: this model was opened without LoRA adapters (kvant serve --lora NAME=FILE)")
            }
            names => format!("{place}: there is no such LoRA adapter; there are {}", names.join(", ")),
        };
        ApiError::field(place, message)
    }
}
