//! What a pass does, recorded: one command buffer, one compute pass, dispatches in order.
//!
//! Bind groups are made once for a kernel and the buffers it is bound to, and found again by their numbers. A dispatch costs the
//! host a look-up, 64 bytes of arguments and the call.

use crate::buffer::Buffer;
use crate::device::{Gpu, IMMEDIATE_BYTES};
use crate::kernel::Kernel;
use crate::times::Times;
use std::collections::HashMap;
use std::sync::Arc;

/// The most workgroups along one axis of a grid.
const MOST_GROUPS: u32 = 65_535;

type Bound = (usize, Vec<u64>);

/// Bind groups by kernel and buffers.
#[derive(Default)]
pub(crate) struct BindGroups {
    groups: HashMap<Bound, wgpu::BindGroup>,
}

/// Records dispatches and copies.
pub(crate) struct Recorder<'a> {
    gpu: &'a Gpu,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    binds: &'a mut BindGroups,
    times: Option<Times>,
}

/// The workgroups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid(pub u32, pub u32, pub u32);

impl Grid {
    /// `count` workgroups in rows of the longest axis, times `others`: kernels count `x + y · (workgroups of x)` and return beyond
    /// their count.
    pub(crate) fn rows(count: usize, others: usize) -> Grid {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let x = count.clamp(1, MOST_GROUPS);
        Grid(x, count.div_ceil(x).max(1), others as u32)
    }

    fn is_empty(self) -> bool {
        self.0 == 0 || self.1 == 0 || self.2 == 0
    }
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(gpu: &'a Gpu, binds: &'a mut BindGroups) -> Recorder<'a> {
        let encoder =
            gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("pass") });
        let times = gpu.is_timed().then(|| Times::new(gpu));
        Recorder { gpu, encoder, pass: None, binds, times }
    }

    /// The device.
    pub(crate) fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// Runs a kernel on these buffers, in the order of its bindings, with these arguments.
    pub(crate) fn dispatch(
        &mut self,
        kernel: &Arc<Kernel>,
        buffers: &[&Buffer],
        arguments: &[u32],
        grid: Grid,
    ) {
        assert_eq!(buffers.len(), kernel.bindings, "{}", kernel.label);
        if grid.is_empty() {
            return;
        }
        let key = (Arc::as_ptr(kernel) as usize, buffers.iter().map(|buffer| buffer.number()).collect());
        let gpu = self.gpu;
        let group = self.binds.groups.entry(key).or_insert_with(|| {
            let entries: Vec<_> = buffers
                .iter()
                .enumerate()
                .map(|(binding, buffer)| wgpu::BindGroupEntry {
                    binding: binding as u32,
                    resource: buffer.raw().as_entire_binding(),
                })
                .collect();
            gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(kernel.label),
                layout: &kernel.layout,
                entries: &entries,
            })
        });
        let pass = self.pass.get_or_insert_with(|| {
            self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        });
        let mut bytes = [0; IMMEDIATE_BYTES as usize];
        for (to, argument) in bytes.chunks_exact_mut(4).zip(arguments) {
            to.copy_from_slice(&argument.to_le_bytes());
        }
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, &*group, &[]);
        pass.set_immediates(0, &bytes);
        let timed = self.times.as_mut().and_then(|times| times.begin(pass, kernel.label));
        pass.dispatch_workgroups(grid.0, grid.1, grid.2);
        if let (Some(times), Some(query)) = (&self.times, timed) {
            times.end(pass, query);
        }
        self.gpu.count_dispatch();
    }

    /// Reads the device's clock between dispatches.
    #[cfg(test)]
    pub(crate) fn stamp(&mut self, set: &wgpu::QuerySet, index: u32) {
        let pass = self.pass.get_or_insert_with(|| {
            self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        });
        pass.write_timestamp(set, index);
    }

    /// The encoder, between passes.
    #[cfg(test)]
    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        &mut self.encoder
    }

    /// Copies bytes from one buffer to another.
    pub(crate) fn copy(&mut self, from: &Buffer, from_at: usize, to: &Buffer, to_at: usize, bytes: usize) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(from.raw(), from_at as u64, to.raw(), to_at as u64, bytes as u64);
    }

    /// Hands everything so far to the device.
    pub(crate) fn submit(&mut self) {
        self.pass = None;
        if let Some(times) = &self.times {
            times.resolve(&mut self.encoder);
        }
        let next =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("pass") });
        self.gpu.queue().submit([std::mem::replace(&mut self.encoder, next).finish()]);
        if let Some(times) = &mut self.times {
            times.log(self.gpu);
        }
    }
}

impl BindGroups {
    /// Forgets bind groups of buffers that are no more: after buffers have grown.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }
}
