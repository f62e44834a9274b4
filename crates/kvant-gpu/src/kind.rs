//! GPUs as the engine sees them.

use crate::adapter::{AdapterReport, adapters};
use crate::arithmetic::Arithmetic;
use crate::backend::GpuBackend;
use crate::choice::choice_key;
use crate::device::Gpu;
use crate::layout::check_cache;
use kvant_cache::CacheLayout;
use kvant_device::{BackendOptions, Device, DeviceKind, DeviceReport, Kept};
use kvant_model::{Backend, Checkpoint, Description, LoadError};
use std::sync::Arc;

/// GPUs, by Metal, Vulkan and DirectX 12. They have no numbers.
pub static DEVICES: DeviceKind = DeviceKind { name: "gpu", open: |_| open(), hardware, reports };

/// The adapter that the environment names, the best GPU, or one in software.
fn open() -> Result<Arc<dyn Device>, String> {
    Ok(Arc::new(Gpu::open_any().map_err(|e| e.to_string())?))
}

/// The best GPU, if there is one that runs kernels.
fn hardware() -> Option<Arc<dyn Device>> {
    let device = Gpu::open().ok()?;
    (!device.is_software()).then(|| Arc::new(device) as _)
}

fn reports() -> Vec<DeviceReport> {
    adapters().into_iter().map(report).collect()
}

fn report(adapter: AdapterReport) -> DeviceReport {
    let choice = choice_key(&adapter);
    let AdapterReport { name, kind, api, driver, subgroup, memory, arithmetic, unfit, .. } = adapter;
    let lanes = match subgroup {
        (0, _) => String::new(),
        (least, most) if least == most => format!(", subgroups of {most}"),
        (least, most) => format!(", subgroups of {least} to {most}"),
    };
    let about = format!("{}, {api}, {driver}{lanes}; products of {arithmetic}", kind.name());
    DeviceReport { name, about, memory, choice, unfit, one_order: arithmetic == Arithmetic::default() }
}

impl Device for Gpu {
    fn name(&self) -> &str {
        Gpu::name(self)
    }

    fn is_software(&self) -> bool {
        !self.report().kind.is_gpu()
    }

    fn memory(&self) -> Option<u64> {
        self.report().memory
    }

    fn fastest(&self, kept: &dyn Kept) -> Option<Arc<dyn Device>> {
        let fastest = self.fastest_arithmetic(kept);
        if fastest == self.arithmetic() {
            return None;
        }
        let device = self.reopened(fastest).ok()?;
        Some(Arc::new(device))
    }

    fn check_model(&self, description: &Description, checkpoint: &Checkpoint) -> Result<(), LoadError> {
        GpuBackend::new(self).check_model(description, checkpoint)
    }

    fn check_cache(&self, layout: &CacheLayout) -> Result<(), String> {
        check_cache(self, layout).map_err(|e| e.to_string())
    }

    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync> {
        Box::new(GpuBackend::new(self).with_cap(options.cap).with_weights(options.weights))
    }
}
