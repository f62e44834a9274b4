//! The processor as a device among others.

use kvant_cache::CacheLayout;
use kvant_cpu::{Cpu, LoadOptions};
use kvant_device::{BackendOptions, Device};
use kvant_model::{Backend, Checkpoint, Description, LoadError};

/// The CPU backend, with weights as they are stored and activations in f32.
#[derive(Debug, Clone, Copy)]
pub struct Host;

impl Device for Host {
    fn name(&self) -> &str {
        "cpu"
    }

    fn is_software(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<u64> {
        None
    }

    fn check_model(&self, _: &Description, _: &Checkpoint) -> Result<(), LoadError> {
        Ok(())
    }

    fn check_cache(&self, _: &CacheLayout) -> Result<(), String> {
        Ok(())
    }

    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync> {
        let options = LoadOptions { weights: options.weights, ..LoadOptions::AS_STORED };
        Box::new(Cpu::new(options).expect("an instruction set of this machine"))
    }
}
