//! The launcher of Macs, with Metal by `objc2-metal`. Nobody has run it: it is type-checked for `aarch64-apple-darwin` alone, and what it does
//! besides calling Metal is in files that tests on the host run.
//!
//! Buffers are shared: the host and kernels see the same bytes, and nothing is copied. A residency set has all of them, so Metal does not go
//! through the arguments of every dispatch. Dispatches that follow each other are one command buffer with one encoder, whose dispatches
//! wait for those before them.

use crate::launcher::{Argument, Code, Dispatch, Launcher};
use crate::memory::Memory;
use crate::translate::Translated;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice,
    MTLDevice, MTLLanguageVersion, MTLLibrary, MTLResidencySet, MTLResidencySetDescriptor,
    MTLResourceOptions, MTLSize,
};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// A Mac's GPU.
pub(crate) struct Mac {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// None before macOS 15.
    residency: Option<Retained<ProtocolObject<dyn MTLResidencySet>>>,
}

// SAFETY: Metal's devices, queues and residency sets may be used by any thread.
unsafe impl Send for Mac {}
// SAFETY: as above.
unsafe impl Sync for Mac {}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mac").field(&self.device.name().to_string()).finish()
    }
}

/// A buffer of Metal.
struct Shared {
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    residency: Option<Retained<ProtocolObject<dyn MTLResidencySet>>>,
}

// SAFETY: Metal's buffers may be used by any thread; who reads and writes their bytes is a queue's to order.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(residency) = &self.residency {
            residency.removeAllocation(self.raw.as_ref());
            residency.commit();
        }
    }
}

/// A kernel that Metal has compiled.
struct MetalCode {
    state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
}

// SAFETY: Metal's pipelines do not change and may be used by any thread.
unsafe impl Send for MetalCode {}
// SAFETY: as above.
unsafe impl Sync for MetalCode {}

impl fmt::Debug for MetalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetalCode(threadgroups of up to {})", self.state.maxTotalThreadsPerThreadgroup())
    }
}

impl Code for MetalCode {}

fn in_words(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

impl Mac {
    pub(crate) fn new() -> Result<Mac, String> {
        let device = MTLCreateSystemDefaultDevice().ok_or("this machine has no Metal")?;
        let queue = device.newCommandQueue().ok_or("Metal gives no command queue")?;
        let residency = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).ok();
        if let Some(residency) = &residency {
            queue.addResidencySet(residency);
            residency.requestResidency();
        }
        Ok(Mac { device, queue, residency })
    }

    /// Records dispatches and waits for them.
    fn launch(&self, dispatches: &[&Dispatch]) -> Result<(), String> {
        let commands = self.queue.commandBuffer().ok_or("Metal gives no command buffer")?;
        let encoder = commands.computeCommandEncoder().ok_or("Metal gives no encoder")?;
        let recorded = dispatches
            .iter()
            .try_for_each(|dispatch| record(&encoder, dispatch).map_err(|what| dispatch.blamed(&what)));
        encoder.endEncoding();
        recorded?;
        commands.commit();
        commands.waitUntilCompleted();
        match (commands.status(), commands.error()) {
            (MTLCommandBufferStatus::Completed, _) => Ok(()),
            (_, Some(error)) => Err(in_words(&error)),
            (status, None) => Err(format!("Metal left a command buffer as {status:?}")),
        }
    }
}

/// One dispatch.
fn record(encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, dispatch: &Dispatch) -> Result<(), String> {
    let code: &dyn Any = &*dispatch.built.code;
    let code: &MetalCode = code.downcast_ref().ok_or("another launcher's kernel")?;
    encoder.setComputePipelineState(&code.state);
    let mut sizes = Vec::new();
    for (slot, argument) in dispatch.arguments(&mut sizes)? {
        match argument {
            Argument::Buffer(part) => {
                let shared: &Shared =
                    part.memory.owner().downcast_ref().ok_or("memory of another launcher")?;
                // SAFETY: a binding lies within its buffer, which wgpu has checked, and slots are those that the text was translated for.
                unsafe { encoder.setBuffer_offset_atIndex(Some(&shared.raw), part.at, slot) };
            }
            Argument::Bytes(bytes) => {
                let at = NonNull::from(bytes).cast();
                // SAFETY: Metal copies so many bytes from there before it returns.
                unsafe { encoder.setBytes_length_atIndex(at, bytes.len(), slot) };
            }
        }
    }
    let size =
        |of: [u32; 3]| MTLSize { width: of[0] as usize, height: of[1] as usize, depth: of[2] as usize };
    encoder
        .dispatchThreadgroups_threadsPerThreadgroup(size(dispatch.grid), size(dispatch.built.kernel.threads));
    Ok(())
}

impl Launcher for Mac {
    fn info(&self) -> wgpu::AdapterInfo {
        wgpu::AdapterInfo {
            name: self.device.name().to_string(),
            driver: "kvant-msl".to_owned(),
            subgroup_min_size: 32,
            subgroup_max_size: 32,
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::IntegratedGpu, wgpu::Backend::Metal)
        }
    }

    fn allocate(&self, bytes: usize) -> Memory {
        let bytes = bytes.next_multiple_of(16).max(16);
        let raw = self
            .device
            .newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared)
            .unwrap_or_else(|| panic!("out of memory: Metal gives no buffer of {bytes} bytes"));
        if let Some(residency) = &self.residency {
            residency.addAllocation(raw.as_ref());
            residency.commit();
        }
        let at = raw.contents().as_ptr().cast::<u8>();
        // SAFETY: a shared buffer's contents are so many bytes of the host, which nobody else has yet.
        unsafe { at.write_bytes(0, bytes) };
        let owner = Box::new(Shared { raw, residency: self.residency.clone() });
        // SAFETY: the contents stay where they are as long as the buffer lives, and were just written.
        unsafe { Memory::of(at, bytes, owner) }
    }

    fn compile(&self, label: &str, kernel: &Translated) -> Result<Box<dyn Code>, String> {
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(MTLLanguageVersion::Version3_1);
            let text = NSString::from_str(&kernel.msl);
            let library = self
                .device
                .newLibraryWithSource_options_error(&text, Some(&options))
                .map_err(|error| format!("{label}: {}", in_words(&error)))?;
            let function = library
                .newFunctionWithName(&NSString::from_str(&kernel.entry))
                .ok_or_else(|| format!("{label}: the text has no function {}", kernel.entry))?;
            let state = self
                .device
                .newComputePipelineStateWithFunction_error(&function)
                .map_err(|error| format!("{label}: {}", in_words(&error)))?;
            let (threads, most) =
                (kernel.threads.iter().product::<u32>(), state.maxTotalThreadsPerThreadgroup());
            if threads as usize > most {
                return Err(format!("{label}: threadgroups of {threads}, where its registers allow {most}"));
            }
            Ok(Box::new(MetalCode { state }) as Box<dyn Code>)
        })
    }

    fn run(&self, dispatches: &[&Dispatch]) -> Result<(), String> {
        match dispatches {
            [] => Ok(()),
            _ => autoreleasepool(|_| self.launch(dispatches)),
        }
    }
}
