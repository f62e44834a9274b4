//! The page store of a device: pages in a few large buffers that kernels bind whole.
//!
//! A page is a run of words of one buffer, in the canonical layout: units of codes have the tokens, or the channels, of neighbouring
//! threads in neighbouring words, which is what a GPU wants too. Its number is the buffer's in the top two bits and the word's in
//! the others, so that a table of pages for a kernel is a list of these numbers.
//!
//! A buffer grows by being copied into a larger one until a kernel could bind no more of it; then another is begun. Pages that are
//! given back wait, by size, for the next that wants as much.

use crate::buffer::Buffer;
use crate::device::Gpu;
use kvant_cache::{ArenaError, PageId, PageStore, Usage};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers that a kernel binds at once.
pub(crate) const BLOCKS: usize = 4;

/// Words of the first buffer.
const FIRST_WORDS: usize = 1 << 20;

/// The most words of a buffer: two bits of a page's number are the buffer's.
const MOST_WORDS: usize = 1 << 30;

/// Pages that lie on a device.
pub struct GpuPages {
    gpu: Gpu,
    cap: Option<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: Vec<Block>,
    /// Pages that were given back, by words.
    free: HashMap<usize, Vec<u32>>,
    /// Pages that are to be zero before anything is done with them: number and words.
    stale: Vec<(u32, usize)>,
    pages: usize,
    used: usize,
}

struct Block {
    buffer: Arc<Buffer>,
    words: usize,
    taken: usize,
}

