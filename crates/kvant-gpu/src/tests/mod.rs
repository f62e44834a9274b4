//! Kernels against naive loops in f64, on odd sizes.
//!
//! They run on the adapter that `KVANT_GPU` names; without that on lavapipe, or not at all where there is none. `KVANT_GPU=msl`
//! stands for what Metal would be given, run on the host (`kvant-msl`).

#[path = "../../tests/common/mod.rs"]
mod common;
mod decode;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod metal_texts;
#[cfg(target_os = "linux")]
mod msl;
mod pages;
mod plans;
mod product_times;
mod products;
mod small;
mod sparse;
mod teams;
mod timing;
mod top;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::recorder::{BindGroups, Recorder};
pub(crate) use common::short_or_all;
use std::cell::RefCell;
use std::time::Instant;

thread_local! {
    /// The device of this thread's test in place of the usual one.
    static OTHER: RefCell<Option<Gpu>> = const { RefCell::new(None) };
}

/// The device of the tests; `None` where none was asked for and there is none.
pub(crate) fn gpu() -> Option<Gpu> {
    OTHER.with_borrow(Clone::clone).or_else(common::gpu)
}

/// Runs a test on another device.
#[cfg(target_os = "linux")]
pub(crate) fn on(gpu: Gpu, test: fn()) {
    OTHER.set(Some(gpu));
    test();
    OTHER.set(None);
}

/// Lavapipe has a lane for 32 bits of its vectors, whose width this variable sets.
#[test]
fn subgroups_are_as_wide_as_was_asked_for() {
    let Some(gpu) = gpu() else { return };
    let bits = std::env::var("LP_NATIVE_VECTOR_WIDTH").ok().and_then(|bits| bits.parse::<u32>().ok());
    if let Some(bits) = bits.filter(|_| gpu.report().name.contains("llvmpipe")) {
        assert_eq!(gpu.report().subgroup, (bits / 32, bits / 32));
    }
}

/// Numbers that look random.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In −1 .. 1.
    pub(crate) fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Records, runs and waits.
pub(crate) fn run(gpu: &Gpu, record: impl FnOnce(&mut Recorder<'_>)) {
    let mut binds = BindGroups::default();
    let mut recorder = Recorder::new(gpu, &mut binds);
    record(&mut recorder);
    recorder.submit();
    assert_eq!(gpu.fault(), None);
}

/// Microseconds of what is recorded, by the device's clock: the best of some runs after others that bring it up to its full speed.
pub(crate) fn device_time(gpu: &Gpu, record: impl Fn(&mut Recorder<'_>)) -> f64 {
    let set = gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
        label: Some("times"),
        ty: wgpu::QueryType::Timestamp,
        count: 2,
    });
    let resolved = gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: Some("times"),
        size: 256,
        usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    let staging = Buffer::staging(gpu, 16);
    let once = || {
        run(gpu, |recorder| {
            recorder.stamp(&set, 0);
            record(recorder);
            recorder.stamp(&set, 1);
            let encoder = recorder.encoder();
            encoder.resolve_query_set(&set, 0..2, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, staging.raw(), 0, 16);
        });
        let mut bytes = [0; 16];
        staging.read(gpu, &mut bytes).unwrap();
        let [first, last] = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
        (last - first) as f64 * f64::from(gpu.queue().get_timestamp_period()) / 1000.0
    };
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < WARM {
        once();
    }
    (0..6).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Seconds of work before a measurement: a card that was idle has a low clock.
const WARM: f64 = 0.5;

/// The numbers of a buffer.
pub(crate) fn floats(gpu: &Gpu, buffer: &Buffer, count: usize) -> Vec<f32> {
    let staging = Buffer::staging(gpu, 4 * count);
    run(gpu, |recorder| recorder.copy(buffer, 0, &staging, 0, 4 * count));
    let mut bytes = vec![0; 4 * count];
    staging.read(gpu, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// Rows padded to a stride.
pub(crate) fn padded(rows: &[f32], width: usize, stride: usize) -> Vec<f32> {
    // What lies behind a row must not count.
    rows.chunks(width)
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f32::NAN, stride - width)))
        .collect()
}

pub(crate) fn close(found: f32, truth: f64, bound: f64, what: &str) {
    let off = (f64::from(found) - truth).abs();
    assert!(off <= bound, "{what}: {found} and not {truth}, off by {off:e}, allowed {bound:e}");
}
