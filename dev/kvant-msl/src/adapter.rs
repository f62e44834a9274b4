//! The adapter: what a Mac's offers, as far as kernels are concerned.

use crate::device::HostDevice;
use crate::launcher::Launcher;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use wgpu::custom::{AdapterInterface, DispatchDevice, DispatchQueue, DispatchSurface, RequestDeviceFuture};
use wgpu::wgt::{CooperativeMatrixProperties, CooperativeScalarType};

/// Buffers that wgpu gives kernels on Metal: 31 without those for immediates and for sizes.
const MOST_BUFFERS: u32 = 29;

#[derive(Debug)]
pub(crate) struct HostAdapter {
    launcher: Arc<dyn Launcher>,
}

impl HostAdapter {
    pub(crate) fn new(launcher: Arc<dyn Launcher>) -> HostAdapter {
        HostAdapter { launcher }
    }
}

pub(crate) fn features() -> wgpu::Features {
    wgpu::Features::IMMEDIATES
        | wgpu::Features::SUBGROUP
        | wgpu::Features::SHADER_F16
        | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
}

pub(crate) fn limits() -> wgpu::Limits {
    wgpu::Limits {
        max_storage_buffers_per_shader_stage: MOST_BUFFERS,
        max_immediate_size: 4096,
        max_compute_workgroup_storage_size: 32 << 10,
        max_compute_invocations_per_workgroup: 1024,
        max_compute_workgroup_size_x: 1024,
        max_storage_buffer_binding_size: 1 << 30,
        max_buffer_size: 1 << 32,
        ..wgpu::Limits::default()
    }
}

impl AdapterInterface for HostAdapter {
    fn request_device(&self, _: &wgpu::DeviceDescriptor<'_>) -> Pin<Box<dyn RequestDeviceFuture>> {
        let device = Arc::new(HostDevice::new(Arc::clone(&self.launcher)));
        let queue = crate::device::HostQueue { device: Arc::clone(&device) };
        Box::pin(ready(Ok((
            DispatchDevice::custom(crate::device::DeviceHandle(device)),
            DispatchQueue::custom(queue),
        ))))
    }

    fn is_surface_supported(&self, _: &DispatchSurface) -> bool {
        false
    }

    fn features(&self) -> wgpu::Features {
        features()
    }

    fn limits(&self) -> wgpu::Limits {
        limits()
    }

    fn downlevel_capabilities(&self) -> wgpu::DownlevelCapabilities {
        wgpu::DownlevelCapabilities::default()
    }

    fn get_info(&self) -> wgpu::AdapterInfo {
        self.launcher.info()
    }

    fn get_texture_format_features(&self, _: wgpu::TextureFormat) -> wgpu::TextureFormatFeatures {
        unreachable!("no textures")
    }

    fn get_presentation_timestamp(&self) -> wgpu::PresentationTimestamp {
        wgpu::PresentationTimestamp::INVALID_TIMESTAMP
    }

    fn cooperative_matrix_properties(&self) -> Vec<CooperativeMatrixProperties> {
        use CooperativeScalarType::{F16, F32};
        let of = |(ab_type, cr_type)| CooperativeMatrixProperties {
            m_size: 8,
            n_size: 8,
            k_size: 8,
            ab_type,
            cr_type,
            saturating_accumulation: false,
        };
        [(F32, F32), (F16, F16), (F16, F32)].map(of).to_vec()
    }
}
