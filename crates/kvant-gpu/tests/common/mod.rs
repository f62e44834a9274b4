//! The device of the tests, of kernels and of whole models.

use kvant_gpu::{Arithmetic, Gpu, GpuError};
use std::sync::OnceLock;

/// The adapter that `KVANT_GPU` names, where `msl` stands for what Metal would be given, run on the host, or on a Mac by our own launcher; else
/// lavapipe. `None` where
/// none was asked for and there is none.
pub fn gpu() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(open).clone()
}

/// A device that nothing else of the process uses. It computes in f32 in one order; tests of what is faster open another.
pub fn open() -> Option<Gpu> {
    Some(adapter()?.reopened(Arithmetic::default()).expect("a second device"))
}

/// The second, or the first where `KVANT_GPU_TESTS=short` asks for fewer cases: all take lavapipe half an hour.
pub fn short_or_all<T>(short: T, all: T) -> T {
    if std::env::var("KVANT_GPU_TESTS").is_ok_and(|value| value == "short") { short } else { all }
}

fn adapter() -> Option<Gpu> {
    match std::env::var(kvant_gpu::ADAPTER_VARIABLE) {
        #[cfg(target_os = "linux")]
        Ok(name) if name == "msl" => {
            Some(Gpu::on_adapter(&kvant_msl::Metal::default().adapter()).expect("MSL on the host"))
        }
        #[cfg(target_os = "macos")]
        Ok(name) if name == "msl" => {
            Some(Gpu::on_adapter(&kvant_msl::mac().expect("Metal")).expect("our own launcher"))
        }
        Ok(_) => Some(Gpu::open().expect("the adapter that was asked for")),
        Err(_) => match Gpu::open_named("llvmpipe") {
            Ok(gpu) => Some(gpu),
            Err(GpuError::NoSuchAdapter { .. }) => {
                eprintln!("skipped: lavapipe is not installed (Debian: mesa-vulkan-drivers)");
                None
            }
            Err(error) => panic!("{error}"),
        },
    }
}
