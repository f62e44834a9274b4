//! Who owns the memory of pages: the host, or a device.
//!
//! A [`Sequence`](crate::Sequence) knows its pages by handles alone. Where they lie in an [`Arena`], a handle has the address,
//! and reading follows one pointer. Where a device owns them, the host has no address: it asks the [`PageStore`] for a page's
//! bytes in the canonical layout, the one that codecs write and files keep, and gives it bytes in that layout. How the device
//! deals codes to its lanes is its own affair; it never rounds again.
//!
//! Everything that moves pages as a whole (fork, rollback, prefixes, files) works on either. Appending rows from the host works
//! on a device too, a page there and back for every change; a device that computes keys and values itself writes its pages
//! itself. Attention on the host reads host memory only, and says so.

use crate::arena::{Arena, ArenaError, Usage};
use crate::lease::{FileBytes, Lease};
use crate::page::{Page, PageMut};
use kvant_codec::{PageCodec, PageFormat};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a page is, by the number that its store gave such pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageKind(pub u16);

impl PageKind {
    /// Bytes in the order in which they are written: recurrent state, and whatever a store does not deal otherwise.
    pub const BYTES: PageKind = PageKind(0);
}

/// What a store is told of pages before it is asked for the first of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PageUse {
    /// Where codes, scales and zeros lie in the canonical layout.
    pub format: PageFormat,
    /// Whether it is the page of the sinks, which has fewer tokens.
    pub sinks: bool,
    /// Whether it holds latents, or the rotated parts beside them, or is of a slot that [`PageStore::swizzles`] says no to.
    pub latent: bool,
}

/// A page of a device, by the number its store gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub u64);

/// Pages that a device owns.
///
/// Bytes that are read and written here are in the canonical layout: what the codec of the page makes.
pub trait PageStore: Send + Sync {
    /// What it is called in messages, such as `cuda:0`.
    fn name(&self) -> &str;

    /// The most bytes its pages may take.
    fn cap(&self) -> Option<usize>;

    /// What it holds now.
    fn usage(&self) -> Usage;

    /// The kind of such pages. A store that deals bytes otherwise than the canonical layout learns here how.
    fn kind(&self, _: &PageUse) -> PageKind {
        PageKind::BYTES
    }

    /// Whether its kernels read closed pages of such kv heads (keys, values) in an order of their own. Where they do not, closed pages are
    /// taken as those of latents are: as their formats say.
    fn swizzles(&self, _heads: &[[Option<&dyn PageCodec>; 2]]) -> bool {
        true
    }

    /// The kind that a page was taken as.
    fn kind_of(&self, _: PageId) -> PageKind {
        PageKind::BYTES
    }

    /// Takes a page of `len` zero bytes that will hold what `kind` says.
    ///
    /// # Errors
    /// When the cap would be exceeded, or the device has no more memory.
    fn take(&self, kind: PageKind, len: usize) -> Result<PageId, ArenaError>;

    /// Gives a page of `len` bytes back: nobody refers to it any more.
    fn give_back(&self, page: PageId, len: usize);

    /// Reads all bytes of a page.
    fn read(&self, page: PageId, bytes: &mut [u8]);

    /// Writes all bytes of a page that has no other owner.
    fn write(&self, page: PageId, bytes: &[u8]);

    /// What has gone wrong, if pages that were read since cannot be trusted: a device that is lost gives zeros.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Copies one page of `len` bytes to another.
    fn copy(&self, from: PageId, to: PageId, len: usize) {
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes);
        self.write(to, &bytes);
    }
}

/// Where the pages of a sequence come from. Cloning gives another handle to the same store.
#[derive(Clone)]
pub enum Store {
    /// Memory of the host.
    Host(Arena),
    /// Memory of a device.
    Device(Arc<dyn PageStore>),
    /// Two places: one for the first layers, one for the rest.
    Split(Arc<SplitStore>),
}

/// The stores of a model whose layers run in two places.
pub struct SplitStore {
    name: String,
    first: Store,
    rest: Store,
    layer: usize,
}

impl SplitStore {
    /// `first` has the slots of the layers before `layer`, `rest` all others.
    pub fn new(first: Store, rest: Store, layer: usize) -> SplitStore {
        SplitStore { name: format!("{} and {}", first.name(), rest.name()), first, rest, layer }
    }
}

impl From<SplitStore> for Store {
    fn from(store: SplitStore) -> Store {
        Store::Split(Arc::new(store))
    }
}

impl From<Arena> for Store {
    fn from(arena: Arena) -> Store {
        Store::Host(arena)
    }
}