impl GpuPages {
    /// A store whose pages may take `cap` bytes.
    pub fn new(gpu: &Gpu, cap: Option<usize>) -> Arc<GpuPages> {
        Arc::new(GpuPages { gpu: gpu.clone(), cap, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The buffers as a kernel binds them, one at least. What was given back and taken again is zero by then.
    pub(crate) fn buffers(&self) -> Vec<Arc<Buffer>> {
        let mut state = self.lock();
        state.clear_stale(&self.gpu);
        if state.blocks.is_empty() {
            state.add_block(&self.gpu, FIRST_WORDS);
        }
        state.blocks.iter().map(|block| Arc::clone(&block.buffer)).collect()
    }

    fn most_words(&self) -> usize {
        (self.gpu.binding_bytes() / 4).min(MOST_WORDS)
    }
}

fn place(page: u32) -> (usize, usize) {
    ((page >> 30) as usize, (page & 0x3fff_ffff) as usize)
}

impl State {
    fn add_block(&mut self, gpu: &Gpu, words: usize) {
        let buffer = Arc::new(Buffer::new(gpu, "pages", 4 * words));
        self.blocks.push(Block { buffer, words, taken: 0 });
    }

    /// Words at the end of a block, which is begun or grown for them; `None` when there are no more.
    fn extend(&mut self, gpu: &Gpu, words: usize, most: usize) -> Option<u32> {
        if let Some(index) = self.blocks.iter().position(|block| block.taken + words <= block.words) {
            return Some(self.bump(index, words));
        }
        let last = self.blocks.len().checked_sub(1);
        if let Some(index) = last.filter(|&index| self.blocks[index].taken + words <= most) {
            let block = &mut self.blocks[index];
            let larger = (2 * block.words).max(block.taken + words).min(most);
            let buffer = Arc::new(Buffer::new(gpu, "pages", 4 * larger));
            let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(block.buffer.raw(), 0, buffer.raw(), 0, 4 * block.taken as u64);
            gpu.queue().submit([encoder.finish()]);
            (block.buffer, block.words) = (buffer, larger);
            return Some(self.bump(index, words));
        }
        if self.blocks.len() == BLOCKS || words > most {
            return None;
        }
        self.add_block(gpu, FIRST_WORDS.max(words).min(most));
        Some(self.bump(self.blocks.len() - 1, words))
    }

    fn bump(&mut self, index: usize, words: usize) -> u32 {
        let block = &mut self.blocks[index];
        let at = block.taken;
        block.taken += words;
        ((index as u32) << 30) | at as u32
    }

    fn clear_stale(&mut self, gpu: &Gpu) {
        if self.stale.is_empty() {
            return;
        }
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (page, words) in std::mem::take(&mut self.stale) {
            let (block, at) = place(page);
            encoder.clear_buffer(self.blocks[block].buffer.raw(), 4 * at as u64, Some(4 * words as u64));
        }
        gpu.queue().submit([encoder.finish()]);
    }
}

/// Words that a page of this many bytes takes.
fn words(len: usize) -> usize {
    len.div_ceil(4)
}

impl PageStore for GpuPages {
    fn name(&self) -> &str {
        self.gpu.name()
    }

    fn cap(&self) -> Option<usize> {
        self.cap
    }

    fn usage(&self) -> Usage {
        let state = self.lock();
        let reserved = state.blocks.iter().map(|block| 4 * block.words).sum();
        Usage { pages: state.pages, used: state.used, reserved, mapped: 0 }
    }

    fn take(&self, len: usize) -> Result<PageId, ArenaError> {
        let (mut state, words) = (self.lock(), words(len));
        let full = |cap, used| ArenaError::Full { asked: len, used, cap };
        if let Some(cap) = self.cap.filter(|cap| state.used + 4 * words > *cap) {
            return Err(full(cap, state.used));
        }
        let page = match state.free.get_mut(&words).and_then(Vec::pop) {
            Some(page) => {
                state.stale.push((page, words));
                page
            }
            None => {
                let (most, used) = (self.most_words(), state.used);
                state.extend(&self.gpu, words, most).ok_or(full(BLOCKS * 4 * most, used))?
            }
        };
        state.pages += 1;
        state.used += 4 * words;
        Ok(PageId(u64::from(page)))
    }

    fn give_back(&self, page: PageId, len: usize) {
        let (mut state, words) = (self.lock(), words(len));
        state.pages -= 1;
        state.used -= 4 * words;
        state.stale.retain(|(stale, _)| u64::from(*stale) != page.0);
        state.free.entry(words).or_default().push(page.0 as u32);
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        let mut state = self.lock();
        state.clear_stale(&self.gpu);
        let (block, at) = place(page.0 as u32);
        let size = bytes.len().next_multiple_of(4);
        let staging = Buffer::staging(&self.gpu, size);
        let mut encoder =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let from = state.blocks[block].buffer.raw();
        encoder.copy_buffer_to_buffer(from, 4 * at as u64, staging.raw(), 0, size as u64);
        self.gpu.queue().submit([encoder.finish()]);
        // A page of a device that is lost is lost: what is read then is zeros, and the next pass says why.
        if staging.read(&self.gpu, bytes).is_err() {
            bytes.fill(0);
        }
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        let mut state = self.lock();
        state.clear_stale(&self.gpu);
        let (block, at) = place(page.0 as u32);
        let words = crate::buffer::words_of(bytes);
        state.blocks[block].buffer.write(&self.gpu, 4 * at, &words);
    }

    fn copy(&self, from: PageId, to: PageId, len: usize) {
        let mut state = self.lock();
        state.clear_stale(&self.gpu);
        let ((from_block, from_at), (to_block, to_at)) = (place(from.0 as u32), place(to.0 as u32));
        let (from, to) = (&state.blocks[from_block].buffer, &state.blocks[to_block].buffer);
        let mut encoder =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let bytes = 4 * words(len) as u64;
        if from_block == to_block {
            // A buffer is not copied to itself in one command.
            let between = Buffer::new(&self.gpu, "copy", 4 * words(len));
            encoder.copy_buffer_to_buffer(from.raw(), 4 * from_at as u64, between.raw(), 0, bytes);
            encoder.copy_buffer_to_buffer(between.raw(), 0, to.raw(), 4 * to_at as u64, bytes);
        } else {
            encoder.copy_buffer_to_buffer(from.raw(), 4 * from_at as u64, to.raw(), 4 * to_at as u64, bytes);
        }
        self.gpu.queue().submit([encoder.finish()]);
    }
}
