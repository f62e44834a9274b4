//! A model brought to where it runs.

use super::context::{ContextRequest, default_context};
use super::draft::Draft;
use super::error::{OpenError, OpenNote};
use super::kv_choice::KvChoice;
use super::plans::ChosenPolicy;
use super::{LoadedModel, OpenOptions, mtp};
use crate::device::{BackendOptions, Device, DeviceChoice, Measured, Measurements, WARM_UP, time};
use crate::engine::Engine;
use crate::estimate::MemoryEstimate;
use crate::memory::Memory;
use crate::session::GenerateError;
use crate::speculation::{Speculate, SuffixProposer};
use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_cpu::{Cpu, WeightKernel};
use kvant_model::{Backend, Checkpoint, Description, LoadError};
use kvant_threads::Pool;
use std::sync::Arc;
use std::time::Duration;

/// The shortest context, if the model has as long a one, that a device has to hold to be chosen.
pub(crate) const SHORTEST: usize = 8192;

/// All but the checkpoint of an opened model.
pub(super) struct Loaded {
    engine: Arc<Engine>,
    policy: Policy,
    context: usize,
    notes: Vec<OpenNote>,
    device: Option<Arc<dyn Device>>,
}

impl Loaded {
    pub(super) fn into_opened(self, options: &OpenOptions, checkpoint: Checkpoint) -> LoadedModel {
        let Self { engine, policy, context, mut notes, device } = self;
        notes.extend(options.note_rope(engine.model().description().ropes.len()));
        LoadedModel { engine, checkpoint, policy, context, notes, options: options.clone(), device }
    }
}

impl OpenOptions {
    /// Opens a model on the processor.
    pub(super) fn open_on_cpu(
        &self,
        chosen: ChosenPolicy,
        checkpoint: &Checkpoint,
        description: &Description,
        available: Option<u64>,
        mut notes: Vec<OpenNote>,
    ) -> Result<Loaded, OpenError> {
        let beside = Draft::of(self, description)?.map_or(Ok(0), |draft| draft.bytes(self))?;
        let beside = beside + self.mtp_bytes(description)?;
        let engine = self.engine(checkpoint, &Cpu::new(self.load_options())?)?;
        let adapters = engine.library().iter().map(|of| of.applied.adapter.bytes() as u64).sum::<u64>();
        let available = available.map(|bytes| bytes.saturating_sub(beside + adapters));
        let policy = self.policy(chosen, description, &mut notes)?;
        self.note_splits(&engine, &mut notes);
        let types = slow_types(checkpoint)?;
        if !types.is_empty() {
            notes.push(OpenNote::SlowWeights { types });
        }
        let policy_of = &policy;
        let request = ContextRequest {
            checkpoint,
            description,
            policy: policy_of,
            options: self,
            available,
            on_device: false,
        };
        let context = request.choose(&mut notes)?;
        Ok(Loaded { engine, policy, context, notes, device: None })
    }

    /// Opens a model on a device that runs it. Where nobody asked for the device, it has to be the faster one too.
    pub(super) fn open_on(
        &self,
        device: &Arc<dyn Device>,
        chosen: ChosenPolicy,
        checkpoint: &Checkpoint,
        description: &Description,
    ) -> Result<Loaded, OpenError> {
        let mut notes = Vec::new();
        let policy = self.policy(chosen, description, &mut notes)?;
        let memory = device.memory();
        let request = ContextRequest {
            checkpoint,
            description,
            policy: &policy,
            options: self,
            available: memory.or_else(|| self.available()),
            on_device: memory.is_some(),
        };
        let context = request.choose(&mut notes)?;
        let is_chosen = self.device == DeviceChoice::Auto && self.gpu_layers.is_none();
        if is_chosen && context < default_context(description).min(SHORTEST) && self.context.is_none() {
            return Err(refused(format!("its memory holds contexts of {context} tokens alone")));
        }
        let kept = self.measurements.as_deref().map(Measurements::in_folder);
        let device =
            &kept.as_ref().and_then(|kept| device.fastest(kept)).unwrap_or_else(|| Arc::clone(device));
        let known = kept.filter(|_| is_chosen);
        let key = Measurements::key(&checkpoint.signature().0, device.name());
        let measured = known.as_ref().and_then(|known| known.get(&key));
        if let Some(slower) = measured.filter(|measured| !measured.is_faster()) {
            return Err(refused(in_words(&slower)));
        }
        let run = self.run_config(&policy, context, memory.is_some());
        let estimate = MemoryEstimate::new(checkpoint, description, &run)?;
        let cap = self.device_cap(memory, &estimate);
        let backend = device.backend(BackendOptions { weights: self.weights, cap, progress: self.progress });
        let engine = self.engine(checkpoint, &*backend)?;
        if is_chosen && measured.is_none() {
            let measured = self.measure(&engine, &policy, checkpoint)?;
            if let Some(known) = known {
                known.keep(&key, &measured);
            }
            if !measured.is_faster() {
                return Err(refused(in_words(&measured)));
            }
        }
        self.note_splits(&engine, &mut notes);
        Ok(Loaded { engine, policy, context, notes, device: Some(Arc::clone(device)) })
    }

