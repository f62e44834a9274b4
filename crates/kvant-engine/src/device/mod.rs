//! Where a model runs: on the processor, or on a device whose memory holds weights, activations and compressed pages.
//!
//! A [`Device`] is what the engine has to know of one before a model is on it: which blocks and caches it runs, how much memory it
//! has, and the backend that compiles for it. The device is chosen first, then the cache: what was asked for by name is refused by
//! name where the device does not run it; what nobody asked for gives way. Another kind of device is one crate, one line of `BACKENDS` and
//! its name in [`DeviceChoice`].

mod measured;
mod selection;

pub use measured::{Measured, Measurements};
pub(crate) use measured::{WARM_UP, time};
use selection::check_kept;
pub(crate) use selection::{Selection, check_policy, select};

pub use kvant_device::{BackendOptions, Device, DeviceReport, LoadProgress};

use crate::open::OpenError;
use kvant_cache::Policy;
use kvant_cpu::{Cpu, LoadOptions};
use kvant_device::{DeviceKind, SplitDevice};
use kvant_model::{Backend, Checkpoint, Description, Model};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What is asked to compute. Parses from `auto`, `cpu`, `cuda`, `cuda:N` and `gpu`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// A GPU that has the memory, runs the model and was measured to be faster; else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// NVIDIA's card of that number, by CUDA.
    Cuda(usize),
    /// A GPU, by Metal, Vulkan or DirectX 12; where there is none, an adapter in software.
    Gpu,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Gpu => f.write_str("gpu"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is not a device: there are auto, cpu, cuda, cuda:N and gpu");
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "gpu" => Ok(Self::Gpu),
            other => {
                let number = other.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or_else(refused)
            }
        }
    }
}

/// Why a device that was asked for cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no backend for it in this program.
    #[error(
        "kvant was built without GPU support (features `gpu`, `cuda`); `cargo install --path crates/kvant-cli` builds it with both"
    )]
    NotBuilt,
    /// None was found, or it cannot be opened.
    #[error("{0}")]
    NotFound(String),
    /// It does not keep keys and values as asked for.
    #[error("keys and values cannot be kept as {policy} on {device}: {reason}")]
    Cache {
        /// Its name.
        device: String,
        /// How they were to be kept.
        policy: String,
        /// What does not run, and what does.
        reason: String,
    },
}

/// The backends beside the processor's, in the order in which their devices are looked at where nobody names one: what is made for a
/// card before what is portable.
const BACKENDS: &[&DeviceKind] = &[
    #[cfg(feature = "cuda")]
    &kvant_cuda::DEVICES,
    #[cfg(feature = "gpu")]
    &kvant_gpu::DEVICES,
];

/// Whether this program was built with a backend beside the processor's.
pub const IS_BUILT: bool = !BACKENDS.is_empty();

/// All devices of this machine that this program has a backend for, beside the processor.
pub fn devices() -> Vec<DeviceReport> {
    BACKENDS.iter().flat_map(|kind| (kind.reports)()).collect()
}

/// Opens the device that a choice stands for, of [`DeviceChoice::Auto`] the first that there is; `None` for the processor. Whether the
/// model runs on it, and faster, is another question.
///
/// # Errors
/// If it was asked for and cannot be had.
pub fn open(choice: DeviceChoice) -> Result<Option<Arc<dyn Device>>, DeviceError> {
    let (name, number) = match choice {
        DeviceChoice::Auto => return Ok(hardware().next()),
        DeviceChoice::Cpu => return Ok(None),
        DeviceChoice::Cuda(number) => ("cuda", number),
        DeviceChoice::Gpu => ("gpu", 0),
    };
    let kind = BACKENDS.iter().find(|kind| kind.name == name).ok_or(DeviceError::NotBuilt)?;
    (kind.open)(number).map(Some).map_err(DeviceError::NotFound)
}

