//! What launches translated kernels: the host, by a C++ compiler and fibers (`host.rs`), or a Mac's own Metal (`metal.rs`). All else of
//! this crate, which is what wgpu sees, is the same above both.
//!
//! **Invariant:** a dispatch sees what those before it have written, and all of it is there for the host once [`Launcher::run`] is back.

use crate::memory::Memory;
use crate::translate::{IMMEDIATES_SLOT, Translated};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A launcher of kernels.
pub(crate) trait Launcher: fmt::Debug + Send + Sync {
    /// What its adapter is called, and what kind it is.
    fn info(&self) -> wgpu::AdapterInfo;

    /// What becomes of a kernel's WGSL before it is translated.
    fn changed(&self, wgsl: &str) -> String {
        wgsl.to_owned()
    }

    /// Memory that the host and kernels share, all zero.
    fn allocate(&self, bytes: usize) -> Memory;

    /// A kernel ready to be launched.
    fn compile(&self, label: &str, kernel: &Translated) -> Result<Box<dyn Code>, String>;

    /// Runs dispatches one after another and waits for the last; says which one was wrong, and how.
    fn run(&self, dispatches: &[&Dispatch]) -> Result<(), String>;
}

/// A kernel as its launcher has compiled it.
pub(crate) trait Code: Any + fmt::Debug + Send + Sync {}

/// A kernel with its code.
#[derive(Debug)]
pub(crate) struct Built {
    pub label: String,
    pub kernel: Translated,
    pub code: Box<dyn Code>,
}

/// A part of a buffer.
#[derive(Debug, Clone)]
pub(crate) struct Binding {
    pub memory: Arc<Memory>,
    pub at: usize,
    pub bytes: usize,
}

/// A kernel on a grid of workgroups.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub built: Arc<Built>,
    pub bindings: Vec<Binding>,
    pub immediates: Vec<u8>,
    pub grid: [u32; 3],
}

/// What lies at a slot of a kernel's arguments.
pub(crate) enum Argument<'a> {
    Buffer(&'a Binding),
    Bytes(&'a [u8]),
}

impl Dispatch {
    /// Arguments by slot: immediates, buffers, and last the sizes of those whose sizes the kernel asks for.
    pub(crate) fn arguments<'a>(
        &'a self,
        sizes: &'a mut Vec<u8>,
    ) -> Result<Vec<(usize, Argument<'a>)>, String> {
        let kernel = &self.built.kernel;
        if self.bindings.len() != kernel.writes.len() {
            return Err(format!("{} buffers for {} bindings", self.bindings.len(), kernel.writes.len()));
        }
        let size = |binding: &usize| u32::try_from(self.bindings[*binding].bytes).unwrap_or(u32::MAX);
        *sizes = kernel.sized.iter().flat_map(|binding| size(binding).to_le_bytes()).collect();
        let buffers = self.bindings.iter().enumerate();
        let buffers = buffers.map(|(binding, part)| (Translated::slot(binding), Argument::Buffer(part)));
        let first = [(IMMEDIATES_SLOT, Argument::Bytes(&self.immediates))];
        let last = [(kernel.sizes_slot(), Argument::Bytes(sizes))];
        let is_there = |(_, argument): &(usize, Argument<'_>)| match argument {
            Argument::Bytes(bytes) => !bytes.is_empty(),
            Argument::Buffer(_) => true,
        };
        Ok(first.into_iter().chain(buffers).chain(last).filter(is_there).collect())
    }

    /// What went wrong, and where.
    pub(crate) fn blamed(&self, what: &str) -> String {
        format!("{} on {:?} workgroups: {what}", self.built.label, self.grid)
    }
}
