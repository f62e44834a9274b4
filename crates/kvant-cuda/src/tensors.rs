//! The cache of a model that runs elsewhere, on tensors that lie on the card: a library such as torch hands over keys, values and queries of
//! one layer at a time, by their addresses, with the stream that it computes on.
//!
//! [`CardCache`] is what the layers of a cache share, [`CardLayer`] one of them; the sequences of a batch are their owner's. Everything is put on the
//! library's stream and nothing is waited for: the library's next kernel finds the result. Numbers that f16 does not hold are marked in
//! memory of the host, and the layer's next pass is refused.
//!
//! **Invariant:** pages, plans and launches are those of the backend (`attend`), so a query has the same bits here as there.

use crate::attend::{Attend, encode};
use crate::buffer::{Buffer, Pinned};
use crate::cache::{CacheUnsupported, LayoutPages};
use crate::device::{Card, Launch, OpenError};
use crate::layout::{PAGE_TOKENS, UNIT};
use crate::pages::{CudaPages, unit_of};
use crate::params::{Address, EncodeParams, FromTensorsParams, TensorParams, ToTensorParams, many_columns};
use crate::pass::{
    Part, PassPlan, SlicePlan, Span, TakeError, Words, add_jobs, slices, slot_pages, take_pages,
};
use crate::recorder::Recorder;
use crate::run::fit;
use crate::seats::Seats;
use cudarc::driver::sys;
use kvant_cache::{
    ArenaError, CacheError, CacheLayout, KvSlot, PageId, PageStore, Sequence, SlotKind, Store,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of a sequence that are appended before they attend and are settled: a long prompt's exact rows are held for so many at a time.
const CHUNK: usize = 1024;

/// Plans of attention that are kept: layers of the same window share one.
const PLANS: usize = 4;

/// Why a pass on tensors was not made. The sequences are as they were before it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The cache refused it, as where memory is full.
    #[error("{0}")]
    Cache(CacheError),
    /// The card refused it, or is lost.
    #[error("{0}")]
    Device(String),
    /// An earlier pass brought numbers that cannot be stored.
    #[error(
        "layer {layer}: an earlier pass had queries, keys or values that f16 does not hold (beyond 65504, or NaN); what this cache holds of it cannot be used"
    )]
    Refused {
        /// Which layer.
        layer: usize,
    },
}

impl From<OpenError> for PassError {
    fn from(error: OpenError) -> PassError {
        PassError::Device(error.to_string())
    }
}

impl From<ArenaError> for PassError {
    fn from(error: ArenaError) -> PassError {
        PassError::Cache(error.into())
    }
}

/// Formats of numbers that tensors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNumber {
    /// 32 bits.
    F32,
    /// 16 bits, binary16.
    F16,
    /// 16 bits, bfloat16.
    Bf16,
}

/// Where a tensor (batch, heads, tokens, channels) lies on the card, with channels side by side.
#[derive(Clone, Copy, Debug)]
pub struct CardTensor {
    /// Of its first number.
    pub address: Address,
    /// From one batch row, head and token to the next, in numbers.
    pub strides: [i64; 3],
    /// What its numbers are.
    pub number: TensorNumber,
}

impl CardTensor {
    fn params(self) -> TensorParams {
        let [batch, head, token] = self.strides;
        TensorParams { data: self.address, batch, head, token, number: self.number as i32, zero: 0 }
    }
}

/// Queries of a pass.
#[derive(Clone, Copy, Debug)]
pub struct CardQueries {
    /// (batch, query heads, tokens, channels).
    pub queries: CardTensor,
    /// The same shape.
    pub out: CardTensor,
    /// Query heads.
    pub heads: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Scores s become c·tanh(s/c).
    pub soft_cap: Option<f32>,
    /// Logits (heads) f32 on the card that join the softmax without a value, or 0.
    pub sink_logits: Address,
}

/// What a layer is given: tensors, and the tokens of every row of the batch that belong to its sequence.
#[derive(Clone, Copy, Debug)]
pub struct CardPass<'a> {
    /// The handle of the stream that the tensors' library computes on, in the card's primary context; 0 is its default stream.
    pub stream: u64,
    /// By sequence: its tokens, by their place in the tensors.
    pub tokens: &'a [Vec<usize>],
    /// Keys and values, where there are new ones.
    pub append: Option<[CardTensor; 2]>,
    /// Queries of the same tokens, if they attend.
    pub attend: Option<CardQueries>,
}

