//! The compiled model, and a pass through it.

use crate::buffer::{Pinned, download};
use crate::cache::LayoutPages;
use crate::device::{Card, OpenError};
use crate::pages::CudaPages;
use crate::pass::{
    Part, PassPlan, SLICE, SlotPlan, Span, TakeError, Words, add_jobs, slot_pages, take_pages,
};
use crate::program::Program;
use crate::recorder::{Graphs, Recorder};
use crate::run::{PassBuffers, Run, fit};
use crate::seats::Seats;
use half::f16;
use kvant_cache::{
    CacheError, CacheLayout, KvSlot, PageStore, PassState, Sequence, Slots, StateError, StateErrorKind, Store,
};
use kvant_model::description::Rope;
use kvant_model::{Chunk, Network, Observer, Rows};
use std::sync::{Arc, Mutex, PoisonError};

/// A model on a card. All its passes go one after another.
pub struct CudaNetwork {
    card: Arc<Card>,
    pages: Arc<CudaPages>,
    program: Program,
    ropes: Vec<Rope>,
    slots: Slots,
    options: PassOptions,
    work: Mutex<Work>,
}

/// How the kernels of a pass are put on the card. Bits do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassOptions {
    /// Whether the kernels of a decode step may begin before those before them have ended (programmatic dependent launch).
    pub early: bool,
    /// Whether decode steps that are alike are run as a CUDA graph.
    pub graphs: bool,
}

impl Default for PassOptions {
    fn default() -> PassOptions {
        PassOptions { early: true, graphs: true }
    }
}

/// [`Sequence::lineage`] of the sequences of a pass.
type Lineages = Vec<u64>;

/// What passes use again.
struct Work {
    buffers: Option<PassBuffers>,
    cache: Option<Kept>,
    graphs: Graphs,
    out: Option<Pinned>,
    launches: usize,
}

/// What was made for a layout of caches.
struct Kept {
    layout: Arc<CacheLayout>,
    pages: LayoutPages,
    seats: Seats,
}

fn device_error(what: impl std::fmt::Display) -> StateError {
    StateError::new(0, StateErrorKind::Device(what.to_string()))
}

fn missing(slot: KvSlot) -> StateError {
    let (found, wanted) = ("nothing", "keys and values");
    StateError::new(0, StateErrorKind::Slot { slot: slot.index(), found, wanted })
}

impl CudaNetwork {
    pub(crate) fn new(
        card: &Arc<Card>,
        pages: &Arc<CudaPages>,
        program: Program,
        ropes: Vec<Rope>,
        slots: Slots,
        options: PassOptions,
    ) -> CudaNetwork {
        let graphs = Graphs::new(card);
        let work = Work { buffers: None, cache: None, graphs, out: None, launches: 0 };
        CudaNetwork {
            card: Arc::clone(card),
            pages: Arc::clone(pages),
            program,
            ropes,
            slots,
            options,
            work: Mutex::new(work),
        }
    }

    /// Bytes of its matrices on the card.
    pub fn weight_bytes(&self) -> usize {
        self.program.weight_bytes()
    }

