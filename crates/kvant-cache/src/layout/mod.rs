//! What a cache looks like: shapes, codecs and the exact window. Built once per model, shared by all its sequences.

mod codecs;
mod kinds;
mod memory;

pub use codecs::{HeadCodecs, SideCodecs};
pub use kinds::SideKinds;
pub(crate) use memory::{ROLLBACK, Slack};

use crate::error::LayoutError;
use crate::exact_window::{ExactWindow, MAX_SINKS};
use crate::policy::{Policy, SparseV};
use crate::recurrent::StateType;
use crate::slot::{KvShape, KvSlot, Slot, SlotKind, Slots};
use crate::store::Store;
use kinds::KnownKinds;
use kvant_codec::{BuildError, Calibration, Side, Tier};
use std::collections::HashMap;
use std::sync::Arc;

/// How one slot is kept and read; heads whose codecs differ are told by the first.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotKernels {
    /// Bits per number of the encoded keys and values.
    pub bits: [f64; 2],
    /// The instructions that make scores of encoded keys and sums of encoded values; `decode` where pages are decoded.
    pub kernels: [&'static str; 2],
    /// The rotated part of latents stays in f16: it has fewer channels than the codec that was asked for can serve.
    pub keeps_rotated: bool,
}

/// One slot: what it holds, and the codecs of every kv head.
#[derive(Clone)]
pub struct SlotLayout {
    slot: Slot,
    stored: Option<KvShape>,
    heads: Vec<HeadCodecs>,
    /// The state of an empty sequence, where it is recurrent.
    zeros: Arc<Vec<f32>>,
    kinds: KnownKinds,
}

impl SlotLayout {
    /// The model's layer.
    pub fn layer(&self) -> usize {
        self.slot.layer
    }

    /// What it holds.
    pub fn kind(&self) -> &SlotKind {
        &self.slot.kind
    }

    /// The shape of what lies in pages, by side; `None` for views and recurrent state.
    pub fn stored(&self) -> Option<&KvShape> {
        self.stored.as_ref()
    }

    /// The kinds of its pages in a store, by kv head and side.
    pub fn kinds(&self, store: &Store) -> Arc<[SideKinds]> {
        self.kinds.of(
            store.of_layer(self.layer()),
            &self.heads,
            matches!(self.slot.kind, SlotKind::Latent(_)),
        )
    }

    /// The codecs of its kv heads; none for views and recurrent state.
    pub fn heads(&self) -> &[HeadCodecs] {
        &self.heads
    }

    /// The sliding window of its queries.
    pub(crate) fn window(&self) -> Option<usize> {
        self.stored.and_then(|shape| shape.window)
    }

    /// Two, or one where a latent has no rotated part.
    pub(crate) fn sides_per_head(&self) -> usize {
        1 + usize::from(self.heads.first().is_none_or(|head| head.key.is_some()))
    }

    pub(crate) fn zeros(&self) -> &Arc<Vec<f32>> {
        &self.zeros
    }

    /// What runs when attention reads it; `None` for views and recurrent state.
    pub fn kernels(&self) -> Option<SlotKernels> {
        let HeadCodecs { key, value } = self.heads.first()?;
        let (reads, sums) = (value.codec().kernels().scores, value.codec().kernels().accumulate);
        let keys = key.as_ref().map(|key| (key.codec().bits_per_value(), key.codec().kernels().scores));
        let scores = match self.slot.kind {
            // The latent is scored too, by the codec of its side.
            SlotKind::Latent(_) => keys.map_or(reads, |(_, own)| if reads == "decode" { reads } else { own }),
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Recurrent(_) => {
                keys.map_or("decode", |(_, own)| own)
            }
        };
        let bits = [keys.map_or(0.0, |(bits, _)| bits), value.codec().bits_per_value()];
        let keeps_rotated = key.as_ref().is_some_and(|key| key.stands_in());
        Some(SlotKernels { bits, kernels: [scores, sums], keeps_rotated })
    }
}

/// The layout of a cache.
#[derive(Clone)]
pub struct CacheLayout {
    rule: ExactWindow,
    sparse_v: Option<SparseV>,
    state_type: StateType,
    list: Slots,
    slots: Vec<SlotLayout>,
    largest_page: Option<usize>,
    is_reference: bool,
}

