//! Adapters: what a machine has, and whether kernels run there.

use crate::arithmetic::Arithmetic;
use crate::device::{IMMEDIATE_BYTES, WORKGROUP_BYTES};
use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What kind of processor an adapter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A part of a GPU of another machine.
    Virtual,
    /// The host's processor, by a driver for tests (lavapipe, WARP).
    Software,
    /// The driver does not say.
    Unknown,
}

impl AdapterKind {
    /// True where kernels run on a GPU and not on the host.
    pub fn is_gpu(self) -> bool {
        self != AdapterKind::Software
    }

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete GPU",
            AdapterKind::Integrated => "integrated GPU",
            AdapterKind::Virtual => "virtual GPU",
            AdapterKind::Software => "software",
            AdapterKind::Unknown => "unknown",
        }
    }
}

/// What is known of an adapter before a device is opened on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterReport {
    /// As its driver calls it.
    pub name: String,
    /// What kind it is.
    pub kind: AdapterKind,
    /// `vulkan`, `metal` or `dx12`.
    pub api: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// Threads of a subgroup, least and most.
    pub subgroup: (u32, u32),
    /// The largest part of a buffer that a kernel sees at once.
    pub binding_bytes: u64,
    /// Bytes of memory of its own, or that it may keep of the host's (Metal); `None` where its driver does not say.
    pub memory: Option<u64>,
    /// How it computes products.
    pub arithmetic: Arithmetic,
    /// What keeps kvant from running on it; `None` where nothing does.
    pub unfit: Option<String>,
}

impl fmt::Display for AdapterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.kind.name(), self.api)
    }
}

pub(crate) fn instance() -> wgpu::Instance {
    let mut wanted = wgpu::InstanceDescriptor::new_without_display_handle();
    wanted.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    wgpu::Instance::new(wanted)
}

/// Runs a future of wgpu's native side, which is ready at once.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

pub(crate) fn report(adapter: &wgpu::Adapter) -> AdapterReport {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let api = match info.backend {
        wgpu::Backend::Vulkan => "vulkan",
        wgpu::Backend::Metal => "metal",
        wgpu::Backend::Dx12 => "dx12",
        _ => "other",
    };
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Unknown,
    };
    let wants = [
        (adapter.features().contains(wgpu::Features::IMMEDIATES), "no immediates (push constants)"),
        (limits.max_immediate_size >= IMMEDIATE_BYTES, "fewer than 64 bytes of immediates"),
        (
            limits.max_compute_workgroup_storage_size >= WORKGROUP_BYTES,
            "less than 32 KiB of workgroup memory",
        ),
        (limits.max_compute_invocations_per_workgroup >= 256, "workgroups of fewer than 256 threads"),
        (limits.max_storage_buffers_per_shader_stage >= 8, "fewer than 8 storage buffers to a kernel"),
    ];
    let unfit = wants
        .iter()
        .find(|(there, _)| !there)
        .map(|(_, what)| (*what).to_owned())
        .or_else(Arithmetic::mistake);
    AdapterReport {
        name: info.name,
        kind,
        api,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        subgroup: (info.subgroup_min_size, info.subgroup_max_size),
        binding_bytes: limits.max_storage_buffer_binding_size,
        memory: if kind == AdapterKind::Discrete || api == "metal" { own_memory(adapter) } else { None },
        arithmetic: Arithmetic::of(adapter, kind, api),
        unfit,
    }
}

/// Bytes of the heaps that lie on the card, as Vulkan tells them.
#[cfg(not(target_vendor = "apple"))]
fn own_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is asked for its numbers and nothing of it is kept or destroyed.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is one of this instance, which lives as long as the adapter.
    let memory = unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    // Bit 0 of a heap's flags says that it is the device's own.
    let own = memory.memory_heaps_as_slice().iter().filter(|heap| heap.flags.as_raw() & 1 == 1);
    Some(own.map(|heap| heap.size).sum())
}

/// Whether Vulkan's driver says that four products of signed bytes are one instruction.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn has_fast_byte_dots(adapter: &wgpu::Adapter) -> bool {
    use ash::vk;
    // SAFETY: the adapter is asked for its numbers and nothing of it is kept or destroyed.
    let Some(vulkan) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return false };
    let shared = vulkan.shared_instance();
    if shared.instance_api_version() < vk::API_VERSION_1_1 {
        return false;
    }
    let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut dots);
    // SAFETY: the physical device is one of this instance, which lives as long as the adapter and is of Vulkan 1.1, which has the call.
    // A driver that does not know the structure leaves it as it is.
    unsafe {
        shared.raw_instance().get_physical_device_properties2(vulkan.raw_physical_device(), &mut all);
    }
    dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE
}

#[cfg(target_vendor = "apple")]
pub(crate) fn has_fast_byte_dots(_: &wgpu::Adapter) -> bool {
    false
}

/// Bytes that Metal keeps resident for a GPU: about three quarters of the memory that a Mac shares with it, or what `iogpu.wired_limit_mb`
/// allows. Beyond them pages are moved in and out while kernels wait.
#[cfg(target_vendor = "apple")]
fn own_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    use objc2_metal::MTLDevice;
    // SAFETY: the adapter is asked for a number and nothing of it is kept or destroyed.
    let metal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    Some(metal.raw_device().recommendedMaxWorkingSetSize())
}

/// Every adapter of this machine, GPUs first.
pub fn adapters() -> Vec<AdapterReport> {
    let mut found: Vec<_> =
        ready(instance().enumerate_adapters(wgpu::Backends::all())).iter().map(report).collect();
    found.sort_by_key(|report| !report.kind.is_gpu());
    found
}
