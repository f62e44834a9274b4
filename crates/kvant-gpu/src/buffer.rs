//! Buffers of a device: made, written, read.

use crate::device::Gpu;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A storage buffer. Its number tells it from every other.
pub(crate) struct Buffer {
    raw: wgpu::Buffer,
    number: u64,
    gpu: Gpu,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.gpu.buffer_count().fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl Buffer {
    /// A storage buffer of this many bytes, all zero, but never empty.
    pub(crate) fn new(gpu: &Gpu, label: &str, bytes: usize) -> Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        Buffer::with_usage(gpu, label, bytes, usage)
    }

    fn with_usage(gpu: &Gpu, label: &str, bytes: usize, usage: wgpu::BufferUsages) -> Buffer {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let raw = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(16).max(16) as u64,
            usage,
            mapped_at_creation: false,
        });
        gpu.buffer_count().fetch_add(raw.size() as usize, Ordering::Relaxed);
        Buffer { raw, number: NUMBERS.fetch_add(1, Ordering::Relaxed), gpu: gpu.clone() }
    }

    /// A buffer that the host reads.
    pub(crate) fn staging(gpu: &Gpu, bytes: usize) -> Buffer {
        Buffer::with_usage(gpu, "staging", bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    /// A buffer with these numbers.
    pub(crate) fn of_floats(gpu: &Gpu, label: &str, numbers: &[f32]) -> Buffer {
        let words: Vec<u32> = numbers.iter().map(|x| x.to_bits()).collect();
        Buffer::of_words(gpu, label, &words)
    }

    /// A buffer with these words.
    pub(crate) fn of_words(gpu: &Gpu, label: &str, words: &[u32]) -> Buffer {
        let buffer = Buffer::new(gpu, label, 4 * words.len());
        buffer.write(gpu, 0, words);
        buffer
    }

    /// Writes words from byte `at` on, before whatever is submitted next.
    pub(crate) fn write(&self, gpu: &Gpu, at: usize, words: &[u32]) {
        if !words.is_empty() {
            gpu.queue().write_buffer(&self.raw, at as u64, bytes_of(words));
        }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn bytes(&self) -> usize {
        self.raw.size() as usize
    }

    /// Reads the first bytes of a staging buffer, once all that was submitted is done.
    pub(crate) fn read(&self, gpu: &Gpu, out: &mut [u8]) -> Result<(), String> {
        if out.is_empty() {
            return Ok(());
        }
        self.view(gpu, out.len(), |bytes| out.copy_from_slice(bytes))
    }

    /// Shows the first bytes of a staging buffer, one at least, once all that was submitted is done.
    pub(crate) fn view<T>(&self, gpu: &Gpu, len: usize, show: impl FnOnce(&[u8]) -> T) -> Result<T, String> {
        let slice = self.raw.slice(..len.next_multiple_of(4) as u64);
        let (done, mapped) = mpsc::channel();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            // Nobody listens any more when the device is lost meanwhile.
            let _ = done.send(result);
        });
        let start = Instant::now();
        let result = loop {
            if let Ok(result) = mapped.try_recv() {
                break result;
            }
            // A thread that sleeps wakes up late, and a token takes milliseconds. Drivers in software need the processor themselves.
            let how = match gpu.report().kind.is_gpu() && start.elapsed() < AWAKE {
                true => wgpu::PollType::Poll,
                false => wgpu::PollType::wait_indefinitely(),
            };
            gpu.device().poll(how).map_err(|e| e.to_string())?;
        };
        result.map_err(|e| e.to_string())?;
        let view = slice.get_mapped_range().map_err(|e| e.to_string())?;
        let shown = show(&view[..len]);
        drop(view);
        self.raw.unmap();
        Ok(shown)
    }
}

/// How long the host looks for a device to be ready before it sleeps.
const AWAKE: Duration = Duration::from_millis(20);

/// Numbers as a device reads them.
fn bytes_of(words: &[u32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "devices read words with their lowest byte first") };
    // SAFETY: words are four bytes each, without padding, and bytes have no alignment; the slice lives as long as theirs.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Bytes as words, the last one padded with zeros.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| {
        let mut four = [0; 4];
        four[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(four)
    };
    bytes.chunks(4).map(word).collect()
}
