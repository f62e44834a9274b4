//! The compiled model, and a pass through it.

mod enter;

use crate::buffer::{Pinned, download};
use crate::cache::LayoutPages;
use crate::device::{CudaGpu, OpenError};
use crate::outputs::{Found, Head, Slice};
use crate::pages::CudaPages;
use crate::params::Address;
use crate::pass::{Kinds, PassParams, PassPlan, SLICE, reading, slot_pages};
use crate::profile::Stage;
use crate::program::Program;
use crate::recorder::{Graphs, Recorder};
use crate::recurrent::{Recurrent, StatePlan};
use crate::run::{PassBuffers, Run, fit};
use crate::staging::Staging;
use crate::step::StepKey;
use crate::tables::PageTables;
use crate::top::TopPlan;
use crate::unread::{Unread, check_marks};
use half::f16;
use kvant_cache::{
    CacheLayout, KvSlot, PageStore, Sequence, SlotKind, Slots, StateError, StateErrorKind, Store,
};
use kvant_device::{Batch, Span};
use kvant_model::description::Rope;
use kvant_model::{Abilities, Network, Outputs, Pass, Rows, TopTokens};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{trace, trace_span};

/// A model on a card. All its passes go one after another.
pub struct CudaNetwork {
    card: Arc<CudaGpu>,
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
    /// Whether kernels may begin before those before them have ended (programmatic dependent launch).
    pub early: bool,
    /// Whether decode steps that are alike are run as a CUDA graph.
    pub graphs: bool,
    /// Whether products norm the one row that they read, and gate what they give; a model is laid out for that when it is compiled.
    pub fused: bool,
}

impl Default for PassOptions {
    fn default() -> PassOptions {
        PassOptions { early: true, graphs: true, fused: true }
    }
}

/// Layouts whose tables are kept: sequences that were not forked from one another have layouts of their own.
const LAYOUTS: usize = 8;

/// What passes use again.
struct Work {
    buffers: Option<PassBuffers>,
    /// The layout of the last pass first.
    caches: Vec<Kept>,
    graphs: Graphs,
    out: Option<Pinned>,
    params: PassParams,
    staging: Staging,
    unread: Unread,
    launches: usize,
}

/// What was made for a layout of caches.
struct Kept {
    layout: Arc<CacheLayout>,
    pages: LayoutPages,
    tables: PageTables,
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
        card: &Arc<CudaGpu>,
        pages: &Arc<CudaPages>,
        program: Program,
        ropes: Vec<Rope>,
        slots: Slots,
        options: PassOptions,
    ) -> CudaNetwork {
        let graphs = Graphs::new(card);
        let work = Work {
            buffers: None,
            caches: Vec::new(),
            graphs,
            out: None,
            params: PassParams::default(),
            staging: Staging::new(card),
            unread: Unread::default(),
            launches: 0,
        };
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
    fn fit(
        &self,
        buffers: &mut Option<PassBuffers>,
        (plan, states): (&PassPlan, &StatePlan),
        top: Option<&TopPlan>,
        words: usize,
        pages: &LayoutPages,
    ) -> Result<(), OpenError> {
        let card = &self.card;
        if buffers.as_ref().is_none_or(|buffers| buffers.rows < plan.rows) {
            *buffers = None; // before the larger ones are taken
            let rows = plan.rows.next_power_of_two();
            *buffers = Some(PassBuffers::new(card, &self.program.widths, self.slots.len(), rows)?);
        }
        let Some(buffers) = buffers else { return Ok(()) };
        fit(card, &mut buffers.plan, words)?;
        if let Some(top) = top {
            top.fit(card, &mut buffers.ranks, self.program.widths.vocabulary)?;
        }
        for of in self.program.readings().map(|of| pages.reading(&self.slots, of)) {
            let owner = self.slots.owner(of.slot);
            let slot = slot_pages(pages, owner).and_then(|slot| Some((slot, slot.general.as_ref()?)));
            if let (Some((slot, general)), Some(own)) = (slot, plan.slots.get(&owner.index())) {
                let needs = general.needs(plan, &of, slot, &own.jobs);
                fit(card, &mut buffers.general.tiles, needs.tiles)?;
                fit(card, &mut buffers.general.queries, needs.queries)?;
                fit(card, &mut buffers.general.bias, needs.bias)?;
                fit(card, &mut buffers.general.encode, needs.encode)?;
            }
            let slices = plan.slices.get(&plan.tiling(&of)).into_iter().flatten();
            let partials = slices.map(|slice| slice.slots).max().unwrap_or(0) * of.heads;
            fit(card, &mut buffers.part_o, 4 * partials * of.width)?;
            fit(card, &mut buffers.part_ml, 8 * partials)?;
        }
        let of_piece = self.program.recurrents().map(Recurrent::product_bytes).max().unwrap_or(0);
        fit(card, &mut buffers.state_products, states.long.1 * of_piece)
    }
}

