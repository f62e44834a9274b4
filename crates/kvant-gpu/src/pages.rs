//! The page store of a device: pages in a few large buffers that kernels bind whole.
//!
//! A page is a run of words of one buffer, in the canonical layout: units of codes have the tokens, or the channels, of neighbouring
//! threads in neighbouring words, which is what a GPU wants too. Its number is the buffer's in the top five bits and that of its
//! first 16 bytes in the others, so that a table of pages for a kernel is a list of these numbers.
//!
//! A buffer grows by being copied into a larger one until a kernel could bind no more of it; then another is begun. Pages that are
//! given back wait, by size, for the next that wants as much. Pages that are to be zero, or copies of others, are made so together,
//! before anything reads or writes pages.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::page_text;
use crate::recorder::{BindGroups, Grid, Recorder};
use kvant_cache::{ArenaError, PageId, PageKind, PageStore, Usage};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Words of the first buffer.
const FIRST_WORDS: usize = 1 << 20;

/// The most words of a buffer: 27 bits of a page's number are for fours of words.
const MOST_WORDS: usize = 1 << 29;

/// Copies that wait at most.
const MOST_COPIES: usize = 1 << 20;

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
    /// Pages that are to be copies: from, to and words; and all that are copied to.
    copies: Vec<u32>,
    copied: HashSet<u32>,
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
        state.settle(&self.gpu);
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
    ((page >> 27) as usize, 4 * (page & 0x07ff_ffff) as usize)
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
        if self.blocks.len() == gpu.page_buffers() || words > most {
            return None;
        }
        self.add_block(gpu, FIRST_WORDS.max(words).min(most));
        Some(self.bump(self.blocks.len() - 1, words))
    }

    fn bump(&mut self, index: usize, words: usize) -> u32 {
        let block = &mut self.blocks[index];
        let at = block.taken;
        block.taken += words;
        ((index as u32) << 27) | (at / 4) as u32
    }

    /// Makes pages what they were last said to be.
    fn settle(&mut self, gpu: &Gpu) {
        self.clear_stale(gpu);
        self.copy_pages(gpu);
    }

    fn copy_pages(&mut self, gpu: &Gpu) {
        if self.copies.is_empty() {
            return;
        }
        let (blocks, records) = (self.blocks.len(), self.copies.len() / 3);
        let kernel = gpu.kernel_of("copy", format!("copy {blocks}"), || {
            include_str!("wgsl/copy.wgsl").to_owned() + &page_text::buffers(1, blocks, true)
        });
        let plan = Buffer::of_words(gpu, "copies", &self.copies);
        let mut binds = BindGroups::default();
        let mut recorder = Recorder::new(gpu, &mut binds);
        let mut bound = vec![&plan];
        bound.extend(self.blocks.iter().map(|block| &*block.buffer));
        recorder.dispatch(&kernel, &bound, &[records as u32], Grid::rows(records, 1));
        recorder.submit();
        self.copies.clear();
        self.copied.clear();
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
    4 * len.div_ceil(16)
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

    fn take(&self, _: PageKind, len: usize) -> Result<PageId, ArenaError> {
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
                state.extend(&self.gpu, words, most).ok_or(full(self.gpu.page_buffers() * 4 * most, used))?
            }
        };
        state.pages += 1;
        state.used += 4 * words;
        Ok(PageId(u64::from(page)))
    }

    fn give_back(&self, page: PageId, len: usize) {
        let (mut state, words) = (self.lock(), words(len));
        // A page that is given back may be another's soon.
        state.copy_pages(&self.gpu);
        state.pages -= 1;
        state.used -= 4 * words;
        state.stale.retain(|(stale, _)| u64::from(*stale) != page.0);
        state.free.entry(words).or_default().push(page.0 as u32);
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        let mut state = self.lock();
        state.settle(&self.gpu);
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
        state.settle(&self.gpu);
        let (block, at) = place(page.0 as u32);
        let words = crate::buffer::words_of(bytes);
        state.blocks[block].buffer.write(&self.gpu, 4 * at, &words);
    }

    fn copy(&self, from: PageId, to: PageId, len: usize) {
        let mut state = self.lock();
        let (from, to) = (from.0 as u32, to.0 as u32);
        // Copies that wait are made at the same time.
        if state.copied.contains(&from) || state.copies.len() >= 3 * MOST_COPIES {
            state.settle(&self.gpu);
        }
        state.copies.extend([from, to, words(len) as u32]);
        state.copied.insert(to);
    }
}
