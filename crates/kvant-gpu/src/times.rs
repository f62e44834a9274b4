//! How long each kernel of a pass took, by the device's own clock: for whoever looks for where time goes.

use crate::buffer::Buffer;
use crate::device::Gpu;
use std::collections::BTreeMap;
use tracing::{Level, trace};

/// The most dispatches of a pass whose times are taken.
const MOST: usize = 2000;

/// Whether somebody wants to know: `--log kvant_gpu=trace`. Asked once for a device, which has to be opened with its clock.
pub(crate) fn are_wanted() -> bool {
    tracing::enabled!(Level::TRACE)
}

/// Clock readings around dispatches.
pub(crate) struct Times {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: Buffer,
    labels: Vec<&'static str>,
}

impl Times {
    pub(crate) fn new(gpu: &Gpu) -> Times {
        let set = gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * MOST as u32,
        });
        let resolved = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size: 16 * MOST as u64,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Times { set, resolved, staging: Buffer::staging(gpu, 16 * MOST), labels: Vec::new() }
    }

    /// Reads the clock before a dispatch; the number of the reading after it.
    pub(crate) fn begin(&mut self, pass: &mut wgpu::ComputePass<'_>, label: &'static str) -> Option<u32> {
        let first = 2 * self.labels.len() as u32;
        if self.labels.len() == MOST {
            return None;
        }
        self.labels.push(label);
        pass.write_timestamp(&self.set, first);
        Some(first + 1)
    }

    pub(crate) fn end(&self, pass: &mut wgpu::ComputePass<'_>, query: u32) {
        pass.write_timestamp(&self.set, query);
    }

    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let count = 2 * self.labels.len() as u32;
        if count > 0 {
            encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, self.staging.raw(), 0, 8 * u64::from(count));
        }
    }

    /// Logs the microseconds of every kind of kernel, and from the first to the last.
    pub(crate) fn log(&mut self, gpu: &Gpu) {
        let labels = std::mem::take(&mut self.labels);
        let mut bytes = vec![0; 16 * labels.len()];
        if labels.is_empty() || self.staging.read(gpu, &mut bytes).is_err() {
            return;
        }
        let readings: Vec<u64> = bytes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect();
        let microseconds = |ticks: u64| ticks as f64 * f64::from(gpu.queue().get_timestamp_period()) / 1000.0;
        let mut sums: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for (label, pair) in labels.iter().zip(readings.chunks(2)) {
            let (count, sum) = sums.entry(label).or_default();
            *count += 1;
            *sum += microseconds(pair[1].saturating_sub(pair[0]));
        }
        let whole = microseconds(readings[readings.len() - 1].saturating_sub(readings[0]));
        for (kernel, (count, microseconds)) in sums {
            trace!(kernel, count, microseconds, "kernels");
        }
        trace!(microseconds = whole, "all kernels");
    }
}
