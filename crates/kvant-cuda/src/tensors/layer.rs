//! A layer's pass: pages taken and entered into tables, then the kernels on the library's stream.

use super::{CardCache, CardPass, PassError, PlanKey, TensorNumber, Work};
use crate::attend::{Attend, encode};
use crate::buffer::{Pinned, upload};
use crate::cache::LayoutPages;
use crate::device::Launch;
use crate::jobs::{EncodeJobs, TakeError, add_jobs, take_pages};
use crate::layout::PAGE_TOKENS;
use crate::params::{FromTensorsParams, TILE_ROWS, TensorParams, ToTensorParams, many_columns};
use crate::pass::{Kinds, Part, PassParams, PassPlan, slot_pages};
use crate::recorder::Recorder;
use crate::run::fit;
use crate::tables::PageTables;
use crate::units::Units;
use cudarc::driver::sys;
use kvant_cache::{CacheError, CacheLayout, KvSlot, Sequence};
use kvant_device::Span;
use std::sync::{Arc, PoisonError};

/// Tokens of a sequence that are appended before they attend and are settled: a long prompt's exact rows are held for so many at a time.
const CHUNK: usize = 1024;

/// One layer: the tables of its pages. The sequences of a batch are with whoever calls.
pub struct CardLayer {
    pub(super) cache: Arc<CardCache>,
    pub(super) layout: Arc<CacheLayout>,
    pub(super) slot: KvSlot,
    pub(super) window: Option<usize>,
    pub(super) pages: LayoutPages,
    pub(super) tables: PageTables,
    /// Set by kernels where numbers cannot be stored: by append, by encode.
    pub(super) marks: Pinned,
}