    /// Launches of the last pass.
    pub fn launches(&self) -> usize {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).launches
    }

    fn check_store(&self, index: usize, sequence: &Sequence) -> Result<(), StateError> {
        let own: &dyn PageStore = &*self.pages;
        let is_own = match sequence.store() {
            Store::Device(store) => std::ptr::addr_eq(Arc::as_ptr(store), std::ptr::from_ref(own)),
            Store::Host(_) => false,
        };
        match is_own {
            true => Ok(()),
            false => Err(StateError::new(index, CacheError::NotDevice)),
        }
    }

    /// The sequences of a pass, and the layout they share.
    fn spans(
        &self,
        state: &mut dyn PassState,
    ) -> Result<(Vec<Span>, Lineages, Arc<CacheLayout>), StateError> {
        let passes = state.sequences().to_vec();
        let (mut spans, mut lineages, mut layout) = (Vec::new(), Vec::new(), None::<Arc<CacheLayout>>);
        let mut row = 0;
        for (index, pass) in passes.iter().enumerate() {
            let Some(sequence) = state.sequence_mut(index) else {
                return Err(StateError::new(index, CacheError::NotDevice));
            };
            self.check_store(index, sequence)?;
            let own = sequence.layout();
            if layout.as_ref().is_some_and(|layout| !Arc::ptr_eq(layout, own)) {
                let what = "the sequences of a pass have caches of their own making: fork them from one";
                return Err(StateError::new(index, StateErrorKind::Pass { what }));
            }
            layout = Some(Arc::clone(own));
            lineages.push(sequence.lineage());
            spans.push(Span { start: pass.start, tokens: pass.tokens, row, capacity: pass.capacity });
            row += pass.tokens;
        }
        let nobody = StateErrorKind::Pass { what: "a pass of no sequences" };
        Ok((spans, lineages, layout.ok_or_else(|| StateError::new(0, nobody))?))
    }

    /// Takes the pages of the pass in every slot, and enters them into tables.
    fn enter_pages(
        &self,
        words: &mut Words,
        plan: &mut PassPlan,
        kept: &mut Kept,
        (spans, seats): (&[Span], &[usize]),
        state: &mut dyn PassState,
    ) -> Result<(), StateError> {
        let rule = *kept.layout.rule();
        let mut jobs = Vec::new(); // by slot
        for of in self.program.attentions() {
            let slot = self.slots.owner(of.slot);
            let pages = slot_pages(&kept.pages, slot).ok_or_else(|| missing(slot))?;
            let mut own = Vec::new();
            for (index, span) in spans.iter().enumerate() {
                let sequence = state.sequence_mut(index).ok_or_else(|| missing(slot))?;
                take_pages(slot, pages, sequence, span.tokens, &mut own).map_err(|error| match error {
                    TakeError::Cache(error) => StateError::new(index, error),
                    TakeError::Device(what) => StateError::new(index, StateErrorKind::Device(what)),
                })?;
            }
            jobs.push((slot, own));
        }
        let mut book = self.pages.book();
        for (slot, _) in &jobs {
            let pages = slot_pages(&kept.pages, *slot).ok_or_else(|| missing(*slot))?;
            let mut table = Vec::new();
            for (index, (span, seat)) in spans.iter().zip(seats).enumerate() {
                let sequence = state.sequence_mut(index).ok_or_else(|| missing(*slot))?;
                let closed = rule.encoded_for(span.last(), crate::layout::PAGE_TOKENS);
                let part = Part { slot: *slot, pages, rule: &rule, span, sequence };
                let known = kept.seats.exact(*seat, *slot);
                part.exact_table(plan.exact_stride, known, &mut book, &mut table)
                    .and_then(|()| kept.seats.enter(*seat, *slot, pages, sequence, closed, &mut book))
                    .map_err(|what| StateError::new(index, StateErrorKind::Device(what)))?;
            }
            let exact_at = words.add(table);
            plan.slots.insert(slot.index(), SlotPlan { exact_at, ..SlotPlan::default() });
        }
        for (slot, own) in jobs.iter().filter(|(_, own)| !own.is_empty()) {
            let pages = slot_pages(&kept.pages, *slot).ok_or_else(|| missing(*slot))?;
            let jobs_at = add_jobs(words, pages, own, &mut book).map_err(device_error)?;
            if let Some(plan) = plan.slots.get_mut(&slot.index()) {
                (plan.jobs_at, plan.jobs) = (jobs_at, own.len());
            }
        }
        book.close().map_err(device_error)
    }

    /// Keys of a plan have no kernels with soft caps.
    fn check_caps(&self, pages: &LayoutPages) -> Result<(), StateError> {
        let capped = |of: &&crate::program::Attention| {
            let slot = slot_pages(pages, self.slots.owner(of.slot));
            of.soft_cap.is_some() && slot.is_some_and(|slot| slot.planned.is_some())
        };
        match self.program.attentions().find(capped) {
            Some(_) => Err(device_error("klt keys under a soft cap do not run on the card")),
            None => Ok(()),
        }
    }

    /// Sees to it that buffers have room for a pass.
    fn fit(&self, buffers: &mut Option<PassBuffers>, plan: &PassPlan, words: usize) -> Result<(), OpenError> {
        let card = &self.card;
        if buffers.as_ref().is_none_or(|buffers| buffers.rows < plan.rows) {
            *buffers = None; // before the larger ones are taken
            let rows = plan.rows.next_power_of_two();
            *buffers = Some(PassBuffers::new(card, &self.program.widths, self.slots.len(), rows)?);
        }
        let Some(buffers) = buffers else { return Ok(()) };
        fit(card, &mut buffers.plan, words)?;
        for of in self.program.attentions() {
            let slices = plan.slices.get(&plan.tiling(of)).into_iter().flatten();
            let partials = slices.map(|slice| slice.slots).max().unwrap_or(0) * of.heads;
            fit(card, &mut buffers.part_o, 4 * partials * of.dim)?;
            fit(card, &mut buffers.part_ml, 8 * partials)?;
        }
        Ok(())
    }

    /// What could not be stored, by slot: the layer.
    fn refused(&self, marks: &[u8], kept: &Kept, spans: &[Span]) -> Result<(), StateError> {
        let (marks, _) = marks.as_chunks();
        for (index, slot) in kept.pages.slots.iter().enumerate() {
            let mark = |what: usize| marks.get(2 * index + what).map_or(0, |mark| i32::from_le_bytes(*mark));
            let (appended, encoded) = (mark(0), mark(1));
            if appended == 0 && encoded == 0 {
                continue;
            }
            let row = usize::try_from(appended).unwrap_or(0).saturating_sub(1);
            let sequence = spans.iter().rposition(|span| span.row <= row).unwrap_or(0);
            let layer = slot.as_ref().map_or(0, |slot| slot.layer);
            return Err(StateError::new(sequence, CacheError::OnDevice { layer }));
        }
        Ok(())
    }
}

