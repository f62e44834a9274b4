//! The device and its queue. What kernels do not need, a device does not have.

use crate::adapter;
use crate::commands::{Command, HostBindGroup, HostEncoder, Pipeline, Recorded, Shape, run};
use crate::launcher::{Binding, Launcher};
use crate::memory::{HostBuffer, Memory};
use crate::translate::translate;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::*;

/// Where errors go.
type Handler = Arc<dyn wgpu::UncapturedErrorHandler>;

pub(crate) struct HostDevice {
    launcher: Arc<dyn Launcher>,
    handler: Mutex<Option<Handler>>,
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostDevice").field(&self.launcher).finish()
    }
}

impl HostDevice {
    pub(crate) fn new(launcher: Arc<dyn Launcher>) -> HostDevice {
        HostDevice { launcher, handler: Mutex::default() }
    }

    /// Tells whoever listens; panics where nobody does, as wgpu.
    pub(crate) fn report(&self, description: String) {
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match handler {
            Some(handler) => {
                handler(wgpu::Error::Validation { source: description.clone().into(), description });
            }
            None => panic!("{description}"),
        }
    }
}

/// A kernel's text, translated or not.
#[derive(Debug)]
struct HostModule {
    kernel: Mutex<Option<Result<crate::translate::Translated, String>>>,
}

impl ShaderModuleInterface for HostModule {
    fn get_compilation_info(&self) -> Pin<Box<dyn ShaderCompilationInfoFuture>> {
        Box::pin(ready(wgpu::CompilationInfo { messages: Vec::new() }))
    }
}

impl BindGroupLayoutInterface for Shape {}
impl PipelineLayoutInterface for Shape {}

/// A shared device as wgpu holds it.
#[derive(Debug)]
pub(crate) struct DeviceHandle(pub Arc<HostDevice>);

impl DeviceInterface for DeviceHandle {
    fn features(&self) -> wgpu::Features {
        adapter::features()
    }

    fn limits(&self) -> wgpu::Limits {
        adapter::limits()
    }

    fn adapter_info(&self) -> wgpu::AdapterInfo {
        self.0.launcher.info()
    }

    fn create_shader_module(
        &self,
        wanted: wgpu::ShaderModuleDescriptor<'_>,
        checks: wgpu::ShaderRuntimeChecks,
    ) -> DispatchShaderModule {
        let kernel = match wanted.source {
            wgpu::ShaderSource::Wgsl(text) => translate(&self.0.launcher.changed(&text), checks),
            _ => Err("a kernel is a WGSL text".to_owned()),
        };
        DispatchShaderModule::custom(HostModule { kernel: Mutex::new(Some(kernel)) })
    }

    fn create_bind_group_layout(&self, _: &wgpu::BindGroupLayoutDescriptor<'_>) -> DispatchBindGroupLayout {
        DispatchBindGroupLayout::custom(Shape)
    }

    fn create_pipeline_layout(&self, _: &wgpu::PipelineLayoutDescriptor<'_>) -> DispatchPipelineLayout {
        DispatchPipelineLayout::custom(Shape)
    }

    fn create_bind_group(&self, wanted: &wgpu::BindGroupDescriptor<'_>) -> DispatchBindGroup {
        let mut bindings: Vec<(u32, Binding)> = Vec::new();
        for entry in wanted.entries {
            let wgpu::BindingResource::Buffer(part) = &entry.resource else { unreachable!("buffers only") };
            let Some(buffer) = part.buffer.as_custom::<HostBuffer>() else { unreachable!("our own buffers") };
            let (memory, at) = (Arc::clone(&buffer.memory), part.offset as usize);
            let size = part.size.map_or(part.buffer.size() - part.offset, std::num::NonZero::get);
            bindings.push((entry.binding, Binding { memory, at, bytes: size as usize }));
        }
        bindings.sort_by_key(|(binding, _)| *binding);
        let bindings = bindings.into_iter().map(|(_, binding)| binding).collect();
        DispatchBindGroup::custom(HostBindGroup { bindings })
    }

    fn create_compute_pipeline(
        &self,
        wanted: &wgpu::ComputePipelineDescriptor<'_>,
    ) -> DispatchComputePipeline {
        let label = wanted.label.unwrap_or("kernel").to_owned();
        let module = wanted.module.as_custom::<HostModule>();
        let kernel =
            module.and_then(|module| module.kernel.lock().unwrap_or_else(PoisonError::into_inner).take());
        let kernel = kernel.unwrap_or_else(|| Err("a module makes one pipeline".to_owned()));
        match kernel.and_then(|kernel| Pipeline::build(label.clone(), kernel, &*self.0.launcher)) {
            Ok(pipeline) => DispatchComputePipeline::custom(pipeline),
            Err(what) => {
                self.0.report(format!("{label}: {what}"));
                DispatchComputePipeline::custom(Pipeline::broken())
            }
        }
    }

    fn create_buffer(&self, wanted: &wgpu::BufferDescriptor<'_>) -> DispatchBuffer {
        let memory = Arc::new(self.0.launcher.allocate(wanted.size as usize));
        DispatchBuffer::custom(HostBuffer { memory })
    }

    fn create_command_encoder(&self, _: &wgpu::CommandEncoderDescriptor<'_>) -> DispatchCommandEncoder {
        DispatchCommandEncoder::custom(HostEncoder::default())
    }

