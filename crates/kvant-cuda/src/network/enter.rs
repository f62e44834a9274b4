//! What a pass writes: pages taken from its sequences, and what its plan and the tables say of them.

use super::{CudaNetwork, Kept, device_error, missing};
use crate::cache::SlotPages;
use crate::jobs::{EncodeJobs, TakeError, add_jobs, take_pages};
use crate::pass::{Part, PassParams, PassPlan, SlotPlan, reading, slot_pages};
use crate::recurrent::StatePlan;
use kvant_cache::{KvSlot, Sequence, StateError, StateErrorKind, StateType};
use kvant_device::Span;
use kvant_threads::for_each_chunk;

/// Sequences from which on threads share them: one takes 60 µs for a token of 32 layers.
const SHARED: usize = 4;

/// The same of rows of all slots' tables.
const SHARED_ROWS: usize = 2048;

/// A sequence of a pass.
struct Entering<'a, 'b> {
    index: usize,
    span: &'a Span,
    sequence: &'a mut &'b mut Sequence,
    /// By slot: what it has to encode.
    jobs: Vec<EncodeJobs>,
    failed: Option<StateError>,
}

impl Entering<'_, '_> {
    /// Takes its pages in every slot.
    fn take(&mut self, slots: &[(KvSlot, &SlotPages)], strict: bool) -> Result<(), StateError> {
        let index = self.index;
        for (slot, pages) in slots {
            let mut jobs = EncodeJobs::default();
            let taken = take_pages(*slot, pages, self.sequence, self.span.tokens, strict, &mut jobs);
            taken.map_err(|error| match error {
                TakeError::Cache(error) => StateError::new(index, error),
                TakeError::Device(what) => StateError::new(index, StateErrorKind::Device(what)),
            })?;
            self.jobs.push(jobs);
        }
        Ok(())
    }
}

/// Calls `work` with every item, by threads where there is much of it.
fn each<T: Send>(items: &mut [T], much: bool, work: impl Fn(&mut T) + Sync) {
    if much {
        for_each_chunk(items, 1, |_, own| own.iter_mut().for_each(&work))
    } else {
        items.iter_mut().for_each(work)
    }
}

impl CudaNetwork {
    /// Takes the pages of the pass in every slot, and enters them into tables.
    pub(super) fn enter_pages(
        &self,
        words: &mut PassParams,
        plan: &mut PassPlan,
        kept: &mut Kept,
        spans: &[Span],
        sequences: &mut [&mut Sequence],
    ) -> Result<StatePlan, StateError> {
        let (rule, strict) = (reading(kept.layout.exact_window()), kept.pages.strict);
        // Views read what the slot's own layer appends.
        let is_own = |of: &crate::program::Reading| self.slots.owner(of.slot) == of.slot;
        let own = self.program.readings().filter(is_own).map(|of| of.slot);
        let pages = |slot| slot_pages(&kept.pages, slot).map(|of| (slot, of)).ok_or_else(|| missing(slot));
        let slots = own.map(pages).collect::<Result<Vec<_>, _>>()?;
        let all = spans.iter().zip(&mut *sequences).enumerate();
        let mut entering: Vec<Entering<'_, '_>> = all
            .map(|(index, (span, sequence))| {
                let jobs = Vec::with_capacity(slots.len());
                Entering { index, span, sequence, jobs, failed: None }
            })
            .collect();
        each(&mut entering, spans.len() >= SHARED, |own| own.failed = own.take(&slots, strict).err());
        entering.iter_mut().try_for_each(|own| own.failed.take().map_or(Ok(()), Err))?;
        // Rows of the tables of exact pages, by slot and sequence.
        let (stride, count) = (plan.exact_stride, entering.len());
        let mut exact: Vec<(usize, Result<Vec<u32>, String>)> =
            (0..slots.len() * count).map(|place| (place, Ok(Vec::new()))).collect();
        each(&mut exact, plan.rows * slots.len() >= SHARED_ROWS, |(place, rows)| {
            let ((slot, pages), Entering { span, sequence, .. }) =
                (&slots[*place / count], &entering[*place % count]);
            let part = Part { slot: *slot, pages, rule: &rule, span, sequence };
            let mut table = Vec::new();
            *rows = part.exact_table(stride, &mut table).map(|()| table);
        });
        let mut exact = exact.into_iter().map(|(_, rows)| rows);
        let mut jobs: Vec<EncodeJobs> = Vec::with_capacity(slots.len());
        for (place, (slot, pages)) in slots.iter().enumerate() {
            let exact_at = words.begin();
            let mut all = EncodeJobs::default();
            for Entering { index, span, sequence, jobs, .. } in &mut entering {
                let on_device = |what| StateError::new(*index, StateErrorKind::Device(what));
                let rows = exact.next().unwrap_or_else(|| Ok(Vec::new())).map_err(on_device)?;
                words.0.extend_from_slice(&rows);
                all.0.iter_mut().zip(&mut jobs[place].0).for_each(|(all, own)| all.append(own));
                let closed = pages.units.both(&rule, span.last());
                kept.tables.enter(span.seat, *slot, pages, sequence, closed).map_err(on_device)?;
            }
            plan.slots.insert(slot.index(), SlotPlan { exact_at, ..SlotPlan::default() });
            jobs.push(all);
        }
        drop(entering);
        let some = slots.iter().zip(&jobs).filter(|(_, own)| !own.0.iter().all(Vec::is_empty));
        for ((slot, pages), own) in some {
            let jobs = add_jobs(words, pages, own).map_err(device_error)?;
            if let Some(plan) = plan.slots.get_mut(&slot.index()) {
                plan.jobs = jobs;
                if strict {
                    plan.tokens_at = words.add(own.0[0].iter().map(|job| job.tokens as u32));
                }
            }
        }
        let states = StatePlan::new(words, self.program.states(), spans, sequences)?;
        if states.state_type != StateType::F32
            && let Some(why) = self.program.refuses_narrow_state()
        {
            return Err(device_error(why));
        }
        let written = jobs.iter().flat_map(EncodeJobs::pages).chain(states.written.iter().copied());
        self.pages.prepare(written).map_err(device_error)?;
        Ok(states)
    }

    /// What some models read besides ids: those of inputs of all layers, and positions.
    pub(super) fn extra_words(
        &self,
        words: &mut PassParams,
        ids: impl Iterator<Item = u32>,
        spans: &[Span],
    ) -> (u64, u64) {
        let layer_ids = self
            .program
            .layer_inputs
            .as_ref()
            .map_or(0, |inputs| words.add(ids.map(|id| if (id as usize) < inputs.ids { id } else { 0 })));
        let positions = spans.iter().flat_map(Span::positions).map(|position| position as u32);
        let positions = self.program.positions.as_ref().map_or(0, |_| words.add(positions));
        (layer_ids, positions)
    }
}
