//! Metal without a Mac: an adapter of wgpu whose kernels are what Metal would be given, run on the host.
//!
//! On a Mac, wgpu has naga translate every kernel to MSL, and Metal compiles that. Here naga translates with the same options, a
//! C++ compiler compiles the text with a `metal_stdlib` of ours (`shim/`), and the threads of a workgroup are fibers. So a test
//! that runs on a GPU runs on this adapter too, with the same oracle: nothing has to be listed or copied for it.
//!
//! ```no_run
//! let adapter = kvant_msl::Metal::default().adapter();
//! assert_eq!(adapter.get_info().subgroup_max_size, 32);
//! ```
//!
//! What it can tell: whether the translation computes the right numbers, whether results depend on the order in which threads have
//! their turns (a barrier that is missing), whether lanes read lanes that are not there, whether all threads come to the same
//! barrier, whether workgroup memory is read before it is written (it begins as NaN), and more than 32 KiB of it.
//!
//! What it cannot: whether Apple's compiler takes the text, what its own arithmetic gives (see [`Math`]), and how fast anything is.
//!
//! The first [`CHECKED`] dispatches of a kernel run in each of three orders from the same buffers, and must leave the same bytes;
//! later ones take an order each in turn. What goes wrong is reported as wgpu reports errors.
//!
//! For libraries that launch kernels of MSL themselves there is the text alone ([`standalone`]).
//!
//! What launches is behind a small trait (`launcher.rs`). On a Mac another launcher stands there, with Metal itself (`metal.rs`).
#![deny(missing_docs)]

mod adapter;
mod commands;
mod device;
mod host;
mod launcher;
mod library;
mod memory;
#[cfg(target_os = "macos")]
mod metal;
mod standalone;
mod translate;

pub use standalone::standalone;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Whether wgpu takes a kernel on an adapter that can do everything, cooperative matrices included; what is wrong with it otherwise.
pub fn check(wgsl: &str) -> Result<(), String> {
    translate::validated(wgsl).map(drop)
}

/// Dispatches of a kernel that run in every order.
pub const CHECKED: usize = 2;

/// The environment variable that names the folder for compiled kernels.
pub const FOLDER_VARIABLE: &str = "KVANT_MSL_FOLDER";

/// The environment variable that chooses the arithmetic: `fast`, or anything else.
pub const MATH_VARIABLE: &str = "KVANT_MSL_MATH";

/// How exactly the host computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Math {
    /// Each operation as it is written, rounded once.
    Ieee,
    /// As if no number were infinite or none at all, sums in any order, products fused with sums: what Metal's compiler may do
    /// unless it is told otherwise, and wgpu does not tell it.
    Fast,
}

/// What becomes of a kernel's WGSL before it is translated.
type Change = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// How kernels are compiled.
#[derive(Clone)]
pub struct Metal {
    folder: PathBuf,
    math: Math,
    change: Option<Change>,
}

impl Default for Metal {
    /// As the environment says; else exactly, and compiled kernels lie beside the running program.
    fn default() -> Metal {
        let beside = || {
            let program = std::env::current_exe().unwrap_or_default();
            program.parent().unwrap_or(&program).join("msl")
        };
        let is_fast = std::env::var(MATH_VARIABLE).is_ok_and(|math| math == "fast");
        Metal {
            folder: std::env::var_os(FOLDER_VARIABLE).map_or_else(beside, PathBuf::from),
            math: if is_fast { Math::Fast } else { Math::Ieee },
            change: None,
        }
    }
}

impl Metal {
    /// With kernels changed on their way: to see that a mistake in one is found.
    pub fn changed(mut self, change: impl Fn(&str) -> String + Send + Sync + 'static) -> Metal {
        self.change = Some(Arc::new(change));
        self
    }

    /// The adapter.
    pub fn adapter(self) -> wgpu::Adapter {
        wgpu::Adapter::from_custom(adapter::HostAdapter::new(Arc::new(self)))
    }
}

/// The Mac's own Metal in place of the host and in place of wgpu's: the same translation, launched with `objc2-metal`. Nobody has run it;
/// `KVANT_GPU=msl cargo test -p kvant-gpu` on a Mac does.
///
/// # Errors
/// If there is no Metal.
#[cfg(target_os = "macos")]
pub fn mac() -> Result<wgpu::Adapter, String> {
    Ok(wgpu::Adapter::from_custom(adapter::HostAdapter::new(Arc::new(metal::Mac::new()?))))
}

impl fmt::Debug for Metal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal")
            .field("folder", &self.folder)
            .field("math", &self.math)
            .finish_non_exhaustive()
    }
}
