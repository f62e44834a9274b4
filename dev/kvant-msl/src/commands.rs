//! Passes as lists of commands, and how a command is run.

use crate::CHECKED;
use crate::device::{clear, copy};
use crate::library::{Library, Order};
use crate::memory::Memory;
use crate::translate::{IMMEDIATES_SLOT, Translated};
use std::ffi::c_void;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::*;

/// Layouts say nothing that a kernel's text does not.
#[derive(Debug)]
pub(crate) struct Shape;

/// A part of a buffer.
#[derive(Debug, Clone)]
pub(crate) struct Binding {
    pub memory: Arc<Memory>,
    pub at: usize,
    pub bytes: usize,
}

/// Buffers by binding.
#[derive(Debug)]
pub(crate) struct HostBindGroup {
    pub bindings: Vec<Binding>,
}

impl BindGroupInterface for HostBindGroup {}

/// A kernel, compiled. Handles share it.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    label: String,
    built: Option<Arc<Built>>,
}

#[derive(Debug)]
struct Built {
    kernel: Translated,
    code: Library,
    runs: AtomicUsize,
    /// A file that has the WGSL of a kernel once it has run.
    mark: PathBuf,
}

impl Pipeline {
    pub(crate) fn build(
        label: String,
        kernel: Translated,
        folder: &Path,
        fast: bool,
    ) -> Result<Pipeline, String> {
        let code = Library::compile(&kernel, folder, fast)?;
        let marks = folder.join("ran");
        fs::create_dir_all(&marks).map_err(|e| format!("{}: {e}", marks.display()))?;
        let mut hasher = DefaultHasher::new();
        kernel.wgsl.hash(&mut hasher);
        let mark = marks.join(format!("{label}-{:016x}.wgsl", hasher.finish()));
        let built = Built { kernel, code, runs: AtomicUsize::new(0), mark };
        Ok(Pipeline { label, built: Some(Arc::new(built)) })
    }

    /// One that was reported already.
    pub(crate) fn broken(label: String) -> Pipeline {
        Pipeline { label, built: None }
    }
}

impl ComputePipelineInterface for Pipeline {
    fn get_bind_group_layout(&self, _: u32) -> DispatchBindGroupLayout {
        DispatchBindGroupLayout::custom(Shape)
    }
}

/// Something that a queue does.
#[derive(Debug)]
pub(crate) enum Command {
    Copy { from: Arc<Memory>, from_at: usize, to: Arc<Memory>, to_at: usize, bytes: usize },
    Clear { memory: Arc<Memory>, at: usize, bytes: usize },
    Dispatch { pipeline: Pipeline, bindings: Vec<Binding>, immediates: Vec<u8>, grid: [u32; 3] },
}

impl Command {
    /// Does it, or says what was wrong.
    pub(crate) fn run(&self) -> Result<(), String> {
        match self {
            Command::Copy { from, from_at, to, to_at, bytes } => {
                to.write(*to_at, &from.bytes()[*from_at..from_at + bytes]);
                Ok(())
            }
            Command::Clear { memory, at, bytes } => {
                memory.write(*at, &vec![0; *bytes]);
                Ok(())
            }
            Command::Dispatch { pipeline, bindings, immediates, grid } => {
                let Some(built) = &pipeline.built else { return Ok(()) };
                built
                    .dispatch(bindings, immediates, *grid)
                    .map_err(|what| format!("{} on {grid:?} workgroups: {what}", pipeline.label))
            }
        }
    }
}

impl Built {
    fn dispatch(&self, bindings: &[Binding], immediates: &[u8], grid: [u32; 3]) -> Result<(), String> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        if run == 0 {
            fs::write(&self.mark, &self.kernel.wgsl).map_err(|e| format!("{}: {e}", self.mark.display()))?;
        }
        if run >= CHECKED {
            return self.launch(bindings, immediates, grid, Order::ALL[run % Order::ALL.len()]);
        }
        let written = || bindings.iter().zip(&self.kernel.writes).filter(|(_, writes)| **writes);
        let bytes = || -> Vec<Vec<u8>> { written().map(|(of, _)| of.memory.bytes().to_vec()).collect() };
        let before = bytes();
        let mut first: Option<Vec<Vec<u8>>> = None;
        for order in Order::ALL {
            for ((binding, _), bytes) in written().zip(&before) {
                binding.memory.write(0, bytes);
            }
            self.launch(bindings, immediates, grid, order)?;
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

    fn launch(
        &self,
        bindings: &[Binding],
        immediates: &[u8],
        grid: [u32; 3],
        order: Order,
    ) -> Result<(), String> {
        let kernel = &self.kernel;
        if bindings.len() != kernel.writes.len() {
            return Err(format!("{} buffers for {} bindings", bindings.len(), kernel.writes.len()));
        }
        // Words, so that arguments are as aligned as on a device.
        let immediates = Memory::new(immediates.len()).filled(immediates);
        let sizes: Vec<u32> = kernel
            .sized
            .iter()
            .map(|binding| u32::try_from(bindings[*binding].bytes).unwrap_or(u32::MAX))
            .collect();
        let mut slots: Vec<*mut c_void> = vec![std::ptr::null_mut(); kernel.sizes_slot() + 1];
        slots[IMMEDIATES_SLOT] = immediates.address().cast();
        for (binding, part) in bindings.iter().enumerate() {
            // SAFETY: a binding lies within its buffer, which wgpu has checked.
            slots[Translated::slot(binding)] = unsafe { part.memory.address().add(part.at) }.cast();
        }
        slots[kernel.sizes_slot()] = sizes.as_ptr().cast_mut().cast();
        // SAFETY: slots have the buffers that the text names, with the sizes that it is told, alive until the end of the call;
        // commands of a queue run one at a time, and kernels check every index against the sizes.
        unsafe { self.code.launch(&slots, grid, order) }
    }
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

/// Commands that are being recorded.
type Commands = Arc<Mutex<Vec<Command>>>;

/// A command buffer.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub commands: Vec<Command>,
}

impl CommandBufferInterface for Recorded {}

#[derive(Debug, Default)]
pub(crate) struct HostEncoder {
    commands: Commands,
}

fn add(commands: &Commands, command: Command) {
    commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
}

impl CommandEncoderInterface for HostEncoder {
    fn copy_buffer_to_buffer(
        &self,
        from: &DispatchBuffer,
        from_at: u64,
        to: &DispatchBuffer,
        to_at: u64,
        bytes: Option<u64>,
    ) {
        let Some(bytes) = bytes else { unreachable!("copies have sizes") };
        add(&self.commands, copy(from, from_at, to, to_at, bytes));
    }

