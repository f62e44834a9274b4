//! What a slot of a sequence holds, by kind.

use crate::error::CacheError;
use crate::layout::{HeadCodecs, SlotLayout};
use crate::page::{Page, PageMut};
use crate::recurrent::{RecurrentState, StateType};
use crate::side::{Fault, SideStore};
use crate::slot::SlotKind;
use crate::store::Store;
use kvant_codec::Side;
use std::sync::{Arc, Mutex, PoisonError};

/// What a slot holds.
pub(super) enum Contents {
    Pages(Paged),
    /// Another slot has it.
    View,
    Recurrent(Box<RecurrentState>),
}

/// Sides in pages.
pub(super) struct Paged {
    /// Tokens appended: those held and those of the pass.
    pub len: usize,
    /// (kv heads, keys and values).
    pub sides: Vec<SideStore>,
}

impl Contents {
    pub(super) fn new(slot: &SlotLayout, state: StateType, slack: usize, memory: &Store) -> Contents {
        let memory = memory.of_layer(slot.layer());
        match *slot.kind() {
            SlotKind::KeysValues(_) | SlotKind::Latent(_) => {
                let sides = slot.heads().iter().flat_map(HeadCodecs::sides);
                let kinds = slot.kinds(memory);
                let side =
                    |((_, codecs), kinds): ((_, &Arc<_>), &_)| SideStore::new(Arc::clone(codecs), *kinds);
                let sides = sides.zip(&*kinds).map(side).collect();
                Contents::Pages(Paged { len: 0, sides })
            }
            SlotKind::View(_) => Contents::View,
            SlotKind::Recurrent(shape) => {
                let zeros = Arc::clone(slot.zeros());
                let state = RecurrentState::new(slot.layer(), shape, state, slack, zeros, memory.clone());
                Contents::Recurrent(Box::new(state))
            }
        }
    }

    /// Tokens appended; none for a view.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Contents::Pages(paged) => Some(paged.len),
            Contents::View => None,
            Contents::Recurrent(state) => Some(state.len()),
        }
    }

    pub(super) fn state(&self) -> Option<&RecurrentState> {
        match self {
            Contents::Recurrent(state) => Some(state),
            Contents::Pages(_) | Contents::View => None,
        }
    }

    pub(super) fn state_mut(&mut self) -> Option<&mut RecurrentState> {
        match self {
            Contents::Recurrent(state) => Some(state),
            Contents::Pages(_) | Contents::View => None,
        }
    }

    pub(super) fn sides(&self) -> &[SideStore] {
        match self {
            Contents::Pages(paged) => &paged.sides,
            Contents::View | Contents::Recurrent(_) => &[],
        }
    }

    pub(super) fn sides_mut(&mut self) -> &mut [SideStore] {
        match self {
            Contents::Pages(paged) => &mut paged.sides,
            Contents::View | Contents::Recurrent(_) => &mut [],
        }
    }

    /// Pages that nobody shares.
    pub(super) fn own(&self) -> impl Iterator<Item = &PageMut> {
        let state = self.state().into_iter().flat_map(RecurrentState::own);
        self.sides().iter().flat_map(SideStore::own).chain(state)
    }

    /// Pages that other sequences may share.
    pub(super) fn shared(&self) -> impl Iterator<Item = &Page> {
        let state = self.state().into_iter().flat_map(RecurrentState::shared);
        self.sides().iter().flat_map(SideStore::shared).chain(state)
    }
}

impl Fault {
    /// What went wrong at this place, with rows from position `at` on.
    pub(super) fn at(self, layer: usize, (head, side): (usize, Side), at: usize) -> CacheError {
        match self {
            Fault::Memory(error) => CacheError::Memory(error),
            Fault::Codec(source) => CacheError::Codec { layer, head, side, source },
            Fault::NotDevice => CacheError::NotDevice,
            Fault::Number { row, value } => {
                CacheError::Number { layer, head, side, position: at + row, value }
            }
        }
    }
}

/// Runs work on every side of a slot, by its place among them, and names the place of what went wrong first.
pub(crate) fn each_side(
    layout: &SlotLayout,
    at: usize,
    sides: &mut [SideStore],
    shared: bool,
    work: impl Fn(usize, &mut SideStore) -> Result<(), Fault> + Sync,
) -> Result<(), CacheError> {
    let per_head = layout.sides_per_head();
    let place = |index: usize, store: &SideStore| (index / per_head, store.codecs().codec().side());
    let named = |place: (usize, Side), fault: Fault| fault.at(layout.layer(), place, at);
    if !shared {
        return sides.iter_mut().enumerate().try_for_each(|(index, store)| {
            work(index, store).map_err(|fault| named(place(index, store), fault))
        });
    }
    type First = Option<(usize, (usize, Side), Fault)>;
    let first: Mutex<First> = Mutex::new(None);
    kvant_threads::for_each_chunk(sides, 1, |index, stores| {
        for store in stores {
            if let Err(fault) = work(index, store) {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, ..)| index < *other) {
                    *first = Some((index, place(index, store), fault));
                }
            }
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, place, fault)) => Err(named(place, fault)),
        None => Ok(()),
    }
}
