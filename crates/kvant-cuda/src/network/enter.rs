//! What a pass writes: pages taken from its sequences, and what its plan and the tables say of them.

use super::{CudaNetwork, Kept, device_error, missing};
use crate::cache::SlotPages;
use crate::jobs::{EncodeJobs, TakeError, add_jobs, take_pages};
use crate::pass::{Part, PassParams, PassPlan, SlotPlan, closed_pages, reading, slot_pages};
use crate::recurrent::StatePlan;
use kvant_cache::{ExactWindow, KvSlot, Sequence, StateError, StateErrorKind, StateType};
use kvant_device::Span;
use kvant_threads::for_each_chunk;

/// Sequences from which on threads share them: one takes 60 µs for a token of 32 layers.
const SHARED: usize = 4;

/// A sequence of a pass.
struct Entering<'a, 'b> {
    index: usize,
    span: &'a Span,
    sequence: &'a mut &'b mut Sequence,
    /// By slot: what it has to encode, and its rows of the table of exact pages.
    slots: Vec<(EncodeJobs, Vec<u32>)>,
    failed: Option<StateError>,
}

impl Entering<'_, '_> {
    /// Takes its pages in every slot.
    fn take(&mut self, slots: &[(KvSlot, &SlotPages)], of: &Exact<'_>) -> Result<(), StateError> {
        let index = self.index;
        let on_device = |what| StateError::new(index, StateErrorKind::Device(what));
        for (slot, pages) in slots {
            let (mut jobs, mut exact) = <(EncodeJobs, Vec<u32>)>::default();
            let taken = take_pages(*slot, pages, self.sequence, self.span.tokens, of.strict, &mut jobs);
            taken.map_err(|error| match error {
                TakeError::Cache(error) => StateError::new(index, error),
                TakeError::Device(what) => on_device(what),
            })?;
            let part = Part { slot: *slot, pages, rule: of.rule, span: self.span, sequence: self.sequence };
            part.exact_table(of.stride, &mut exact).map_err(on_device)?;
            self.slots.push((jobs, exact));
        }
        Ok(())
    }
}

/// What the exact pages of all sequences have in common.
struct Exact<'a> {
    rule: &'a ExactWindow,
    strict: bool,
    /// Of the tables of exact pages.
    stride: usize,
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
        let exact = Exact { rule: &rule, strict, stride: plan.exact_stride };
        let all = spans.iter().zip(&mut *sequences).enumerate();
        let mut entering: Vec<Entering<'_, '_>> = all
            .map(|(index, (span, sequence))| {
                let slots = Vec::with_capacity(slots.len());
                Entering { index, span, sequence, slots, failed: None }
            })
            .collect();
        if entering.len() < SHARED {
            entering.iter_mut().try_for_each(|own| own.take(&slots, &exact))?;
        } else {
            for_each_chunk(&mut entering, 1, |_, own| {
                own.iter_mut().for_each(|own| own.failed = own.take(&slots, &exact).err());
            });
            entering.iter_mut().try_for_each(|own| own.failed.take().map_or(Ok(()), Err))?;
        }
        let mut jobs: Vec<EncodeJobs> = Vec::with_capacity(slots.len());
        for (place, (slot, pages)) in slots.iter().enumerate() {
            let exact_at = words.begin();
            let mut all = EncodeJobs::default();
            for Entering { index, span, sequence, slots, .. } in &mut entering {
                let (jobs, exact) = &mut slots[place];
                words.0.extend_from_slice(exact);
                all.0.iter_mut().zip(&mut jobs.0).for_each(|(all, own)| all.append(own));
                let closed = closed_pages(&rule, span.last(), pages.halves);
                let entered = kept.tables.enter(span.seat, *slot, pages, sequence, closed);
                entered.map_err(|what| StateError::new(*index, StateErrorKind::Device(what)))?;
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