impl Network for CudaNetwork {
    fn forward(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<Rows, StateError> {
        let (spans, lineages, layout) = self.spans(state)?;
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Work { buffers, cache, graphs, out, launches } = &mut *work;
        if cache.as_ref().is_none_or(|kept| !Arc::ptr_eq(&kept.layout, &layout)) {
            let pages = LayoutPages::new(&self.card, &self.pages, &layout).map_err(device_error)?;
            self.check_caps(&pages)?;
            let seats = Seats::new(&pages.slots);
            *cache = Some(Kept { layout: Arc::clone(&layout), pages, seats });
        }
        let Some(kept) = cache else { return Err(device_error("no cache")) };
        let seats = kept.seats.of(&lineages);
        let mut words = Words::default();
        let ids = chunks.iter().flat_map(|chunk| chunk.tokens.iter().copied());
        let wanted: Vec<u32> = chunks
            .iter()
            .zip(&spans)
            .flat_map(|(chunk, span)| chunk.wanted.clone().map(|token| (span.row + token) as u32))
            .collect();
        let (ids_at, wanted_at) = (words.add(ids), words.add(wanted.iter().copied()));
        let attentions = self.program.attentions();
        let plan = PassPlan::new(
            &mut words,
            layout.rule(),
            &spans,
            &seats,
            attentions,
            &self.ropes,
            kept.pages.tiles,
        );
        let mut plan = PassPlan { ids_at, wanted_at, ..plan };
        self.enter_pages(&mut words, &mut plan, kept, (&spans, &seats), state)?;
        let (plan, words) = (plan, words.bytes());
        self.fit(buffers, &plan, words.len()).map_err(device_error)?;
        let Some(buffers) = buffers.as_ref() else { return Err(device_error("no buffers")) };
        kept.seats.send(&self.card).map_err(device_error)?;
        buffers.plan.upload(0, &words).map_err(device_error)?;
        buffers.out.clear_first(buffers.logits_at).map_err(device_error)?;

        let widths = self.program.widths;
        let graphs = &mut Some(graphs).filter(|_| self.options.graphs && plan.is_step && observer.is_none());
        let mut run = Run {
            program: &self.program,
            ropes: &self.ropes,
            slots: &self.slots,
            buffers,
            pages: self.pages.base(),
            layout: &kept.pages,
            seats: &kept.seats,
            plan: &plan,
            early: self.options.early && plan.is_step,
            recorder: Recorder::new(&self.card),
        };
        run.embed();
        let mut layer = None;
        for block in &self.program.blocks {
            if let Some(observer) = observer.as_deref_mut().filter(|_| layer != Some(block.layer)) {
                self.show(&mut run, block.layer, &widths, false, observer).map_err(device_error)?;
            }
            layer = Some(block.layer);
            run.block(block);
        }
        if plan.is_step {
            run.encode_all();
        }
        if let Some(observer) = observer {
            run.norm(&self.program.norm, buffers.x.address(), plan.rows);
            self.show(&mut run, self.program.layers, &widths, true, observer).map_err(device_error)?;
        }
        *launches = 0;
        let mut logits = Vec::with_capacity(wanted.len() * widths.vocabulary);
        let mut first = 0;
        loop {
            let rows = (wanted.len() - first).min(SLICE);
            if rows > 0 {
                run.logits(first, rows);
            }
            *launches += run.recorder.len();
            // SAFETY: every launch has the struct of its kernel, over buffers that `fit` and the plan gave their sizes.
            unsafe { run.recorder.submit(graphs.as_deref_mut()) }.map_err(device_error)?;
            let bytes = buffers.logits_at + 4 * rows * widths.vocabulary;
            if out.as_ref().is_none_or(|out| out.bytes() < bytes) {
                *out = Some(Pinned::new(&self.card, bytes).map_err(device_error)?);
            }
            let Some(out) = out else { return Err(device_error("no memory for logits")) };
            let read = out.read(&buffers.out, bytes).map_err(device_error)?;
            if first == 0 {
                self.refused(&read[..buffers.logits_at], kept, &spans)?;
            }
            let (scale, cap) = (self.program.head_scale, self.program.head_cap);
            let numbers = read[buffers.logits_at..].as_chunks().0.iter();
            let numbers = numbers.map(|four| scale * f32::from_le_bytes(*four));
            match cap {
                Some(cap) => logits.extend(numbers.map(|z| cap * (z / cap).tanh())),
                None => logits.extend(numbers),
            }
            first += rows;
            if first >= wanted.len() {
                break;
            }
        }
        Ok(Rows::from_vec(logits, widths.vocabulary))
    }

    fn store(&self) -> Option<Store> {
        let pages: Arc<dyn PageStore> = Arc::clone(&self.pages) as _;
        Some(pages.into())
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        let owner = self.slots.owner(slot);
        let readers = self.program.attentions().filter(|of| self.slots.owner(of.slot) == owner);
        let weights = readers.filter_map(|of| of.output_weights.as_ref());
        // The same tensor was read when the model was compiled.
        weights.filter_map(|tensor| Some(Rows::from_vec(tensor.to_f32().ok()?, tensor.columns()))).collect()
    }
}

impl CudaNetwork {
    /// Runs what was noted and shows the stream, or the normed one, to an observer.
    fn show(
        &self,
        run: &mut Run<'_>,
        layer: usize,
        widths: &crate::program::Widths,
        normed: bool,
        observer: &mut Observer<'_>,
    ) -> Result<(), OpenError> {
        // SAFETY: as in `forward`.
        unsafe { run.recorder.submit(None)? };
        let count = run.plan.rows * widths.hidden;
        let (buffer, size) = if normed { (&run.buffers.normed, 2) } else { (&run.buffers.x, 4) };
        let mut bytes = vec![0; size * count];
        // SAFETY: the buffer has that many rows.
        unsafe { download(&self.card, buffer.address(), &mut bytes)? };
        let numbers: Vec<f32> = match normed {
            true => bytes.as_chunks().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
            false => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        };
        observer(layer, &Rows::from_vec(numbers, widths.hidden));
        Ok(())
    }
}
