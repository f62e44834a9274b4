//! The keys, or the values, of one kv head: sinks, encoded pages, exact pages and the tail.
//!
//! Exact rows are kept in pages too, of the exact codec and of the same number of tokens, so that attention reads them
//! with the same verbs. The page being filled is the *tail*; a full one is kept until no query will read it exactly.

mod cut;
mod fill;
mod grow;

pub use fill::PageWork;
pub(crate) use fill::{Noted, Rows};
pub(crate) use grow::Fault;

use crate::arena::Arena;
use crate::exact_window::ExactWindow;
use crate::layout::{SideCodecs, SideKinds};
use crate::page::{AnyPage, Held, Page, PageMut};
use crate::store::PageId;
use kvant_codec::{CodecError, PageCodec};
use std::collections::VecDeque;
use std::sync::Arc;

/// What one side of one kv head holds.
pub struct SideStore {
    codecs: Arc<SideCodecs>,
    kinds: SideKinds,
    /// Shared once all sinks are there.
    sinks: Option<Held>,
    /// Pages `dropped ..`, as bytes.
    encoded: VecDeque<Page>,
    /// Pages that have left the window.
    dropped: usize,
    /// Full pages `exact_first ..`, as exact rows; the tail comes after them.
    exact: VecDeque<Page>,
    exact_first: usize,
    tail: Option<PageMut>,
    /// Pages taken in advance, so that an append after a reserve needs no memory.
    spare_exact: Vec<PageMut>,
    spare_encoded: Vec<PageMut>,
}

/// What a side holds, apart from its codecs.
pub(crate) struct SideContents {
    pub sinks: Option<Page>,
    pub dropped: usize,
    pub encoded: VecDeque<Page>,
    pub exact_first: usize,
    pub exact: VecDeque<Page>,
    pub tail: Option<PageMut>,
}

impl SideStore {
    pub(crate) fn new(codecs: Arc<SideCodecs>, kinds: SideKinds) -> SideStore {
        SideStore {
            codecs,
            kinds,
            sinks: None,
            encoded: VecDeque::new(),
            dropped: 0,
            exact: VecDeque::new(),
            exact_first: 0,
            tail: None,
            spare_exact: Vec::new(),
            spare_encoded: Vec::new(),
        }
    }

    /// Its codecs.
    pub fn codecs(&self) -> &SideCodecs {
        &self.codecs
    }

    /// The kinds of its pages in the store it takes them from.
    pub(crate) fn kinds(&self) -> SideKinds {
        self.kinds
    }

    /// The bytes of page `page`, if they are held in host memory.
    #[inline]
    pub fn encoded(&self, page: usize) -> Option<&[u8]> {
        self.encoded.get(page.checked_sub(self.dropped)?)?.host()
    }

    /// The exact rows of page `page`, if they are held in host memory; those after the last token are zeros or stale.
    #[inline]
    pub fn exact(&self, page: usize) -> Option<&[u8]> {
        self.exact_page(page)?.host()
    }

    /// The exact rows of the sinks, in one page, if they are held in host memory.
    pub fn sinks(&self) -> Option<&[u8]> {
        self.sinks_page()?.host()
    }

    /// The number of page `page` as bytes, if it is held on a device.
    pub fn encoded_id(&self, page: usize) -> Option<PageId> {
        self.encoded_page(page)?.id()
    }

    /// The number of the exact rows of page `page`, if they are held on a device.
    pub fn exact_id(&self, page: usize) -> Option<PageId> {
        self.exact_page(page)?.id()
    }

    /// The number of the page of the sinks, if it is held on a device.
    pub fn sinks_id(&self) -> Option<PageId> {
        self.sinks_page()?.id()
    }