impl CacheLayout {
    /// The layout that a policy gives a model, with the best instruction set of this machine.
    ///
    /// # Errors
    /// When a codec cannot be built for the shape of a head, the policy names layers or heads that are not there, or a
    /// forced instruction set cannot run.
    pub fn new(policy: &Policy, slots: &Slots) -> Result<CacheLayout, LayoutError> {
        let tier = Tier::select().map_err(|e| LayoutError::Codec {
            layer: 0,
            head: 0,
            side: Side::Key,
            source: e.into(),
        })?;
        CacheLayout::with_tier(policy, slots, tier)
    }

    /// The same on a given instruction set.
    ///
    /// # Errors
    /// As [`CacheLayout::new`].
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn with_tier(policy: &Policy, slots: &Slots, tier: Tier) -> Result<CacheLayout, LayoutError> {
        policy.check(slots)?;
        // Heads with the same spec share a codec, except where each has numbers of its own.
        let mut built: HashMap<(String, Side, usize), Arc<SideCodecs>> = HashMap::new();
        let layout = CacheLayout::build(policy.rule, slots, |slot, head, side| {
            let index = slot.index();
            let none = LayoutError::NoPages { slot: index };
            let Slot { layer, kind } = *slots.get(index).ok_or(none.clone())?;
            let shape = kind.stored().ok_or(none)?;
            let spec = policy.spec(layer, head, side);
            let dim = shape.dim(side);
            let refuse = |source| LayoutError::Codec { layer, head, side, source };
            let is_rotated = side == Side::Key && matches!(kind, SlotKind::Latent(_));
            let build = |calibration: &Calibration| match SideCodecs::new(spec, side, dim, calibration, tier)
            {
                // Rotated parts can be narrower than any head.
                Err(BuildError::Dim { .. }) if is_rotated => {
                    SideCodecs::in_place_of(spec, side, dim, tier).map_err(refuse)
                }
                built => built.map_err(refuse),
            };
            if spec.needs_plan() {
                let findings = policy.plan.as_ref().and_then(|plan| plan.findings(index, head, side));
                let calibration = findings.map(|found| found.calibration(spec, side, dim, tier));
                let calibration = calibration.transpose().map_err(refuse)?.unwrap_or_default();
                return build(&calibration).map(Arc::new);
            }
            let key = (spec.to_string(), side, dim);
            if let Some(codecs) = built.get(&key) {
                return Ok(Arc::clone(codecs));
            }
            let codecs = build(&Calibration::default())?;
            Ok(Arc::clone(built.entry(key).or_insert(Arc::new(codecs))))
        })?;
        Ok(CacheLayout { sparse_v: policy.sparse_v, state_type: policy.state, ..layout })
    }

    /// A layout with codecs chosen one by one: by slot, kv head and side.
    ///
    /// # Errors
    /// When the choice fails, or the rule or a slot asks for something that cannot be.
    pub fn build(
        rule: ExactWindow,
        slots: &Slots,
        mut choose: impl FnMut(KvSlot, usize, Side) -> Result<Arc<SideCodecs>, LayoutError>,
    ) -> Result<CacheLayout, LayoutError> {
        if rule.sinks > MAX_SINKS {
            return Err(LayoutError::Sinks { sinks: rule.sinks });
        }
        let windows = slots.iter().filter_map(|(_, slot)| slot.kind.stored()?.window);
        if rule.streaming.into_iter().chain(windows).any(|window| window == 0) {
            return Err(LayoutError::EmptyWindow);
        }
        let mut layouts = Vec::with_capacity(slots.len());
        for (index, slot) in slots.iter() {
            let (stored, layer) = (slot.kind.stored(), slot.layer);
            let mut heads = Vec::new();
            if let (Some(shape), Some(id)) = (stored, slots.kv(index)) {
                for head in 0..shape.kv_heads {
                    let key = (shape.key_dim > 0).then(|| choose(id, head, Side::Key)).transpose()?;
                    heads.push(HeadCodecs { key, value: choose(id, head, Side::Value)? });
                }
            }
            let mut zeros = 0;
            match slot.kind {
                SlotKind::Latent(_) => heads.iter().try_for_each(|head| head.read_together(layer))?,
                SlotKind::Recurrent(shape) if shape.state == 0 || shape.row == 0 => {
                    return Err(LayoutError::EmptyState { layer });
                }
                SlotKind::Recurrent(shape) => zeros = shape.state,
                SlotKind::KeysValues(shape) if shape.key_dim == 0 => {
                    return Err(LayoutError::NoPages { slot: index });
                }
                SlotKind::KeysValues(_) | SlotKind::View(_) => {}
            }
            let zeros = Arc::new(vec![0.0; zeros]);
            layouts.push(SlotLayout { slot: *slot, stored, heads, zeros, kinds: KnownKinds::default() });
        }
        let mut layout = CacheLayout {
            rule,
            sparse_v: None,
            state_type: StateType::F32,
            list: slots.clone(),
            slots: layouts,
            largest_page: None,
            is_reference: false,
        };
        layout.largest_page = layout.sides().map(|(_, _, _, side)| side.page_tokens()).max();
        Ok(layout)
    }

