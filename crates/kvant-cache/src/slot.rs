//! Slots: what a model's layers keep between passes, by kind.
//!
//! A layer asks for a slot while it is described and gets a typed id. Every kind knows its bytes, how it is saved, forked and
//! rolled back; every crate matches [`SlotKind`] exhaustively, so a new kind is one arm that the compiler chases.
//!
//! ```
//! use kvant_cache::{KvShape, RecurrentShape, SlotKind, Slots};
//!
//! let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
//! let mut slots = Slots::new();
//! let attention = slots.keys_values(0, shape);
//! let shared = slots.view(1, attention); // layer 1 reads layer 0's keys and values
//! slots.recurrent(2, RecurrentShape { state: 4096, row: 192 });
//!
//! assert_eq!((slots.len(), slots.layers(), slots.owner(shared)), (3, 3, attention));
//! assert_eq!(slots.kv_slots().collect::<Vec<_>>(), [attention]);
//! assert!(matches!(slots.get(2).unwrap().kind, SlotKind::Recurrent(_)));
//! ```

use kvant_codec::Side;

/// A slot that attention appends to and reads: keys and values, a view of them, or a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvSlot(usize);

impl KvSlot {
    /// Its place in the list of slots.
    pub fn index(self) -> usize {
        self.0
    }
}

/// A slot with recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateSlot(usize);

impl StateSlot {
    /// Its place in the list of slots.
    pub fn index(self) -> usize {
        self.0
    }
}

/// The shape of an attention layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Heads that own keys and values; query heads come in equal groups (GQA), one group to each.
    pub kv_heads: usize,
    /// Channels of a key, and of a query.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Sliding window: how many tokens a query sees, itself included; `None` for all.
    pub window: Option<usize>,
}

impl KvShape {
    /// Channels of a side.
    pub fn dim(&self, side: Side) -> usize {
        match side {
            Side::Key => self.key_dim,
            Side::Value => self.value_dim,
        }
    }
}

/// One stored vector that serves both sides, and a rotated part that only scores read.
///
/// A query is `(rope_dim + latent_dim)` wide, rotated part first: its score is `q_r · r + q_l · l`, and what weights sum up is
/// `l`, `latent_dim` wide. MLA: `l` is the compressed latent (V is a slice of K), `r` the shared rotated key, the query's second
/// part has W_uk absorbed. Gemma 4's global layers (k = RoPE over a quarter of w⊙v): `l` is v, `r` the rotated quarter of k, the
/// second part of the query is w⊙q without the rotated channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentShape {
    /// Heads that own a vector: 1 for MLA.
    pub kv_heads: usize,
    /// Channels that scores and sums both read.
    pub latent_dim: usize,
    /// Channels that only scores read.
    pub rope_dim: usize,
    /// As in [`KvShape`].
    pub window: Option<usize>,
}

impl LatentShape {
    /// What is stored, as two sides: the rotated part takes the place of keys, the latent that of values.
    pub fn stored(&self) -> KvShape {
        let LatentShape { kv_heads, latent_dim, rope_dim, window } = *self;
        KvShape { kv_heads, key_dim: rope_dim, value_dim: latent_dim, window }
    }
}

/// Recurrent state: a convolution's last inputs, a linear-attention or SSM matrix.
///
/// Chunks of [`STATE_CHUNK`] tokens lie on absolute positions. The slot holds the state at the start of the open chunk and one
/// row for each of its tokens; the mixer computes a token from these two alone, so chunking, batching, prefix hits and
/// resuming change no bit, and rolling back a few tokens drops rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentShape {
    /// Numbers of the state at a chunk's start (convolution tail and matrix together).
    pub state: usize,
    /// Numbers kept for each token of the open chunk.
    pub row: usize,
}

/// Tokens of a chunk of recurrent state.
pub const STATE_CHUNK: usize = 64;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// Keys and values of an attention layer.
    KeysValues(KvShape),
    /// Another layer's slot, read only: it holds nothing of its own.
    View(KvSlot),
    /// One vector that serves both sides.
    Latent(LatentShape),
    /// Recurrent state.
    Recurrent(RecurrentShape),
}

impl SlotKind {
    /// What it is called in messages.
    pub fn name(&self) -> &'static str {
        match self {
            SlotKind::KeysValues(_) => "keys and values",
            SlotKind::View(_) => "a view of another slot",
            SlotKind::Latent(_) => "latents",
            SlotKind::Recurrent(_) => "recurrent state",
        }
    }

    /// The shape of what lies in pages, by side; `None` for kinds that have none.
    pub fn stored(&self) -> Option<KvShape> {
        match self {
            SlotKind::KeysValues(shape) => Some(*shape),
            SlotKind::Latent(shape) => Some(shape.stored()),
            SlotKind::View(_) | SlotKind::Recurrent(_) => None,
        }
    }
}

/// A slot and the layer it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The model's layer, counted from 0.
    pub layer: usize,
    /// What it holds.
    pub kind: SlotKind,
}

/// The slots of a model, in the order in which its layers asked for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(Vec<Slot>);