/// What the layers of a cache share: a card, its pages, and scratch memory.
pub struct CardCache {
    card: Arc<Card>,
    pages: Arc<CudaPages>,
    work: Mutex<Work>,
}

struct Work {
    words: Buffer,
    queries: Buffer,
    out: Buffer,
    part_o: Buffer,
    part_ml: Buffer,
    plans: Vec<KeptPlan>,
}

/// What a plan of attention follows from.
#[derive(PartialEq, Eq)]
struct PlanKey {
    positions: Vec<usize>,
    seats: Vec<usize>,
    window: Option<usize>,
    tile: usize,
}

struct KeptPlan {
    key: PlanKey,
    slices: Vec<SlicePlan>,
    words: Buffer,
}

impl CardCache {
    /// A cache without layers. Pages may take the whole card.
    ///
    /// # Errors
    /// When the card has no memory for the little that is taken at once.
    pub fn new(card: &Arc<Card>) -> Result<Arc<CardCache>, OpenError> {
        let buffer = || Buffer::new(card, 1 << 16);
        let work = Work {
            words: buffer()?,
            queries: buffer()?,
            out: buffer()?,
            part_o: buffer()?,
            part_ml: buffer()?,
            plans: Vec::new(),
        };
        let pages = CudaPages::new(card, None)?;
        Ok(Arc::new(CardCache { card: Arc::clone(card), pages, work: Mutex::new(work) }))
    }

    /// Where sequences take their pages from.
    pub fn store(&self) -> Store {
        let pages: Arc<dyn PageStore> = Arc::clone(&self.pages) as _;
        pages.into()
    }

    /// Its pages.
    pub fn pages(&self) -> &Arc<CudaPages> {
        &self.pages
    }

    /// Where a page lies on the card.
    pub fn address(&self, page: PageId) -> Address {
        self.pages.base() + u64::from(unit_of(page)) * UNIT as u64
    }

    /// A layer whose sequences have this layout.
    ///
    /// # Errors
    /// When there are no kernels for what the layout says, or the card refuses memory.
    pub fn layer(
        self: &Arc<Self>,
        layout: &Arc<CacheLayout>,
        slot: KvSlot,
    ) -> Result<CardLayer, CacheUnsupported> {
        let pages = LayoutPages::new(&self.card, &self.pages, layout)?;
        let layer = layout.slots().get(slot.index()).map_or(0, |slot| slot.layer());
        let refuse = |what: String| CacheUnsupported { layer, what };
        let of = slot_pages(&pages, slot).ok_or_else(|| refuse("it holds no keys and values".to_owned()))?;
        if self.card.kernel(&format!("from_tensors_d{}", of.dim)).is_none() {
            return Err(refuse(format!("tensors of {} channels are not taken", of.dim)));
        }
        let marks = Pinned::new(&self.card, 8).map_err(|error| refuse(error.to_string()))?;
        let seats = Seats::new(&pages.slots);
        let window = match layout.slots()[slot.index()].kind() {
            SlotKind::KeysValues(shape) => shape.window,
            _ => None,
        };
        Ok(CardLayer {
            cache: Arc::clone(self),
            layout: Arc::clone(layout),
            slot,
            window,
            pages,
            seats,
            marks,
        })
    }
}

