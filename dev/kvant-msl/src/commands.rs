//! Passes as lists of commands, and how a command is run.

use crate::device::{clear, copy};
use crate::launcher::{Binding, Built, Dispatch, Launcher};
use crate::memory::Memory;
use crate::translate::Translated;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::*;

/// Layouts say nothing that a kernel's text does not.
#[derive(Debug)]
pub(crate) struct Shape;

/// Buffers by binding.
#[derive(Debug)]
pub(crate) struct HostBindGroup {
    pub bindings: Vec<Binding>,
}

impl BindGroupInterface for HostBindGroup {}

/// A kernel, compiled. Handles share it.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    built: Option<Arc<Built>>,
}

impl Pipeline {
    pub(crate) fn build(
        label: String,
        kernel: Translated,
        launcher: &dyn Launcher,
    ) -> Result<Pipeline, String> {
        let code = launcher.compile(&label, &kernel)?;
        Ok(Pipeline { built: Some(Arc::new(Built { label, kernel, code })) })
    }

    /// One that was reported already.
    pub(crate) fn broken() -> Pipeline {
        Pipeline { built: None }
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
    Dispatch(Dispatch),
}

/// Runs commands in their order: dispatches that follow each other together. Says what was wrong with each such run.
pub(crate) fn run(launcher: &dyn Launcher, commands: &[Command]) -> Vec<String> {
    let (mut wrong, mut together) = (Vec::new(), Vec::new());
    for command in commands {
        if let Command::Dispatch(dispatch) = command {
            together.push(dispatch);
            continue;
        }
        wrong.extend(launcher.run(&std::mem::take(&mut together)).err());
        match command {
            Command::Copy { from, from_at, to, to_at, bytes } => {
                to.write(*to_at, &from.bytes()[*from_at..from_at + bytes]);
            }
            Command::Clear { memory, at, bytes } => memory.write(*at, &vec![0; *bytes]),
            Command::Dispatch(_) => unreachable!("met above"),
        }
    }
    wrong.extend(launcher.run(&together).err());
    wrong
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
        // A pipeline without a kernel was reported already.
        let Some(built) = pipeline.built else { return };
        add(&self.commands, Command::Dispatch(Dispatch { built, bindings, immediates, grid: [x, y, z] }));
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