    /// The same pages, which attention decodes to f32 instead of reading them with kernels that round queries and weights to bytes: slow, and
    /// what other arithmetic is measured against.
    #[must_use]
    pub fn decoded(&self) -> CacheLayout {
        let mut layout = self.clone();
        for slot in &mut layout.slots {
            slot.heads = slot.heads.iter().map(HeadCodecs::decoded).collect();
        }
        layout
    }

    /// Keys and values in f32, which the CPU backend attends to with sums in one order on every instruction set: what others are
    /// compared with, and what plans are made from.
    ///
    /// # Errors
    /// As [`CacheLayout::new`].
    pub fn reference(slots: &Slots) -> Result<CacheLayout, LayoutError> {
        let layout = CacheLayout::new(&Policy::reference(), slots)?;
        Ok(CacheLayout { is_reference: true, ..layout })
    }

    /// Whether it is [that](CacheLayout::reference).
    pub fn is_reference(&self) -> bool {
        self.is_reference
    }

    /// What a query reads, and in which form.
    pub fn exact_window(&self) -> &ExactWindow {
        &self.rule
    }

    /// Values of pages in which no token has this share of the largest weight are left out; without it, only those that
    /// cannot change the result.
    pub fn sparse_v(&self) -> Option<SparseV> {
        self.sparse_v
    }

    /// The numbers that recurrent state is stored in.
    pub fn state_type(&self) -> StateType {
        self.state_type
    }

    /// The model's slots, as it asked for them.
    pub fn slot_list(&self) -> &Slots {
        &self.list
    }

    /// How each of them is kept, in the same order.
    pub fn slots(&self) -> &[SlotLayout] {
        &self.slots
    }

    /// The slot that holds what `slot` reads: itself, or the one it is a view of.
    pub fn held(&self, slot: KvSlot) -> Option<&SlotLayout> {
        self.slots.get(self.owner(slot)?.index())
    }

    /// Which slot that is.
    pub fn owner(&self, slot: KvSlot) -> Option<KvSlot> {
        match self.slots.get(slot.index())?.slot.kind {
            SlotKind::View(owner) => Some(owner),
            SlotKind::KeysValues(_) | SlotKind::Latent(_) => Some(slot),
            SlotKind::Recurrent(_) => None,
        }
    }

    /// The sliding window of a slot.
    pub(crate) fn window(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot).and_then(SlotLayout::window)
    }

    /// Every side of every head: slot, kv head, side, codecs.
    pub fn sides(&self) -> impl Iterator<Item = (usize, usize, Side, &SideCodecs)> {
        self.slots.iter().enumerate().flat_map(|(slot, layout)| {
            layout.heads.iter().enumerate().flat_map(move |(head, codecs)| {
                codecs.sides().map(move |(side, codecs)| (slot, head, side, &**codecs))
            })
        })
    }

    /// Bytes per token of a long context: encoded pages with all their scales, windows aside.
    pub fn bytes_per_token(&self) -> f64 {
        self.sides().map(|(_, _, _, side)| side.codec().page_bytes() as f64 / side.page_tokens() as f64).sum()
    }
}
