//! GPUs by Metal, Vulkan and DirectX 12.

use super::{BackendOptions, Device, DeviceError, DeviceReport};
use kvant_cache::CacheLayout;
use kvant_gpu::{AdapterReport, Arithmetic, Gpu, GpuBackend, adapters};
use kvant_model::{Backend, Checkpoint, Description, LoadError};
use std::sync::Arc;

struct GpuDevice(Gpu);

/// The adapter that the environment names, the best GPU, or one in software.
pub(super) fn open_any() -> Result<Arc<dyn Device>, DeviceError> {
    let gpu = Gpu::open_any().map_err(|e| DeviceError::NotFound(e.to_string()))?;
    Ok(Arc::new(GpuDevice(gpu)))
}

/// The best GPU, if there is one that runs kernels.
pub(super) fn open_hardware() -> Option<Arc<dyn Device>> {
    let device = GpuDevice(Gpu::open().ok()?);
    (!device.is_software()).then(|| Arc::new(device) as _)
}

pub(super) fn reports() -> Vec<DeviceReport> {
    adapters().into_iter().map(report).collect()
}

fn report(adapter: AdapterReport) -> DeviceReport {
    let AdapterReport { name, kind, api, driver, subgroup, memory, arithmetic, unfit, .. } = adapter;
    let lanes = match subgroup {
        (0, _) => String::new(),
        (least, most) if least == most => format!(", subgroups of {most}"),
        (least, most) => format!(", subgroups of {least} to {most}"),
    };
    let about = format!("{}, {api}, {driver}{lanes}; products of {arithmetic}", kind.name());
    DeviceReport { name, about, memory, unfit, one_order: arithmetic == Arithmetic::default() }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn is_software(&self) -> bool {
        !self.0.report().kind.is_gpu()
    }

    fn memory(&self) -> Option<u64> {
        self.0.report().memory
    }

    fn check_model(&self, description: &Description, checkpoint: &Checkpoint) -> Result<(), LoadError> {
        GpuBackend::new(&self.0).check_model(description, checkpoint)
    }

    fn check_cache(&self, layout: &CacheLayout) -> Result<(), String> {
        kvant_gpu::check_cache(&self.0, layout).map_err(|e| e.to_string())
    }

    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync> {
        Box::new(GpuBackend::new(&self.0).with_cap(options.cap).with_weights(options.weights))
    }
}
