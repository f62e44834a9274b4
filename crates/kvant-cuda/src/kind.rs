//! NVIDIA's cards as the engine sees them.

use crate::backend::CudaBackend;
use crate::device::CudaGpu;
use kvant_cache::CacheLayout;
use kvant_device::{BackendOptions, Device, DeviceKind, DeviceReport};
use kvant_model::{Backend, Checkpoint, Description, LoadError, Network};
use std::sync::Arc;

/// A card, as the engine sees it.
pub struct CudaDevice {
    card: Arc<CudaGpu>,
    name: String,
}

impl CudaDevice {
    /// Of an open card.
    pub fn new(card: Arc<CudaGpu>) -> CudaDevice {
        let name = format!("{} ({})", card.label(), card.name());
        CudaDevice { card, name }
    }
}

/// NVIDIA's cards, by CUDA.
pub static DEVICES: DeviceKind = DeviceKind { name: "cuda", open, hardware: || open(0).ok(), reports };

/// The card of that number.
fn open(number: usize) -> Result<Arc<dyn Device>, String> {
    let card = CudaGpu::open(number).map_err(|e| e.to_string())?;
    Ok(Arc::new(CudaDevice::new(Arc::new(card))))
}

/// The first card, or why there is none that runs the kernels.
fn reports() -> Vec<DeviceReport> {
    let report = |name: String, about: String, memory, unfit| DeviceReport {
        name,
        about,
        memory,
        choice: None,
        unfit,
        one_order: true,
    };
    match CudaGpu::open(0) {
        Ok(card) => {
            let about = format!("{}, CUDA, {:?} kernels", card.label(), card.form());
            let memory = card.memory().ok().map(|bytes| bytes as u64);
            vec![report(card.name().to_owned(), about, memory, None)]
        }
        Err(error) => vec![report("cuda:0".to_owned(), "CUDA".to_owned(), None, Some(error.to_string()))],
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_software(&self) -> bool {
        false
    }

    fn memory(&self) -> Option<u64> {
        self.card.memory().ok().map(|bytes| bytes as u64)
    }

    fn check_model(&self, description: &Description, _: &Checkpoint) -> Result<(), LoadError> {
        CudaBackend::check_model(&self.card, description)
    }

    fn check_cache(&self, layout: &CacheLayout) -> Result<(), String> {
        let backend = CudaBackend::new(&self.card).map_err(|e| e.to_string())?;
        backend.check_cache(layout).map_err(|e| e.to_string())
    }

    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync> {
        let backend = CudaBackend::new(&self.card).and_then(|backend| backend.with_cap(options.cap));
        match backend {
            Ok(backend) => Box::new(backend.with_weights(options.weights).with_progress(options.progress)),
            Err(error) => Box::new(Lost(error.to_string())),
        }
    }
}

/// A card that could not be made ready: loading a model says why.
struct Lost(String);

impl Backend for Lost {
    fn name(&self) -> &str {
        "cuda"
    }

    fn compile(&self, _: &Description, _: &Checkpoint) -> Result<Box<dyn Network>, LoadError> {
        Err(LoadError::unsupported(self.0.clone()))
    }
}
