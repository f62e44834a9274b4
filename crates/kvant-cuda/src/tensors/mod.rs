//! The cache of a model that runs elsewhere, on tensors that lie on the card: a library such as torch hands over keys, values and queries of
//! one layer at a time, by their addresses, with the stream that it computes on.
//!
//! [`CardCache`] is what the layers of a cache share, [`CardLayer`] one of them; the sequences of a batch are their owner's. Everything is put on the
//! library's stream and nothing is waited for: the library's next kernel finds the result. Numbers that f16 does not hold are marked in
//! memory of the host, and the layer's next pass is refused.
//!
//! **Invariant:** pages, plans and launches are those of the backend (`attend`), so a query has the same bits here as there.

mod layer;

pub use layer::CardLayer;

use crate::buffer::{Buffer, Pinned};
use crate::cache::{CacheUnsupported, LayoutPages};
use crate::device::{CudaGpu, OpenError};
use crate::layout::UNIT;
use crate::pages::{CudaPages, unit_of};
use crate::params::{Address, TensorParams};
use crate::pass::{PassParams, SlicePlan, Tiling, slices, slot_pages};
use crate::run::fit;
use crate::tables::PageTables;
use crate::units::Units;
use kvant_cache::{ArenaError, CacheError, CacheLayout, KvSlot, PageId, PageStore, SlotKind, Store};
use std::sync::{Arc, Mutex};

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

    /// Where the first of these rows (batch, token) lies, if all follow one another, `width` numbers of 16 bits each, with `dim` of every head.
    fn rows_at(&self, width: usize, dim: usize, rows: &[[u32; 2]]) -> Option<Address> {
        let [batch, head, token] = self.strides;
        let place = |[b, t]: [u32; 2]| i64::from(b) * batch + i64::from(t) * token;
        let first = place(*rows.first()?);
        let follow = (0..).zip(rows).all(|(row, own)| place(*own) == first + row * width as i64);
        let address = self.address.checked_add_signed(2 * first)?;
        let is_16_bits = self.number != TensorNumber::F32;
        (is_16_bits && follow && head == dim as i64 && address.is_multiple_of(16)).then_some(address)
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
    card: Arc<CudaGpu>,
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
    wide_tile: usize,
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
    pub fn new(card: &Arc<CudaGpu>) -> Result<Arc<CardCache>, OpenError> {
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
        if of.latent.is_some() {
            return Err(refuse("latents (MLA) are not made from tensors".to_owned()));
        }
        if self.card.kernel(&format!("from_tensors_d{}", of.dim)).is_none() {
            return Err(refuse(format!("tensors of {} channels are not taken", of.dim)));
        }
        if of.planned.is_some() || of.general.is_some() {
            return Err(refuse(
                "keys of a plan, and codecs besides int4, int8, k8v4 and f16, are not made from tensors"
                    .to_owned(),
            ));
        }
        let marks = Pinned::new(&self.card, 8).map_err(|error| refuse(error.to_string()))?;
        let tables = PageTables::new(&pages.slots);
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
            tables,
            marks,
        })
    }
}

impl Work {
    /// Sees to it that the plan of these queries is the last one kept.
    fn plan(
        &mut self,
        card: &Arc<CudaGpu>,
        rule: &kvant_cache::ExactWindow,
        key: PlanKey,
    ) -> Result<(), OpenError> {
        if let Some(known) = self.plans.iter().position(|plan| plan.key == key) {
            let known = self.plans.remove(known);
            self.plans.push(known);
            return Ok(());
        }
        let mut words = PassParams::default();
        let tiling = Tiling { window: key.window, tile: key.tile, wide_tile: key.wide_tile, latents: false };
        let slices = slices(&mut words, rule, Units::PAGES, tiling, &key.positions, &key.seats);
        let bytes = words.as_bytes();
        // The oldest plan's memory, once there are enough.
        let mut buffer = match self.plans.len() == PLANS {
            true => self.plans.remove(0).words,
            false => Buffer::new(card, bytes.len().next_power_of_two().max(1 << 14))?,
        };
        fit(card, &mut buffer, bytes.len())?;
        buffer.upload(0, bytes)?;
        self.plans.push(KeptPlan { key, slices, words: buffer });
        Ok(())
    }
}
