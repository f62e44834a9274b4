//! What the pages of a slot are to the store that owns them.

use super::{HeadCodecs, SideCodecs};
use crate::store::{PageKind, PageStore, PageUse, Store};
use kvant_codec::{PageCodec, Side};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The kinds of pages that one side of one kv head takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideKinds {
    /// The page of the sinks.
    pub sinks: PageKind,
    /// Exact rows.
    pub exact: PageKind,
    /// Encoded pages.
    pub encoded: PageKind,
}

impl SideKinds {
    fn of(store: &dyn PageStore, codecs: &SideCodecs, latent: bool, swizzles: bool) -> SideKinds {
        let kind = |codec: &dyn PageCodec, sinks, latent| match codec.format() {
            Some(format) => store.kind(&PageUse { format, sinks, latent }),
            None => PageKind::BYTES,
        };
        SideKinds {
            sinks: kind(codecs.sinks(), true, latent),
            exact: kind(codecs.exact(), false, latent),
            // Exact rows that a codec keeps as they are become closed pages without being written anew.
            encoded: kind(codecs.codec(), false, latent || (!swizzles && !codecs.is_exact())),
        }
    }
}

/// The kinds of a slot's sides in the store that asked last.
#[derive(Default)]
pub(super) struct KnownKinds(Mutex<Option<StoreKinds>>);

/// A store, and what it calls the pages of this layout.
type StoreKinds = (Weak<dyn PageStore>, Arc<[SideKinds]>);

impl Clone for KnownKinds {
    /// Knows nothing: codecs may be about to change.
    fn clone(&self) -> KnownKinds {
        KnownKinds::default()
    }
}

impl KnownKinds {
    /// Those of all sides, head after head, keys first.
    pub(super) fn of(&self, store: &Store, heads: &[HeadCodecs], latent: bool) -> Arc<[SideKinds]> {
        let sides = || heads.iter().flat_map(HeadCodecs::sides);
        let store = match store {
            // A slot lies in one place.
            Store::Host(_) | Store::Split(_) => return sides().map(|_| SideKinds::default()).collect(),
            Store::Device(store) => store,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, kinds)) = &*known
            && std::ptr::addr_eq(of.as_ptr(), Arc::as_ptr(store))
        {
            return Arc::clone(kinds);
        }
        let codecs = |head| -> [Option<&dyn PageCodec>; 2] {
            [Side::Key, Side::Value].map(|side| HeadCodecs::side(head, side).map(|codecs| codecs.codec()))
        };
        let swizzles = latent || store.swizzles(&heads.iter().map(codecs).collect::<Vec<_>>());
        let kinds: Arc<[SideKinds]> =
            sides().map(|(_, codecs)| SideKinds::of(&**store, codecs, latent, swizzles)).collect();
        *known = Some((Arc::downgrade(store), Arc::clone(&kinds)));
        kinds
    }
}
