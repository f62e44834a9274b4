//! Sharing the work of one call over the threads.

use crate::block::Block;
use crate::call::{Call, Scoring};
use crate::error::AttendError;
use crate::kernel::Kernels;
use crate::partial::Partial;
use crate::scratch::Scratch;
use kvant_cache::Sequence;
use kvant_codec::{Tier, TierError};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Tasks per thread that are aimed at: enough to even out, few enough that preparing queries is done seldom.
const TASKS_PER_THREAD: usize = 3;

/// The driver. It keeps its buffers, so that a step allocates nothing once they have grown.
pub struct Attention {
    kernels: &'static Kernels,
    blocks: Vec<Range<usize>>,
    /// (blocks, kv heads, block's query heads, value_dim).
    gathered: Vec<f32>,
    /// (blocks, kv heads, segments).
    partials: Vec<Partial>,
}

impl Attention {
    /// With the best instruction set of this machine.
    ///
    /// # Errors
    /// When a forced instruction set cannot run here.
    pub fn new() -> Result<Attention, TierError> {
        Ok(Attention::with_tier(Tier::select()?))
    }

    /// With a given instruction set.
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn with_tier(tier: Tier) -> Attention {
        let kernels = Kernels::of(tier);
        Attention { kernels, blocks: Vec::new(), gathered: Vec::new(), partials: Vec::new() }
    }

    /// Attends with the queries, (tokens, heads, key_dim), of the chunk that was last appended to the entry and is not
    /// yet advanced over; `out` is (tokens, heads, value_dim). Heads come in equal groups, one group to a kv head.
    ///
    /// # Errors
    /// When sizes do not fit, or a page that is needed is not held.
    pub fn attend(
        &mut self,
        sequence: &Sequence,
        entry: usize,
        queries: &[f32],
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), AttendError> {
        let call = Call::new(sequence, entry, queries, scoring, out)?;
        call.blocks(&mut self.blocks);
        let kv_heads = call.shape.kv_heads;
        let items = self.blocks.len() * kv_heads;
        let longest = self.blocks.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let width = longest * call.group * call.shape.value_dim;
        self.gathered.resize(items * width, 0.0);
        let segments = self.blocks.iter().map(|block| call.segments(block).len()).max().unwrap_or(0);
        let threads = kvant_threads::threads();
        let wanted = if threads > 1 { TASKS_PER_THREAD * threads } else { 1 };
        // Runs of segments that one item is cut into.
        let runs = wanted.div_ceil(items.max(1)).min(segments.max(1));
        let failure = Failure::default();
        if runs > 1 {
            self.share_segments(&call, segments, segments.div_ceil(runs), &failure);
        }
        let Attention { kernels, blocks, gathered, partials } = self;
        kvant_threads::for_each_chunk(gathered, width.max(1), |item, out| {
            let mut scratch = Scratch::take();
            failure.note((|| {
                let tokens = blocks[item / kv_heads].clone();
                let block = Block::new(&call, item % kv_heads, tokens.clone())?;
                scratch.begin(&block, kernels)?;
                let own = call.segments(&tokens);
                if runs > 1 {
                    let Scratch { running, factors, .. } = &mut *scratch;
                    for partial in &partials[item * segments..][..own.len()] {
                        running.join(partial, factors, kernels);
                    }
                } else {
                    for segment in own {
                        scratch.take_in(&block, segment, kernels)?;
                    }
                }
                scratch.finish(&block, out)
            })());
            scratch.keep();
        });
        failure.result()?;
        self.scatter(&call, width, out);
        Ok(())
    }

    /// Sums up every segment on its own, runs of them side by side.
    fn share_segments(&mut self, call: &Call<'_>, segments: usize, run: usize, failure: &Failure) {
        let kv_heads = call.shape.kv_heads;
        let items = self.blocks.len() * kv_heads;
        if self.partials.len() < items * segments {
            self.partials.resize_with(items * segments, Partial::default);
        }
        let Attention { kernels, blocks, partials, .. } = self;
        let runs = segments.div_ceil(run);
        let shared = Shared(partials.as_mut_ptr());
        kvant_threads::for_each(items * runs, |task| {
            let (item, first) = (task / runs, task % runs * run);
            let mut scratch = Scratch::take();
            failure.note((|| {
                let tokens = blocks[item / kv_heads].clone();
                let own = call.segments(&tokens);
                let block = Block::new(call, item % kv_heads, tokens)?;
                scratch.begin(&block, kernels)?;
                for index in first..(first + run).min(own.len()) {
                    // SAFETY: every (item, segment) belongs to one task, and there are items · segments partials.
                    let partial = unsafe { &mut *shared.at(item * segments + index) };
                    partial.reset(block.heads(), call.shape.value_dim);
                    scratch.pages.segment(&block, own.start + index, kernels, partial)?;
                }
                Ok(())
            })());
            scratch.keep();
        });
    }

    /// From the order of tasks to that of the output.
    fn scatter(&self, call: &Call<'_>, width: usize, out: &mut [f32]) {
        let kv_heads = call.shape.kv_heads;
        let group = call.group * call.shape.value_dim;
        for (item, rows) in self.gathered.chunks_exact(width.max(1)).enumerate() {
            let tokens = self.blocks[item / kv_heads].clone();
            for (token, row) in tokens.zip(rows.chunks_exact(group)) {
                let at = token * call.heads * call.shape.value_dim + item % kv_heads * group;
                out[at..at + group].copy_from_slice(row);
            }
        }
    }
}

/// The first error of any task.
#[derive(Default)]
struct Failure(Mutex<Option<AttendError>>);

impl Failure {
    fn note(&self, result: Result<(), AttendError>) {
        if let Err(error) = result {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn result(self) -> Result<(), AttendError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Partials of which every task has its own.
struct Shared(*mut Partial);

// SAFETY: tasks reach disjoint elements only.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, index: usize) -> *mut Partial {
        self.0.wrapping_add(index)
    }
}