    fn begin_compute_pass(&self, _: &wgpu::ComputePassDescriptor<'_>) -> DispatchComputePass {
        let commands = Arc::clone(&self.commands);
        DispatchComputePass::custom(HostPass {
            commands,
            pipeline: None,
            bindings: Vec::new(),
            immediates: Vec::new(),
        })
    }

    fn finish(&mut self) -> DispatchCommandBuffer {
        let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        DispatchCommandBuffer::custom(Recorded { commands })
    }

    fn copy_buffer_to_texture(
        &self,
        _: wgpu::TexelCopyBufferInfo<'_>,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: wgpu::Extent3d,
    ) {
        unreachable!("no pictures")
    }

    fn copy_texture_to_buffer(
        &self,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: wgpu::TexelCopyBufferInfo<'_>,
        _: wgpu::Extent3d,
    ) {
        unreachable!("no pictures")
    }

    fn copy_texture_to_texture(
        &self,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: wgpu::Extent3d,
    ) {
        unreachable!("no pictures")
    }

    fn begin_render_pass(&self, _: &wgpu::RenderPassDescriptor<'_>) -> DispatchRenderPass {
        unreachable!("no pictures")
    }

    fn clear_texture(&self, _: &DispatchTexture, _: &wgpu::ImageSubresourceRange) {
        unreachable!("no pictures")
    }

    fn clear_buffer(&self, buffer: &DispatchBuffer, at: u64, bytes: Option<u64>) {
        add(&self.commands, clear(buffer, at, bytes));
    }

    fn insert_debug_marker(&self, _: &str) {}

    fn push_debug_group(&self, _: &str) {}

    fn pop_debug_group(&self) {}

    fn write_timestamp(&self, _: &DispatchQuerySet, _: u32) {
        unreachable!("times are not offered")
    }

    fn resolve_query_set(&self, _: &DispatchQuerySet, _: u32, _: u32, _: &DispatchBuffer, _: u64) {
        unreachable!("times are not offered")
    }

    fn mark_acceleration_structures_built<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::Blas>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
        unreachable!("no rays")
    }

    fn build_acceleration_structures<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::BlasBuildEntry<'a>>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
        unreachable!("no rays")
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a DispatchTexture>>,
    ) {
    }
}

#[derive(Debug)]
struct HostPass {
    commands: Commands,
    pipeline: Option<Pipeline>,
    bindings: Vec<Binding>,
    immediates: Vec<u8>,
}

impl Drop for HostPass {
    // wgpu asks passes to have an end; this one has written everything down already.
    fn drop(&mut self) {}
}

impl ComputePassInterface for HostPass {
    fn set_pipeline(&mut self, pipeline: &DispatchComputePipeline) {
        self.pipeline = pipeline.as_custom::<Pipeline>().cloned();
    }

    fn set_bind_group(&mut self, index: u32, group: Option<&DispatchBindGroup>, offsets: &[u32]) {
        assert!(index == 0 && offsets.is_empty(), "kernels have one group of bindings, without offsets");
        self.bindings = group
            .and_then(|group| group.as_custom::<HostBindGroup>())
            .map_or_else(Vec::new, |group| group.bindings.clone());
    }

    fn set_immediates(&mut self, at: u32, data: &[u8]) {
        let at = at as usize;
        self.immediates.resize(self.immediates.len().max(at + data.len()), 0);
        self.immediates[at..at + data.len()].copy_from_slice(data);
    }

    fn dispatch_workgroups(&mut self, x: u32, y: u32, z: u32) {
        let Some(pipeline) = self.pipeline.clone() else { unreachable!("a dispatch without a pipeline") };
        let (bindings, immediates) = (self.bindings.clone(), self.immediates.clone());
        add(&self.commands, Command::Dispatch { pipeline, bindings, immediates, grid: [x, y, z] });
    }

    fn dispatch_workgroups_indirect(&mut self, _: &DispatchBuffer, _: u64) {
        unreachable!("grids are known")
    }

    fn insert_debug_marker(&mut self, _: &str) {}

    fn push_debug_group(&mut self, _: &str) {}

    fn pop_debug_group(&mut self) {}

    fn write_timestamp(&mut self, _: &DispatchQuerySet, _: u32) {
        unreachable!("times are not offered")
    }

    fn begin_pipeline_statistics_query(&mut self, _: &DispatchQuerySet, _: u32) {
        unreachable!("statistics are not offered")
    }

    fn end_pipeline_statistics_query(&mut self) {
        unreachable!("statistics are not offered")
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a DispatchTextureView>>,
    ) {
    }
}