impl CardLayer {
    /// Puts a pass on the stream. Where it ends a pass (`settles`), long chunks are appended, attended to and settled piece by piece, and the last
    /// piece is left to be settled by whoever advances the sequences; else all stays exact until then, for queries that come later.
    ///
    /// # Errors
    /// See [`PassError`].
    ///
    /// # Safety
    /// The tensors lie on the card, have the batch, heads and channels of the layer and the tokens that are named, are in the format that is
    /// said, and stay as they are until the stream has come that far. The stream is of the card's primary context.
    pub unsafe fn pass(
        &mut self,
        sequences: &mut [Sequence],
        pass: &CardPass<'_>,
        settles: bool,
    ) -> Result<(), PassError> {
        let cache = Arc::clone(&self.cache);
        let mut work = cache.work.lock().unwrap_or_else(PoisonError::into_inner);
        let _context = CurrentContext::keep();
        // SAFETY: the caller's contract.
        unsafe { cache.card.move_to(std::ptr::with_exposed_provenance_mut(pass.stream as usize))? };
        self.check_marks()?;
        let longest = pass.tokens.iter().map(Vec::len).max().unwrap_or(0);
        let chunk = if settles && pass.append.is_some() { CHUNK } else { longest.max(1) };
        // What a pass of several pieces changes is not taken back by abandoning the last.
        let mut before = None;
        if longest > chunk {
            let forks: Result<Vec<Sequence>, _> = sequences.iter().map(Sequence::fork).collect();
            before = Some(forks?);
        }
        for start in (0..longest).step_by(chunk) {
            let piece = |tokens: &Vec<usize>| {
                let end = (start + chunk).min(tokens.len());
                tokens.get(start..end).unwrap_or_default().to_vec()
            };
            let tokens: Vec<Vec<usize>> = pass.tokens.iter().map(piece).collect();
            let is_last = start + chunk >= longest;
            let piece = CardPass { tokens: &tokens, ..*pass };
            let done = self.piece(&mut work, sequences, &piece).and_then(|()| match is_last {
                true => Ok(()),
                false => settle(sequences, self.slot).map_err(PassError::Cache),
            });
            if let Err(error) = done {
                match before {
                    Some(forks) => sequences.iter_mut().zip(forks).for_each(|(own, fork)| *own = fork),
                    None if pass.append.is_some() => {
                        for sequence in &mut *sequences {
                            sequence.abandon()?;
                        }
                    }
                    None => {}
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// What kernels have said since the last time.
    fn check_marks(&self) -> Result<(), PassError> {
        match self.marks.words::<2>().iter().all(|mark| *mark == 0) {
            true => Ok(()),
            false => Err(PassError::Refused { layer: self.layout.slots()[self.slot.index()].layer() }),
        }
    }

    fn piece(
        &mut self,
        work: &mut Work,
        sequences: &mut [Sequence],
        pass: &CardPass<'_>,
    ) -> Result<(), PassError> {
        let CardLayer { cache, layout, slot, window, pages, tables, marks } = self;
        let (slot, rule, card) = (*slot, layout.exact_window(), &cache.card);
        let kinds = Kinds { tiles: pages.tiles, wide_tiles: pages.wide_tiles, units: Units::PAGES };
        let device = |what: String| PassError::Device(what);
        let of = slot_pages(pages, slot).ok_or_else(|| device("a slot without pages".to_owned()))?;
        let (mut spans, mut places, mut row) = (Vec::new(), Vec::new(), 0);
        for (batch, (sequence, tokens)) in sequences.iter_mut().zip(pass.tokens).enumerate() {
            if !tokens.is_empty() {
                let span = Span { start: sequence.len(), tokens: tokens.len(), row, ..Span::default() };
                spans.push((batch, span));
                places.extend(tokens.iter().map(|token| [batch as u32, *token as u32]));
                row += tokens.len();
            }
        }
        let rows = row;
        if rows == 0 {
            return Ok(());
        }
        let mut jobs = EncodeJobs::default();
        if pass.append.is_some() {
            for (batch, span) in &spans {
                let taken = take_pages(slot, of, &mut sequences[*batch], span.tokens, false, &mut jobs);
                taken.map_err(|error| match error {
                    TakeError::Cache(error) => PassError::Cache(error),
                    TakeError::Device(what) => PassError::Device(what),
                })?;
            }
        }
        let lineages: Vec<u64> = spans.iter().map(|(batch, _)| sequences[*batch].lineage()).collect();
        let seats = tables.seats(&lineages);
        spans.iter_mut().zip(seats).for_each(|((_, span), seat)| span.seat = seat);
        let only: Vec<Span> = spans.iter().map(|(_, span)| *span).collect();
        let mut words = PassParams::default();
        let places_at = words.add(places.iter().flatten().copied());
        let plan = PassPlan::new(&mut words, rule, &only, std::iter::empty(), &[], kinds);
        let mut table = Vec::new();
        for (batch, span) in &spans {
            let sequence = &sequences[*batch];
            let part = Part { slot, pages: of, rule, span, sequence };
            part.exact_table(plan.exact_stride, &mut table).map_err(device)?;
            let closed = rule.encoded_for(span.last(), PAGE_TOKENS);
            tables.enter(span.seat, slot, of, sequence, closed).map_err(device)?;
        }
        let exact_at = words.add(table);
        cache.pages.prepare(jobs.pages()).map_err(device)?;
        let jobs = add_jobs(&mut words, of, &jobs).map_err(device)?;
        for (at, bytes) in tables.changes(card)? {
            // SAFETY: tables have room for their changes.
            unsafe { upload(card, at, &bytes)? };
        }
        let words = words.as_bytes();
        fit(card, &mut work.words, words.len())?;
        work.words.upload(0, words)?;

        let heads = pass.attend.map_or(0, |attend| attend.heads);
        let kv_heads = if pass.append.is_some() { of.kv_heads } else { 0 };
        fit(card, &mut work.queries, 2 * rows * heads * of.dim)?;
        let at = |offset: u64| work.words.address() + offset;
        let nowhere = TensorParams::default();
        let mut recorder = Recorder::new(card);
        let launch = |grid: (usize, usize), early| Launch {
            grid: (grid.0 as u32, grid.1 as u32),
            threads: of.dim as u32,
            shared: 0,
            early,
        };
        let params = FromTensorsParams {
            q: pass.attend.map_or(nowhere, |attend| attend.queries.params()),
            k: pass.append.map_or(nowhere, |[keys, _]| keys.params()),
            v: pass.append.map_or(nowhere, |[_, values]| values.params()),
            places: at(places_at),
            queries: work.queries.address(),
            pages: cache.pages.base(),
            exact: at(exact_at),
            targets: at(plan.targets_at),
            refused: marks.address(),
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            exact_stride: plan.exact_stride as i32,
        };
        // The library's own kernels are before this one: it waits for them to end.
        let name = format!("from_tensors_d{}", of.dim);
        recorder.launch(&name, launch((rows, heads + 2 * kv_heads), false), params);
        encode(&mut recorder, of, &jobs, at(0), (cache.pages.base(), marks.address() + 4));
        if let Some(attend) = &pass.attend {
            let group = heads / of.kv_heads;
            let tile = if plan.tiles { (many_columns(of.dim) / group).max(1) } else { 1 };
            let wide_tile = if plan.wide_tiles { TILE_ROWS / group } else { 0 };
            let positions = only.iter().flat_map(Span::positions).collect();
            let by_row = only.iter().flat_map(|span| std::iter::repeat_n(span.seat, span.tokens)).collect();
            let key = PlanKey { positions, seats: by_row, window: *window, tile, wide_tile };
            work.plan(card, rule, key)?;
            let Work { words, queries, out, part_o, part_ml, plans } = work;
            let Some(kept) = plans.last() else { return Err(device("no plan".to_owned())) };
            let partials = kept.slices.iter().map(|slice| slice.slots).max().unwrap_or(0) * heads;
            // Rows that lie in the tensor as they do here are written there.
            let straight = attend.out.rows_at(heads * of.dim, of.dim, &places);
            fit(card, out, if straight.is_some() { 0 } else { 2 * rows * heads * of.dim })?;
            fit(card, part_o, 4 * partials * of.dim)?;
            fit(card, part_ml, 8 * partials)?;
            let early = plan.is_step;
            let of_layer = Attend {
                slot: of,
                heads,
                scale: attend.scale,
                soft_cap: attend.soft_cap,
                sink_logits: attend.sink_logits,
                pages: cache.pages.base(),
                table: tables.table(slot.index()),
                exact: (words.address() + exact_at, plan.exact_stride),
                plan: kept.words.address(),
                queries: queries.address(),
                out: straight.unwrap_or(out.address()),
                bf16: straight.is_some() && attend.out.number == TensorNumber::Bf16,
                part_o: part_o.address(),
                part_ml: part_ml.address(),
                turned: (0, 0), // keys of a plan are refused
                tiles: plan.tiles,
                early,
            };
            kept.slices.iter().for_each(|slice| of_layer.slice(&mut recorder, slice));
            let params = ToTensorParams {
                x: out.address(),
                y: attend.out.params(),
                places: words.address() + places_at,
                heads: heads as i32,
            };
            if straight.is_none() {
                recorder.launch("to_tensor", launch((rows, heads), early), params);
            }
        }
        // SAFETY: every launch has the struct of its kernel, over buffers that have just been given their sizes and tensors of the caller's.
        unsafe { recorder.submit(None) }?;
        Ok(())
    }
}

impl Drop for CardLayer {
    fn drop(&mut self) {
        // Kernels on their way may still mark what they refuse.
        let _ = self.cache.card.synchronize();
    }
}

/// Ends the pass of every sequence.
fn settle(sequences: &mut [Sequence], slot: KvSlot) -> Result<(), CacheError> {
    sequences.iter_mut().try_for_each(|sequence| {
        let tokens = sequence.slot_len(slot) - sequence.len();
        sequence.advance(tokens)
    })
}

/// The context that is current on this thread, which is made current again: the library may be at work on another card.
struct CurrentContext(sys::CUcontext);

impl CurrentContext {
    fn keep() -> CurrentContext {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle of ours. Where the call fails there is nothing to go back to.
        let _ = unsafe { sys::cuCtxGetCurrent(&mut context) };
        CurrentContext(context)
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it was current before, and contexts of a library outlive its calls.
            let _ = unsafe { sys::cuCtxSetCurrent(self.0) };
        }
    }
}