/// One layer: the tables of its pages. The sequences of a batch are with whoever calls.
pub struct CardLayer {
    cache: Arc<CardCache>,
    layout: Arc<CacheLayout>,
    slot: KvSlot,
    window: Option<usize>,
    pages: LayoutPages,
    seats: Seats,
    /// Set by kernels where numbers cannot be stored: by append, by encode.
    marks: Pinned,
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
        let CardLayer { cache, layout, slot, window, pages, seats, marks } = self;
        let (slot, rule, card) = (*slot, layout.rule(), &cache.card);
        let tiles = pages.tiles;
        let device = |what: String| PassError::Device(what);
        let of = slot_pages(pages, slot).ok_or_else(|| device("a slot without pages".to_owned()))?;
        let (mut spans, mut places, mut row) = (Vec::new(), Vec::new(), 0);
        for (batch, (sequence, tokens)) in sequences.iter_mut().zip(pass.tokens).enumerate() {
            if !tokens.is_empty() {
                let span = Span { start: sequence.len(), tokens: tokens.len(), row, capacity: 0 };
                spans.push((batch, span));
                places.extend(tokens.iter().flat_map(|token| [batch as u32, *token as u32]));
                row += tokens.len();
            }
        }
        let rows = row;
        if rows == 0 {
            return Ok(());
        }
        let mut jobs = Vec::new();
        if pass.append.is_some() {
            for (batch, span) in &spans {
                let taken = take_pages(slot, of, &mut sequences[*batch], span.tokens, &mut jobs);
                taken.map_err(|error| match error {
                    TakeError::Cache(error) => PassError::Cache(error),
                    TakeError::Device(what) => PassError::Device(what),
                })?;
            }
        }
        let lineages: Vec<u64> = spans.iter().map(|(batch, _)| sequences[*batch].lineage()).collect();
        let own_seats = seats.of(&lineages);
        let only: Vec<Span> = spans.iter().map(|(_, span)| *span).collect();
        let mut words = Words::default();
        let places_at = words.add(places);
        let plan = PassPlan::new(&mut words, rule, &only, &own_seats, std::iter::empty(), &[], tiles);
        let mut book = cache.pages.book();
        let mut table = Vec::new();
        for ((batch, span), seat) in spans.iter().zip(&own_seats) {
            let sequence = &sequences[*batch];
            let part = Part { slot, pages: of, rule, span, sequence };
            part.exact_table(plan.exact_stride, seats.exact(*seat, slot), &mut book, &mut table)
                .map_err(device)?;
            let closed = rule.encoded_for(span.last(), PAGE_TOKENS);
            seats.enter(*seat, slot, of, sequence, closed, &mut book).map_err(device)?;
        }
        let exact_at = words.add(table);
        let jobs_at = add_jobs(&mut words, of, &jobs, &mut book).map_err(device)?;
        book.close().map_err(device)?;
        seats.send(card)?;
        let words = words.bytes();
        fit(card, &mut work.words, words.len())?;
        work.words.upload(0, &words)?;

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
        let params = EncodeParams {
            pages: cache.pages.base(),
            jobs: at(jobs_at),
            signs: of.signs,
            refused: marks.address() + 4,
        };
        encode(&mut recorder, of, jobs.len(), params);
        if let Some(attend) = &pass.attend {
            let tile = if plan.tiles { (many_columns(of.dim) / (heads / of.kv_heads)).max(1) } else { 1 };
            let positions = only.iter().flat_map(Span::positions).collect();
            let by_row = only.iter().zip(&own_seats);
            let by_row = by_row.flat_map(|(span, seat)| std::iter::repeat_n(*seat, span.tokens)).collect();
            let key = PlanKey { positions, seats: by_row, window: *window, tile };
            work.plan(card, rule, key)?;
            let Work { words, queries, out, part_o, part_ml, plans } = work;
            let Some(kept) = plans.last() else { return Err(device("no plan".to_owned())) };
            let partials = kept.slices.iter().map(|slice| slice.slots).max().unwrap_or(0) * heads;
            fit(card, out, 2 * rows * heads * of.dim)?;
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
                table: seats.table(slot.index()),
                exact: (words.address() + exact_at, plan.exact_stride),
                plan: kept.words.address(),
                queries: queries.address(),
                out: out.address(),
                part_o: part_o.address(),
                part_ml: part_ml.address(),
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
            recorder.launch("to_tensor", launch((rows, heads), early), params);
        }
        // SAFETY: every launch has the struct of its kernel, over buffers that have just been given their sizes and tensors of the caller's.
        unsafe { recorder.submit(None) }?;
        Ok(())
    }
}

impl Work {
    /// Sees to it that the plan of these queries is the last one kept.
    fn plan(
        &mut self,
        card: &Arc<Card>,
        rule: &kvant_cache::Visibility,
        key: PlanKey,
    ) -> Result<(), OpenError> {
        if let Some(known) = self.plans.iter().position(|plan| plan.key == key) {
            let known = self.plans.remove(known);
            self.plans.push(known);
            return Ok(());
        }
        let mut words = Words::default();
        let slices = slices(&mut words, rule, (key.window, key.tile), &key.positions, &key.seats);
        let bytes = words.bytes();
        // The oldest plan's memory, once there are enough.
        let mut buffer = match self.plans.len() == PLANS {
            true => self.plans.remove(0).words,
            false => Buffer::new(card, bytes.len().next_power_of_two().max(1 << 14))?,
        };
        fit(card, &mut buffer, bytes.len())?;
        buffer.upload(0, &bytes)?;
        self.plans.push(KeptPlan { key, slices, words: buffer });
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