    fn on_uncaptured_error(&self, handler: Handler) {
        *self.0.handler.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    fn poll(&self, _: wgpu::wgt::PollType<u64>) -> Result<wgpu::PollStatus, wgpu::PollError> {
        Ok(wgpu::PollStatus::QueueEmpty)
    }

    fn set_device_lost_callback(&self, _: BoxDeviceLostCallback) {}

    fn get_internal_counters(&self) -> wgpu::InternalCounters {
        wgpu::InternalCounters::default()
    }

    fn generate_allocator_report(&self) -> Option<wgpu::AllocatorReport> {
        None
    }

    fn destroy(&self) {}

    unsafe fn create_shader_module_passthrough(
        &self,
        _: &wgpu::ShaderModuleDescriptorPassthrough<'_>,
    ) -> DispatchShaderModule {
        unreachable!("kernels are WGSL")
    }

    fn create_render_pipeline(&self, _: &wgpu::RenderPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        unreachable!("no pictures")
    }

    fn create_mesh_pipeline(&self, _: &wgpu::MeshPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        unreachable!("no pictures")
    }

    unsafe fn create_pipeline_cache(&self, _: &wgpu::PipelineCacheDescriptor<'_>) -> DispatchPipelineCache {
        unreachable!("compiled kernels lie in a folder")
    }

    fn create_texture(&self, _: &wgpu::TextureDescriptor<'_>) -> DispatchTexture {
        unreachable!("no pictures")
    }

    fn create_external_texture(
        &self,
        _: &wgpu::ExternalTextureDescriptor<'_>,
        _: &[&wgpu::TextureView],
    ) -> DispatchExternalTexture {
        unreachable!("no pictures")
    }

    fn create_blas(
        &self,
        _: &wgpu::CreateBlasDescriptor<'_>,
        _: wgpu::BlasGeometrySizeDescriptors,
    ) -> (Option<u64>, DispatchBlas) {
        unreachable!("no rays")
    }

    fn create_tlas(&self, _: &wgpu::CreateTlasDescriptor<'_>) -> DispatchTlas {
        unreachable!("no rays")
    }

    fn create_sampler(&self, _: &wgpu::SamplerDescriptor<'_>) -> DispatchSampler {
        unreachable!("no pictures")
    }

    fn create_query_set(&self, _: &wgpu::QuerySetDescriptor<'_>) -> DispatchQuerySet {
        unreachable!("times are not offered")
    }

    fn create_render_bundle_encoder(
        &self,
        _: &wgpu::RenderBundleEncoderDescriptor<'_>,
    ) -> DispatchRenderBundleEncoder {
        unreachable!("no pictures")
    }

    fn push_error_scope(&self, _: wgpu::ErrorFilter) -> u32 {
        unreachable!("errors go to the handler")
    }

    fn pop_error_scope(&self, _: u32) -> Pin<Box<dyn PopErrorScopeFuture>> {
        unreachable!("errors go to the handler")
    }

    unsafe fn start_graphics_debugger_capture(&self) {}

    unsafe fn stop_graphics_debugger_capture(&self) {}
}

#[derive(Debug)]
pub(crate) struct HostQueue {
    pub device: Arc<HostDevice>,
}

fn memory_of(buffer: &DispatchBuffer) -> &Arc<Memory> {
    let Some(buffer) = buffer.as_custom::<HostBuffer>() else { unreachable!("our own buffers") };
    &buffer.memory
}

impl QueueInterface for HostQueue {
    fn write_buffer(&self, buffer: &DispatchBuffer, at: u64, data: &[u8]) {
        memory_of(buffer).write(at as usize, data);
    }

    fn submit(&self, buffers: &mut dyn Iterator<Item = DispatchCommandBuffer>) -> u64 {
        for buffer in buffers {
            let Some(Recorded { commands }) = buffer.as_custom::<Recorded>() else {
                unreachable!("our own commands")
            };
            for what in run(&*self.device.launcher, commands) {
                self.device.report(what);
            }
        }
        0
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    fn on_submitted_work_done(&self, callback: BoxSubmittedWorkDoneCallback) {
        callback();
    }

    fn create_staging_buffer(&self, _: wgpu::BufferSize) -> Option<DispatchQueueWriteBuffer> {
        None
    }

    fn validate_write_buffer(&self, _: &DispatchBuffer, _: u64, _: wgpu::BufferSize) -> Option<()> {
        Some(())
    }

    fn write_staging_buffer(&self, _: &DispatchBuffer, _: u64, _: &DispatchQueueWriteBuffer) {
        unreachable!("there are no staging buffers")
    }

    fn write_texture(
        &self,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: &[u8],
        _: wgpu::TexelCopyBufferLayout,
        _: wgpu::Extent3d,
    ) {
        unreachable!("no pictures")
    }

    fn compact_blas(&self, _: &DispatchBlas) -> (Option<u64>, DispatchBlas) {
        unreachable!("no rays")
    }

    fn present(&self, _: &DispatchSurfaceOutputDetail) {
        unreachable!("no pictures")
    }
}

/// A copy between buffers, as a command.
pub(crate) fn copy(
    from: &DispatchBuffer,
    from_at: u64,
    to: &DispatchBuffer,
    to_at: u64,
    bytes: u64,
) -> Command {
    Command::Copy {
        from: Arc::clone(memory_of(from)),
        from_at: from_at as usize,
        to: Arc::clone(memory_of(to)),
        to_at: to_at as usize,
        bytes: bytes as usize,
    }
}

/// Zeros in a part of a buffer, or in all that follows, as a command.
pub(crate) fn clear(buffer: &DispatchBuffer, at: u64, bytes: Option<u64>) -> Command {
    let memory = Arc::clone(memory_of(buffer));
    let bytes = bytes.map_or(memory.len() - at as usize, |bytes| bytes as usize);
    Command::Clear { memory, at: at as usize, bytes }
}