impl Network for CudaNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        let stage = Stage::new(&self.card, "plan", trace_span!("plan").entered());
        let mut batch = Batch::of(sequences, &*self.pages)?;
        let layout = Arc::clone(&batch.layout);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = std::mem::take(&mut work.params).emptied();
        let caches = &mut work.caches;
        let kept = match caches.iter().position(|kept| Arc::ptr_eq(&kept.layout, &layout)) {
            Some(index) => caches.remove(index),
            None => {
                let pages = LayoutPages::new(&self.card, &self.pages, &layout).map_err(device_error)?;
                self.check_caps(&pages)?;
                let tables = PageTables::new(&pages.slots);
                Kept { layout: Arc::clone(&layout), pages, tables }
            }
        };
        caches.insert(0, kept);
        caches.truncate(LAYOUTS);
        let Some(kept) = caches.first_mut() else { return Err(device_error("no cache")) };
        let lineages = std::mem::take(&mut batch.lineages);
        batch.sit(kept.tables.seats(&lineages));
        let spans = batch.spans;
        let asked = pass.wanted();
        let wanted = &asked.scored;
        let ids_at = words.add(pass.ids());
        let wanted_at = words.add(wanted.iter().map(|row| *row as u32));
        // Lists are made of what the head gives before it is capped.
        let lists = if self.program.head_cap.is_none() { &asked.top[..] } else { &[] };
        let top = TopPlan::new(&mut words, lists);
        let readings = self.program.readings().map(|of| kept.pages.reading(&self.slots, of));
        let rule = reading(layout.exact_window());
        let inside = |span: &Span| {
            let after = span.start.saturating_sub(rule.sinks);
            !after.is_multiple_of(crate::layout::PAGE_TOKENS)
        };
        if let Some(index) = spans.iter().position(inside).filter(|_| kept.pages.strict) {
            let what = "strict mode reads whole pages: a chunk begins inside one";
            return Err(StateError::new(index, StateErrorKind::Pass { what }));
        }
        let LayoutPages { tiles, wide_tiles, units, .. } = kept.pages;
        let kinds = Kinds { tiles, wide_tiles, units };
        let plan = PassPlan::new(&mut words, &rule, &spans, readings, &self.ropes, kinds);
        // A page must be encoded before its queries attend, even if there is one of them.
        let is_step = plan.is_step && !kept.pages.strict;
        let (layer_ids_at, positions_at) = self.extra_words(&mut words, pass.ids(), &spans);
        let mut plan = PassPlan { ids_at, layer_ids_at, positions_at, wanted_at, is_step, ..plan };
        let states = self.enter_pages(&mut words, &mut plan, kept, &spans, sequences)?;
        drop(stage);
        let stage = Stage::new(&self.card, "record", trace_span!("record").entered());
        let Work { buffers, caches, graphs, out, params, staging, unread, launches } = &mut *work;
        let Some(kept) = caches.first_mut() else { return Err(device_error("no cache")) };
        *params = words;
        let words = &*params;
        let bytes = words.as_bytes().len();
        self.fit(buffers, (&plan, &states), top.as_ref(), bytes, &kept.pages).map_err(device_error)?;
        let Some(buffers) = buffers.as_ref() else { return Err(device_error("no buffers")) };
        unread.check(&lineages, &spans)?;
        let changes = kept.tables.changes(&self.card).map_err(device_error)?;
        let mut pieces: Vec<(Address, &[u8])> = changes.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        pieces.push((buffers.plan.address(), words.as_bytes()));
        // SAFETY: tables have room for their changes, and `fit` gave the plan its size.
        unsafe { staging.send(&pieces) }.map_err(device_error)?;
        buffers.out.clear(buffers.layout.marks..buffers.layout.logits).map_err(device_error)?;

        let widths = self.program.widths;
        let mut observer = pass.observer.layers;
        let shows_normed = observer.is_some() || !asked.hidden.is_empty();
        let shows = shows_normed || pass.observer.stream.is_some();
        let graphs = &mut Some(graphs).filter(|_| self.options.graphs && plan.is_step && !shows);
        let places = buffers.growing().map(|address| (address, 0)).chain(kept.tables.places());
        let key = StepKey {
            plan,
            states: states.offsets(),
            wanted: wanted.len(),
            top: top.as_ref().map(TopPlan::key),
            generations: [buffers.generation, kept.pages.generation],
            places: places.collect(),
        };
        let plan = &key.plan;
        // Kernels that are timed one by one, and logits of more than one slice, have no list of their own.
        let is_one = wanted.len() <= SLICE && !self.card.profile.is_on();
        let again = graphs.as_ref().filter(|_| is_one).and_then(|graphs| graphs.find(&key));
        let mut run = Run {
            program: &self.program,
            ropes: &self.ropes,
            slots: &self.slots,
            buffers,
            pages: self.pages.base(),
            layout: &kept.pages,
            tables: &kept.tables,
            plan,
            states: &states,
            early: self.options.early,
            fused: self.options.fused,
            recorder: Recorder::new(&self.card),
        };
        if again.is_none() {
            run.embed();
            for (layer, blocks) in self.program.by_layer() {
                if let Some(observer) = observer.as_mut() {
                    observer(layer, &self.show(&mut run, &widths, false).map_err(device_error)?);
                }
                let altup = self.program.altups.get(layer).and_then(Option::as_ref);
                if let Some(altup) = altup {
                    run.predict(altup);
                }
                blocks.iter().for_each(|block| run.block(block));
                if let Some(altup) = altup {
                    run.correct(altup);
                }
            }
            if let Some(streams) = &self.program.streams {
                run.join_streams(streams);
            }
            if plan.is_step {
                run.encode_all();
            }
        }
        if let Some(stream) = pass.observer.stream {
            stream(self.show(&mut run, &widths, false).map_err(device_error)?);
        }
        let mut hidden = None;
        if shows_normed {
            run.norm(&self.program.norm, buffers.x.address(), plan.rows);
            let normed = self.show(&mut run, &widths, true).map_err(device_error)?;
            if let Some(observer) = observer {
                observer(self.program.layers, &normed);
            }
            hidden = (!asked.hidden.is_empty()).then(|| asked.hidden_of(&normed));
        }
        let accept = |row: usize, list: &TopTokens| (pass.accept)(asked.numbers[row], list);
        drop(stage);
        *launches = 0;
        let mut found = Found::default();
        let mut first = 0;
        loop {
            let stage = Stage::new(&self.card, "launch", trace_span!("launch").entered());
            let rows = (wanted.len() - first).min(SLICE);
            if let (Some(index), Some(graphs)) = (again, graphs.as_deref_mut()) {
                // SAFETY: as below, for the numbers of the launches are those of this step.
                *launches = unsafe { graphs.again(index) }.map_err(device_error)?;
            } else {
                if rows > 0 {
                    run.logits(first, rows);
                    if let Some(top) = &top {
                        run.top(top, first, rows);
                    }
                }
                *launches += run.recorder.len();
                // SAFETY: every launch has the struct of its kernel, over buffers that `fit` and the plan gave their sizes.
                unsafe { run.recorder.submit(graphs.as_deref_mut()) }.map_err(device_error)?;
            }
            drop(stage);
            if first == 0 {
                self.pages.copy_rows(&states.copies).map_err(device_error)?;
                // The pass before, whose place this one has taken on the stream.
                let _stage = Stage::new(&self.card, "settle", trace_span!("settle").entered());
                unread.settle().map_err(device_error)?;
                unread.check(&lineages, &spans)?;
            }
            if wanted.is_empty() && !shows {
                let of = (spans, lineages);
                unread.add(&self.card, buffers, of, &kept.layout).map_err(device_error)?;
                break;
            }
            let _stage = Stage::new(&self.card, "wait", trace_span!("wait").entered());
            let slice = Slice { buffers, first, rows, width: widths.vocabulary, top: top.as_ref() };
            let head = Head { scale: self.program.head_scale, cap: self.program.head_cap };
            let marks = found.read(out, &self.card, &slice, &head, &accept).map_err(device_error)?;
            if first == 0 {
                check_marks(&marks, &kept.layout, &spans)?;
            }
            first += rows;
            if first >= wanted.len() {
                break;
            }
        }
        trace!(rows = plan.rows, launches = *launches, again = again.is_some(), "launched");
        if let Some(graphs) = graphs.as_deref_mut().filter(|_| is_one && again.is_none()) {
            graphs.note(key, *launches);
        }
        let outputs = found.into_outputs(widths.vocabulary);
        Ok(match hidden {
            Some(hidden) => outputs.with_hidden(&asked, hidden),
            None => outputs,
        })
    }

    fn abilities(&self) -> Abilities {
        // Taking tokens back from recurrent state on a card is not tried yet.
        let is_recurrent = self.slots.iter().any(|(_, slot)| matches!(slot.kind, SlotKind::Recurrent(_)));
        Abilities { any_rows: !is_recurrent, stream_observer: true, ..Abilities::default() }
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
    /// Runs what was noted and reads the stream, or the normed one.
    fn show(
        &self,
        run: &mut Run<'_>,
        widths: &crate::program::Widths,
        normed: bool,
    ) -> Result<Rows, OpenError> {
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
        Ok(Rows::from_vec(numbers, widths.hidden))
    }
}