impl From<Arc<dyn PageStore>> for Store {
    fn from(store: Arc<dyn PageStore>) -> Store {
        Store::Device(store)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.name())
    }
}

impl Store {
    /// What it is called in messages.
    pub fn name(&self) -> &str {
        match self {
            Store::Host(_) => "host memory",
            Store::Device(store) => store.name(),
            Store::Split(store) => &store.name,
        }
    }

    /// The store that has the slots of a layer.
    pub fn of_layer(&self, layer: usize) -> &Store {
        match self {
            Store::Split(store) if layer < store.layer => store.first.of_layer(layer),
            Store::Split(store) => store.rest.of_layer(layer),
            Store::Host(_) | Store::Device(_) => self,
        }
    }

    /// Whether the host can read its pages where they lie.
    pub fn is_host(&self) -> bool {
        match self {
            Store::Host(_) => true,
            Store::Device(_) => false,
            Store::Split(store) => store.first.is_host() && store.rest.is_host(),
        }
    }

    /// Whether some of its pages, or all, lie in this device's memory.
    pub fn has_pages_of(&self, device: &dyn PageStore) -> bool {
        match self {
            Store::Host(_) => false,
            Store::Device(store) => std::ptr::addr_eq(Arc::as_ptr(store), std::ptr::from_ref(device)),
            Store::Split(store) => store.first.has_pages_of(device) || store.rest.has_pages_of(device),
        }
    }

    /// What has gone wrong on a device that has pages.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Store::Host(_) => None,
            Store::Device(store) => store.fault(),
            Store::Split(store) => store.first.fault().or_else(|| store.rest.fault()),
        }
    }

    /// The most bytes its pages may take; of two places the smaller cap is for both together.
    pub fn cap(&self) -> Option<usize> {
        match self {
            Store::Host(arena) => arena.cap(),
            Store::Device(store) => store.cap(),
            Store::Split(store) => store.first.cap().into_iter().chain(store.rest.cap()).min(),
        }
    }

    /// What it holds now.
    pub fn usage(&self) -> Usage {
        match self {
            Store::Host(arena) => arena.usage(),
            Store::Device(store) => store.usage(),
            Store::Split(store) => {
                let (first, rest) = (store.first.usage(), store.rest.usage());
                Usage {
                    pages: first.pages + rest.pages,
                    used: first.used + rest.used,
                    reserved: first.reserved + rest.reserved,
                    mapped: first.mapped + rest.mapped,
                }
            }
        }
    }

    /// Whether pages of so many bytes may be taken: [`Arena::check_room`]. Of two places the layers' own are asked.
    ///
    /// # Errors
    /// When the cap would be exceeded, or the system has not so much memory.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), ArenaError> {
        match self {
            Store::Host(arena) => arena.check_room(bytes),
            Store::Device(store) => {
                let used = store.usage().used;
                match store.cap().filter(|cap| bytes > cap.saturating_sub(used)) {
                    Some(cap) => Err(ArenaError::Full { asked: bytes, used, cap }),
                    None => Ok(()),
                }
            }
            Store::Split(store) => store.rest.check_room(bytes),
        }
    }

    /// A page of `len` zero bytes that nobody else sees. Of two places [`of_layer`](Store::of_layer) chooses; what belongs to no layer lies
    /// where the last ones do.
    ///
    /// # Errors
    /// When the cap would be exceeded, or there is no more memory.
    pub fn page(&self, kind: PageKind, len: usize) -> Result<PageMut, ArenaError> {
        match self {
            Store::Host(arena) => arena.page(len),
            Store::Device(store) => {
                let page = store.take(kind, len)?;
                Ok(PageMut::new(Lease::device(page, len, Arc::clone(store))))
            }
            Store::Split(store) => store.rest.page(kind, len),
        }
    }

    /// A page with these bytes, in the canonical layout.
    ///
    /// # Errors
    /// As [`Store::page`].
    pub fn upload(&self, kind: PageKind, bytes: &[u8]) -> Result<Page, ArenaError> {
        let mut page = self.page(kind, bytes.len())?;
        page.write(bytes);
        Ok(page.freeze())
    }

    /// A page with bytes of a file: where it lies if the host reads it, a copy on a device. `None` when the range reaches
    /// beyond the file's end.
    pub(crate) fn of_file(
        &self,
        kind: PageKind,
        file: &Arc<FileBytes>,
        range: Range<usize>,
    ) -> Option<Result<Page, ArenaError>> {
        match self {
            Store::Host(arena) => arena.mapped(file, range).map(Ok),
            Store::Device(_) => Some(self.upload(kind, file.get(range)?)),
            Store::Split(store) => store.rest.of_file(kind, file, range),
        }
    }
}