    /// Times a short text on a loaded engine and on the processor.
    fn measure(
        &self,
        engine: &Arc<Engine>,
        policy: &Policy,
        checkpoint: &Checkpoint,
    ) -> Result<Measured, OpenError> {
        let wrong = |error: GenerateError| refused(error.to_string());
        let device_ms = time(engine, policy, WARM_UP).map_err(wrong)?;
        let on_cpu = self.engine(checkpoint, &Cpu::new(self.load_options())?)?;
        let cpu_ms = time(&on_cpu, policy, Duration::ZERO).map_err(wrong)?;
        Ok(Measured { device_ms, cpu_ms })
    }

    fn engine(
        &self,
        checkpoint: &Checkpoint,
        backend: &(dyn Backend + Sync),
    ) -> Result<Arc<Engine>, OpenError> {
        let pool = self.threads.map_or_else(Pool::default, Pool::new);
        let engine = Engine::load_with(pool, checkpoint, backend)?;
        let draft = Draft::of(self, engine.model().description())?;
        let engine = match (&self.speculate, draft) {
            (_, Some(draft)) => {
                let draft = draft.load(self, &engine)?;
                engine.with_draft(draft)?
            }
            (Some(Speculate::Off), _) => engine.without_speculation(),
            // Asked for, and not merely where it can be had.
            (Some(Speculate::Mtp), _) => {
                mtp::check(&engine)?;
                self.with_mtp(engine)?
            }
            (Some(_), _) => engine.with_proposers(Some(SuffixProposer::maker()))?,
            (None, _) if engine.model().mtp().is_some() => self.with_mtp(engine)?,
            (None, _) => engine,
        };
        let engine = match self.lora.is_empty() {
            true => engine,
            false => {
                let adapters = self.adapters(checkpoint, engine.model().description())?;
                engine.with_library(adapters)?
            }
        };
        Ok(Arc::new(match self.template()? {
            Some(template) => engine.with_template(template),
            None => engine,
        }))
    }

    /// The policy of a choice with what is asked for besides. One that cannot be kept is refused before memory is looked at.
    fn policy(
        &self,
        chosen: ChosenPolicy,
        description: &Description,
        notes: &mut Vec<OpenNote>,
    ) -> Result<Policy, OpenError> {
        match chosen.plan {
            // A policy that was asked for is only lent the plan's numbers.
            Some(plan) if !matches!(self.kv, Some(KvChoice::Policy(_))) => {
                notes.push(OpenNote::Plan { plan, reason: chosen.reason });
            }
            plan if plan.is_some() || self.kv == Some(KvChoice::Auto) => {
                notes.push(OpenNote::Cache { policy: chosen.policy.to_string(), reason: chosen.reason });
            }
            _ => {}
        }
        let policy = self.complete(chosen.policy);
        KvCache::new(&policy, &description.slots, 1)?;
        Ok(policy)
    }

    fn note_splits(&self, engine: &Engine, notes: &mut Vec<OpenNote>) {
        if engine.tokenizer().guesses_splits() {
            notes.push(OpenNote::GuessedSplits);
        }
    }

    /// The most bytes of pages on a device: as asked for, or what weights and activations leave; at least one whole context.
    fn device_cap(&self, memory: Option<u64>, estimate: &MemoryEstimate) -> Option<usize> {
        let left = || match memory {
            Some(memory) => Some(memory.saturating_sub(estimate.peak() - estimate.cache)),
            None => Memory::read().map(|memory| memory.available / 2),
        };
        let whole = |left: u64| usize::try_from(left.max(estimate.cache)).unwrap_or(usize::MAX);
        self.kv_memory.or_else(|| left().map(whole))
    }
}

fn refused(what: String) -> OpenError {
    LoadError::unsupported(what).into()
}

fn in_words(measured: &Measured) -> String {
    let Measured { device_ms, cpu_ms } = measured;
    format!("a short text took {device_ms:.0} ms there and {cpu_ms:.0} ms on the CPU")
}

/// Types of matrices that have no kernels on the processor, each once.
fn slow_types(checkpoint: &Checkpoint) -> Result<Vec<&'static str>, LoadError> {
    let mut types = Vec::new();
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name)?;
        let dtype = tensor.dtype();
        let is_slow = tensor.shape().len() > 1
            && !dtype.is_integer()
            && WeightKernel::of(dtype) == WeightKernel::Unpacked;
        if is_slow && !types.contains(&dtype.name()) {
            types.push(dtype.name());
        }
    }
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::DType;

    #[test]
    fn types_that_run_on_a_slow_fallback_are_named() {
        let config = serde_json::json!({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8,
            "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 100, "rms_norm_eps": 1e-5, "hidden_act": "silu"});
        let of = |dtype| slow_types(&Checkpoint::from_config(config.clone(), dtype).unwrap()).unwrap();
        assert_eq!(of(DType::IQ2_XS), [DType::IQ2_XS.name()]);
        assert!(of(DType::Q4_K).is_empty() && of(DType::F16).is_empty());
        let note = OpenNote::SlowWeights { types: of(DType::IQ2_XS) }.to_string();
        assert!(
            note.contains(DType::IQ2_XS.name()) && note.contains("slow") && note.contains("kvant convert"),
            "{note}"
        );
    }
}