/// The GPUs that are looked at where nobody names a device, in their order. Each is opened when it is asked for.
pub(crate) fn hardware() -> impl Iterator<Item = Arc<dyn Device>> {
    BACKENDS.iter().filter_map(|kind| (kind.hardware)())
}

/// The device with the first layers of a model, the others on the processor.
pub(crate) fn first_layers(device: Arc<dyn Device>, layers: usize, options: LoadOptions) -> Arc<dyn Device> {
    let rest = move |backend: BackendOptions| {
        let cpu = Cpu::new(LoadOptions { weights: backend.weights, ..options })?;
        Ok(Box::new(cpu) as Box<dyn Backend + Sync>)
    };
    Arc::new(SplitDevice::new(device, Arc::new(rest), layers))
}

/// A model for measurements, without a tokenizer.
pub struct DeviceModel {
    /// The model.
    pub model: Model,
    /// What it runs on; `None` for the processor.
    pub device: Option<Arc<dyn Device>>,
}

impl DeviceModel {
    /// Brings a model to the device that a choice stands for; [`DeviceChoice::Auto`] is a GPU that runs it, without a measurement.
    ///
    /// # Errors
    /// If it cannot be loaded, or does not run where it was asked to.
    pub fn load(
        choice: DeviceChoice,
        checkpoint: &Checkpoint,
        options: LoadOptions,
    ) -> Result<Self, OpenError> {
        Self::load_layers(choice, None, checkpoint, options)
    }

    /// The same with so many layers on the device, and the rest on the processor; the processor's choice is then a GPU's.
    ///
    /// # Errors
    /// As [`DeviceModel::load`].
    pub fn load_layers(
        choice: DeviceChoice,
        layers: Option<usize>,
        checkpoint: &Checkpoint,
        options: LoadOptions,
    ) -> Result<Self, OpenError> {
        let description = Description::of(checkpoint)?;
        let choice = match (layers, choice) {
            (Some(0), _) => DeviceChoice::Cpu,
            (Some(_), DeviceChoice::Cpu) => DeviceChoice::Auto,
            (_, named) => named,
        };
        let runs = |device: &Arc<dyn Device>| device.check_model(&description, checkpoint).is_ok();
        let device = match choice {
            DeviceChoice::Auto => hardware().find(runs),
            named => open(named)?,
        };
        let cut = layers.filter(|layers| *layers < description.layers.len());
        let device = match (device, cut) {
            (Some(device), Some(layers)) => Some(first_layers(device, layers, options)),
            (device, _) => device,
        };
        let model = match &device {
            None => kvant_cpu::load(checkpoint, options)?,
            Some(device) => {
                let backend =
                    device.backend(BackendOptions { weights: options.weights, ..BackendOptions::default() });
                Model::load(&*backend, checkpoint)?
            }
        };
        Ok(Self { model, device })
    }

    /// Refuses a cache that the device does not keep.
    ///
    /// # Errors
    /// Says which, and what it keeps.
    pub fn check(&self, policy: &Policy) -> Result<(), OpenError> {
        match &self.device {
            None => Ok(()),
            Some(device) => check_kept(&**device, policy, self.model.description()),
        }
    }

    /// What computes, in words.
    pub fn name(&self) -> &str {
        self.device.as_ref().map_or("cpu", |device| device.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_they_print() {
        let all = [
            DeviceChoice::Auto,
            DeviceChoice::Cpu,
            DeviceChoice::Cuda(0),
            DeviceChoice::Cuda(3),
            DeviceChoice::Gpu,
        ];
        for choice in all {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        for text in ["tpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            assert!(
                text.parse::<DeviceChoice>().unwrap_err().contains("auto, cpu, cuda, cuda:N and gpu"),
                "{text}"
            );
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_backend_that_is_not_built_is_said_to_be_missing() {
        assert_eq!(open(DeviceChoice::Cuda(0)).err(), Some(DeviceError::NotBuilt));
    }
}