    /// The same pages, wherever they lie.
    pub(crate) fn encoded_page(&self, page: usize) -> Option<AnyPage<'_>> {
        self.encoded.get(page.checked_sub(self.dropped)?).map(AnyPage::Shared)
    }

    pub(crate) fn exact_page(&self, page: usize) -> Option<AnyPage<'_>> {
        let index = page.checked_sub(self.exact_first)?;
        match self.exact.get(index) {
            Some(page) => Some(AnyPage::Shared(page)),
            None if index == self.exact.len() => self.tail.as_ref().map(AnyPage::Own),
            None => None,
        }
    }

    pub(crate) fn sinks_page(&self) -> Option<AnyPage<'_>> {
        self.sinks.as_ref().map(Held::any)
    }

    /// Encoded pages that are held, oldest first.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &Page> {
        self.encoded.iter()
    }

    /// Pages before the first that is held: they have left the window.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Number of the first page that is held exactly.
    pub fn exact_first(&self) -> usize {
        self.exact_first
    }

    fn encoded_end(&self) -> usize {
        self.dropped + self.encoded.len()
    }

    /// Pages that other sequences may share.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &Page> {
        let sinks = self.sinks.iter().filter_map(|sinks| match sinks {
            Held::Shared(page) => Some(page),
            Held::Own(_) => None,
        });
        sinks.chain(&self.encoded).chain(&self.exact)
    }

    /// Pages that nobody shares.
    pub(crate) fn own(&self) -> impl Iterator<Item = &PageMut> {
        let sinks = self.sinks.iter().filter_map(|sinks| match sinks {
            Held::Own(page) => Some(page),
            Held::Shared(_) => None,
        });
        sinks.chain(&self.tail).chain(&self.spare_exact).chain(&self.spare_encoded)
    }

    /// Decodes one page, (tokens, dim): exact rows where they are held, encoded ones elsewhere, zeros where neither are.
    ///
    /// # Errors
    /// When the bytes are none of the codec's.
    pub fn decode(&self, page: usize, rows: &mut [f32]) -> Result<(), CodecError> {
        match (self.exact_page(page), self.encoded_page(page)) {
            (Some(exact), _) => self.codecs.exact().decode(&exact.canonical(), rows),
            (None, Some(encoded)) => self.codecs.codec().decode(&encoded.canonical(), rows),
            (None, None) => {
                rows.fill(0.0);
                Ok(())
            }
        }
    }

    /// Starts at a page other than the first, as after a window has moved on.
    pub(crate) fn start_at(&mut self, page: usize) {
        self.dropped = page;
        self.exact_first = page;
    }

    /// Takes out what it holds.
    pub(crate) fn take(&mut self) -> SideContents {
        let fresh = SideStore::new(Arc::clone(&self.codecs), self.kinds);
        let SideStore { sinks, dropped, encoded, exact_first, exact, tail, .. } =
            std::mem::replace(self, fresh);
        let sinks = sinks.map(|sinks| match sinks {
            Held::Shared(page) => page,
            Held::Own(page) => page.freeze(),
        });
        SideContents { sinks, dropped, encoded, exact_first, exact, tail }
    }

    /// Holds what it held when it was taken out or saved.
    pub(crate) fn restore(&mut self, contents: SideContents) {
        let SideContents { sinks, dropped, encoded, exact_first, exact, tail } = contents;
        let sinks = sinks.map(Held::Shared);
        let fresh = SideStore::new(Arc::clone(&self.codecs), self.kinds);
        *self = SideStore { sinks, dropped, encoded, exact_first, exact, tail, ..fresh };
    }

    /// Gives back memory taken in advance for more than `len` tokens.
    pub(crate) fn release(&mut self, len: usize) {
        self.spare_exact.clear();
        self.spare_encoded.clear();
        self.sinks = self.sinks.take().filter(|_| len > 0);
    }

    /// Slots in use: (bytes of encoded pages, bytes of exact ones, spare ones included). A page that is both counts as
    /// encoded.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let encoded = self.encoded.iter().map(|page| Arena::slot_bytes(page.size())).sum();
        let twice = if self.codecs.is_exact() {
            self.encoded_end().saturating_sub(self.exact_first).min(self.exact.len())
        } else {
            0
        };
        let full = self.exact.iter().skip(twice).map(Page::size);
        let own = self.tail.iter().chain(&self.spare_exact).chain(&self.spare_encoded).map(PageMut::size);
        let sinks = self.sinks.iter().map(|sinks| sinks.any().size());
        (encoded, full.chain(own).chain(sinks).map(Arena::slot_bytes).sum())
    }

    /// Rows that are held in exact form only, of `len` tokens in all.
    pub(crate) fn exact_rows(&self, rule: &ExactWindow, len: usize) -> usize {
        let held = len.saturating_sub(rule.sinks);
        len.min(rule.sinks) + held.saturating_sub(self.encoded_end() * self.codecs.page_tokens())
    }
}
