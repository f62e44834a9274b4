//! The launcher of machines that are no Macs: kernels compiled by a C++ compiler, and run in several orders of their threads.

use crate::launcher::{Argument, Code, Dispatch, Launcher};
use crate::library::{Library, Order};
use crate::memory::Memory;
use crate::translate::Translated;
use crate::{CHECKED, Math, Metal};
use std::any::Any;
use std::ffi::c_void;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Launcher for Metal {
    fn info(&self) -> wgpu::AdapterInfo {
        wgpu::AdapterInfo {
            name: "MSL on the host".to_owned(),
            driver: "kvant-msl".to_owned(),
            subgroup_min_size: 32,
            subgroup_max_size: 32,
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::Cpu, wgpu::Backend::Metal)
        }
    }

    fn changed(&self, wgsl: &str) -> String {
        self.change.as_ref().map_or_else(|| wgsl.to_owned(), |change| change(wgsl))
    }

    fn allocate(&self, bytes: usize) -> Memory {
        Memory::on_host(bytes)
    }

    fn compile(&self, label: &str, kernel: &Translated) -> Result<Box<dyn Code>, String> {
        let library = Library::compile(kernel, &self.folder, self.math == Math::Fast)?;
        let marks = self.folder.join("ran");
        fs::create_dir_all(&marks).map_err(|e| format!("{}: {e}", marks.display()))?;
        let mut hasher = DefaultHasher::new();
        kernel.wgsl.hash(&mut hasher);
        let mark = marks.join(format!("{label}-{:016x}.wgsl", hasher.finish()));
        Ok(Box::new(HostCode { library, runs: AtomicUsize::new(0), mark }))
    }

    fn run(&self, dispatches: &[&Dispatch]) -> Result<(), String> {
        dispatches.iter().try_for_each(|dispatch| checked(dispatch).map_err(|what| dispatch.blamed(&what)))
    }
}

#[derive(Debug)]
struct HostCode {
    library: Library,
    runs: AtomicUsize,
    /// A file that has the WGSL of a kernel once it has run.
    mark: PathBuf,
}

impl Code for HostCode {}

/// Runs a kernel in every order of its threads the first times, and in one of them later.
fn checked(dispatch: &Dispatch) -> Result<(), String> {
    let any: &dyn Any = &*dispatch.built.code;
    let code: &HostCode = any.downcast_ref().ok_or("another launcher's kernel")?;
    let run = code.runs.fetch_add(1, Ordering::Relaxed);
    if run == 0 {
        fs::write(&code.mark, &dispatch.built.kernel.wgsl)
            .map_err(|e| format!("{}: {e}", code.mark.display()))?;
    }
    if run >= CHECKED {
        return launch(code, dispatch, Order::ALL[run % Order::ALL.len()]);
    }
    let written =
        || dispatch.bindings.iter().zip(&dispatch.built.kernel.writes).filter(|(_, writes)| **writes);
    let bytes = || -> Vec<Vec<u8>> { written().map(|(of, _)| of.memory.bytes().to_vec()).collect() };
    let before = bytes();
    let mut first: Option<Vec<Vec<u8>>> = None;
    for order in Order::ALL {
        for ((binding, _), bytes) in written().zip(&before) {
            binding.memory.write(0, bytes);
        }
        launch(code, dispatch, order)?;
        let after = bytes();
        if let Some(place) = difference(first.get_or_insert_with(|| after.clone()), &after) {
            return Err(format!(
                "{place} when threads run {order:?} and not {:?}: is a barrier missing?",
                Order::ALL[0]
            ));
        }
    }
    Ok(())
}

fn launch(code: &HostCode, dispatch: &Dispatch, order: Order) -> Result<(), String> {
    let mut sizes = Vec::new();
    let arguments = dispatch.arguments(&mut sizes)?;
    let mut slots: Vec<*mut c_void> = vec![std::ptr::null_mut(); dispatch.built.kernel.sizes_slot() + 1];
    let mut copies = Vec::new();
    for (slot, argument) in arguments {
        slots[slot] = match argument {
            // SAFETY: a binding lies within its buffer, which wgpu has checked.
            Argument::Buffer(part) => unsafe { part.memory.address().add(part.at) }.cast(),
            Argument::Bytes(bytes) => {
                // As aligned as on a device.
                let copy = Memory::on_host(bytes.len()).filled(bytes);
                let at = copy.address().cast();
                copies.push(copy);
                at
            }
        };
    }
    // SAFETY: slots have the buffers that the text names, with the sizes that it is told, alive until the end of the call;
    // commands of a queue run one at a time, and kernels check every index against the sizes.
    unsafe { code.library.launch(&slots, dispatch.grid, order) }
}

/// The first word that two results have not in common, and how many more there are.
fn difference(before: &[Vec<u8>], after: &[Vec<u8>]) -> Option<String> {
    let (buffer, (before, after)) = before.iter().zip(after).enumerate().find(|(_, (a, b))| a != b)?;
    let words = before.as_chunks::<4>().0.iter().zip(after.as_chunks::<4>().0).enumerate();
    let mut differ = words.filter(|(_, (a, b))| a != b);
    let (at, (a, b)) = differ.next()?;
    let (a, b, more) = (u32::from_le_bytes(*a), u32::from_le_bytes(*b), differ.count());
    Some(format!("word {at} of written buffer {buffer} is {b:#x} and not {a:#x}, and {more} more differ,"))
}
