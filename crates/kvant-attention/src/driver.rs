//! Sharing the work of one call over the threads.

use crate::block::Block;
use crate::kernel::Kernels;
use crate::partial::Partial;
use crate::plan::{Lookup, Plan, Sequences, Task};
use crate::scratch::Scratch;
use kvant_cache::{AttendError, KvSlot, Queries, Scoring, StateError};
use kvant_codec::{Tier, TierError};
use std::sync::{Mutex, PoisonError};

/// The driver. It keeps its buffers, so that a step allocates nothing once they have grown.
pub struct Attention {
    kernels: &'static Kernels,
    plan: Plan,
    /// Of blocks that several threads share: (kv heads, segments).
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
        Attention { kernels: Kernels::of(tier), plan: Plan::default(), partials: Vec::new() }
    }

    /// Another driver of the same instruction set, with buffers of its own.
    pub fn fresh(&self) -> Attention {
        Attention { kernels: self.kernels, plan: Plan::default(), partials: Vec::new() }
    }

    /// Attends with the queries, (rows, heads, key_dim), of the chunks that were last appended to the slot of each sequence
    /// and are not yet advanced over, one sequence after another; `out` is (rows, heads, value_dim). Heads come in equal
    /// groups, one group to a kv head.
    ///
    /// # Errors
    /// When sizes do not fit, nothing was appended, or a page that is needed is not held.
    pub fn attend<S: Sequences + ?Sized>(
        &mut self,
        sequences: &S,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let sequence: &Lookup<'_> = &|index| sequences.sequence(index);
        let call = self.plan.check(sequence, sequences.count(), slot, queries, scoring, out)?;
        self.plan.cut(&call);
        if self.partials.len() < self.plan.partials {
            self.partials.resize_with(self.plan.partials, Partial::default);
        }
        let Attention { kernels, plan, partials } = self;
        let (failure, out) = (Failure::default(), Shared(out.as_mut_ptr()));
        let shared = Shared(partials.as_mut_ptr());
        let run = |task: &Task<'_>, work: &dyn Fn(&Block<'_>, &mut Scratch) -> Result<(), AttendError>| {
            let mut scratch = Scratch::take();
            let done = Block::new(&call, task).and_then(|block| {
                scratch.begin(&block, kernels)?;
                work(&block, &mut scratch)
            });
            failure.note(task.block.part.sequence, done);
            scratch.keep();
        };
        let (heads, dim) = (call.heads, call.shape.value_dim);
        let finish = |block: &Block<'_>, scratch: &mut Scratch| {
            let rows = block.rows();
            scratch.finish(block, |head| {
                let (token, head) = (head / block.call.group, head % block.call.group);
                let at = ((rows.start + token) * heads + block.head * block.call.group + head) * dim;
                // SAFETY: the output was checked to have a row for every query head, and each belongs to one task.
                unsafe { std::slice::from_raw_parts_mut(out.at(at), dim) }
            })
        };
        kvant_threads::for_each(plan.tasks, |number| {
            let task = plan.task(number);
            run(&task, &|block, scratch| {
                for index in task.segments.clone() {
                    let segment = task.block.segments.start + index;
                    if task.is_whole() {
                        scratch.process_segment(block, segment, kernels)?;
                    } else {
                        // SAFETY: every kv head's segment of a block belongs to one task, and has a partial.
                        let partial = unsafe { &mut *shared.at(task.partial(index)) };
                        partial.reset(block.heads(), dim);
                        scratch.pages.segment(block, segment, kernels, partial)?;
                    }
                }
                if task.is_whole() { finish(block, scratch) } else { Ok(()) }
            });
        });
        if plan.merges > 0 && failure.is_none() {
            kvant_threads::for_each(plan.merges, |number| {
                let task = plan.merge(number);
                run(&task, &|block, scratch| {
                    for index in task.segments.clone() {
                        let Scratch { running, factors, .. } = scratch;
                        // SAFETY: every partial is of this call, and is only read now.
                        running.merge(unsafe { &*shared.at(task.partial(index)) }, factors, kernels);
                    }
                    finish(block, scratch)
                });
            });
        }
        failure.result()
    }
}

/// The error of the first sequence that has one.
#[derive(Default)]
struct Failure(Mutex<Option<StateError>>);

impl Failure {
    fn note(&self, sequence: usize, result: Result<(), AttendError>) {
        if let Err(error) = result {
            let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|first| sequence < first.sequence) {
                *first = Some(StateError::new(sequence, error));
            }
        }
    }

    fn is_none(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn result(self) -> Result<(), StateError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Elements of which every task has its own.
struct Shared<T>(*mut T);

// SAFETY: tasks reach disjoint elements only, or only read.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}