impl Slots {
    /// No slots yet.
    pub fn new() -> Slots {
        Slots::default()
    }

    /// A model whose layers all keep keys and values of one shape: layer i has slot i.
    pub fn uniform(layers: usize, shape: KvShape) -> Slots {
        Slots((0..layers).map(|layer| Slot { layer, kind: SlotKind::KeysValues(shape) }).collect())
    }

    /// A slot for keys and values.
    pub fn keys_values(&mut self, layer: usize, shape: KvShape) -> KvSlot {
        KvSlot(self.add(layer, SlotKind::KeysValues(shape)))
    }

    /// A view of `of`; a view of a view is one of the slot that holds.
    pub fn view(&mut self, layer: usize, of: KvSlot) -> KvSlot {
        let owner = self.owner(of);
        KvSlot(self.add(layer, SlotKind::View(owner)))
    }

    /// A slot for latents.
    pub fn latent(&mut self, layer: usize, shape: LatentShape) -> KvSlot {
        KvSlot(self.add(layer, SlotKind::Latent(shape)))
    }

    /// A slot for recurrent state.
    pub fn recurrent(&mut self, layer: usize, shape: RecurrentShape) -> StateSlot {
        StateSlot(self.add(layer, SlotKind::Recurrent(shape)))
    }

    fn add(&mut self, layer: usize, kind: SlotKind) -> usize {
        self.0.push(Slot { layer, kind });
        self.0.len() - 1
    }

    /// The slot that really holds what `slot` reads.
    pub fn owner(&self, slot: KvSlot) -> KvSlot {
        match self.get(slot.0).map(|slot| slot.kind) {
            Some(SlotKind::View(owner)) => owner,
            Some(SlotKind::KeysValues(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_)) | None => slot,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no layer keeps anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Layers up to the last that has a slot.
    pub fn layers(&self) -> usize {
        self.0.iter().map(|slot| slot.layer + 1).max().unwrap_or(0)
    }

    /// Those of the layers before this one.
    #[must_use]
    pub fn before(&self, layer: usize) -> Slots {
        Slots(self.0.iter().filter(|slot| slot.layer < layer).cloned().collect())
    }

    /// The slot at a place of the list.
    pub fn get(&self, index: usize) -> Option<&Slot> {
        self.0.get(index)
    }

    /// All of them, with their places.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &Slot)> {
        self.0.iter().enumerate()
    }

    /// The slot at a place of the list, if attention reads it.
    pub fn kv(&self, index: usize) -> Option<KvSlot> {
        match self.get(index)?.kind {
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => Some(KvSlot(index)),
            SlotKind::Recurrent(_) => None,
        }
    }

    /// The slot at a place of the list, if it has recurrent state.
    pub fn state(&self, index: usize) -> Option<StateSlot> {
        match self.get(index)?.kind {
            SlotKind::Recurrent(_) => Some(StateSlot(index)),
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => None,
        }
    }

    /// Those that hold keys and values or latents; views are left out.
    pub fn kv_slots(&self) -> impl Iterator<Item = KvSlot> {
        self.iter().filter(|(_, slot)| slot.kind.stored().is_some()).map(|(index, _)| KvSlot(index))
    }

    /// Those with recurrent state.
    pub fn state_slots(&self) -> impl Iterator<Item = StateSlot> {
        (0..self.len()).filter_map(|index| self.state(index))
    }

    /// The slots of one layer, with their places.
    pub fn of_layer(&self, layer: usize) -> impl Iterator<Item = (usize, &Slot)> {
        self.iter().filter(move |(_, slot)| slot.layer == layer)
    }
}

impl FromIterator<KvShape> for Slots {
    /// Layers that all keep keys and values, each of its own shape.
    fn from_iter<T: IntoIterator<Item = KvShape>>(shapes: T) -> Slots {
        let kinds = shapes.into_iter().map(SlotKind::KeysValues).enumerate();
        Slots(kinds.map(|(layer, kind)| Slot { layer, kind }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_views_lead_to_the_slot_that_holds() {
        let mut slots = Slots::new();
        let latent = LatentShape { kv_heads: 1, latent_dim: 512, rope_dim: 64, window: None };
        let state = slots.recurrent(0, RecurrentShape { state: 8, row: 2 });
        let owner = slots.latent(1, latent);
        let view = slots.view(2, owner);
        let second = slots.view(3, view);
        assert_eq!((slots.owner(owner), slots.owner(view), slots.owner(second)), (owner, owner, owner));
        assert_eq!(slots.get(second.index()).unwrap().kind, SlotKind::View(owner));
        assert_eq!((slots.kv(0), slots.state(0), slots.state(1)), (None, Some(state), None));
        assert_eq!(slots.kv_slots().collect::<Vec<_>>(), [owner]);
        assert_eq!(slots.state_slots().collect::<Vec<_>>(), [state]);
        assert_eq!(slots.of_layer(2).map(|(index, _)| index).collect::<Vec<_>>(), [2]);
        assert_eq!(latent.stored().dim(Side::Key), 64);
    }
}
