//! The keys, or the values, of one kv head: sinks, encoded pages, exact pages and the tail.
//!
//! Exact rows are kept in pages too, of the exact codec and of the same number of tokens, so that attention reads them
//! with the same verbs. The page being filled is the *tail*; a full one is kept until no query will read it exactly.

use crate::arena::{Arena, ArenaFull, Page, PageMut};
use crate::layout::SideCodecs;
use crate::visibility::{Mode, Visibility};
use kvant_codec::{CodecError, PageCodec};
use std::collections::VecDeque;
use std::sync::Arc;

/// What one side of one kv head holds.
pub struct SideStore {
    codecs: Arc<SideCodecs>,
    sinks: Option<PageMut>,
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

/// Vectors of one head within a chunk: vector i is at i · stride.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// Why rows could not be taken.
#[derive(Debug)]
pub(crate) enum Fault {
    Full(ArenaFull),
    Codec(CodecError),
    Number { row: usize, value: f32 },
}

impl From<ArenaFull> for Fault {
    fn from(full: ArenaFull) -> Fault {
        Fault::Full(full)
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Fault {
        Fault::Codec(error)
    }
}

impl SideStore {
    pub(crate) fn new(codecs: Arc<SideCodecs>) -> SideStore {
        SideStore {
            codecs,
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

    /// The bytes of page `page`, if they are held.
    pub fn encoded(&self, page: usize) -> Option<&[u8]> {
        self.encoded.get(page.checked_sub(self.dropped)?).map(|page| &**page)
    }

    /// The exact rows of page `page`, if they are held; those after the last token are zeros or stale.
    pub fn exact(&self, page: usize) -> Option<&[u8]> {
        let index = page.checked_sub(self.exact_first)?;
        match self.exact.get(index) {
            Some(page) => Some(page),
            None if index == self.exact.len() => self.tail.as_deref(),
            None => None,
        }
    }

    /// The exact rows of the sinks, in one page.
    pub fn sinks(&self) -> Option<&[u8]> {
        self.sinks.as_deref()
    }

    /// Encoded pages that are held, oldest first.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &Page> {
        self.encoded.iter()
    }

    /// Pages before the first that is held: they have left the window.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    fn encoded_end(&self) -> usize {
        self.dropped + self.encoded.len()
    }

    /// Takes the memory that `tokens` more than `len` will need.
    pub(crate) fn reserve(
        &mut self,
        rule: &Visibility,
        len: usize,
        tokens: usize,
        arena: &Arena,
    ) -> Result<(), ArenaFull> {
        let page = self.codecs.page_tokens();
        let pages = |len: usize| len.saturating_sub(rule.sinks).div_ceil(page);
        let exact = pages(len + tokens) - pages(len);
        while self.spare_exact.len() < exact {
            self.spare_exact.push(arena.page(self.codecs.exact().page_bytes())?);
        }
        if !self.codecs.is_exact() {
            let encoded = rule.encoded_at(len + tokens, page).saturating_sub(self.encoded_end());
            while self.spare_encoded.len() < encoded {
                self.spare_encoded.push(arena.page(self.codecs.codec().page_bytes())?);
            }
        }
        if self.sinks.is_none() && rule.sinks > 0 {
            self.sinks = Some(arena.page(self.codecs.sinks().page_bytes())?);
        }
        Ok(())
    }

    /// Takes rows from position `at` on, and encodes the pages that are due.
    pub(crate) fn append(
        &mut self,
        rule: &Visibility,
        at: usize,
        rows: Rows<'_>,
        arena: &Arena,
    ) -> Result<(), Fault> {
        let (dim, tokens) = (self.codecs.codec().dim(), self.codecs.page_tokens());
        self.check(rows, dim)?;
        if rule.mode == Mode::Strict {
            // The last page was padded; it is encoded anew with its own tokens.
            let whole = at.saturating_sub(rule.sinks) / tokens;
            self.encoded.truncate(whole.saturating_sub(self.dropped));
        }
        let first = rule.sinks.saturating_sub(at).min(rows.count);
        if first > 0 {
            let codec = self.codecs.sinks();
            let page = match &mut self.sinks {
                Some(page) => page,
                empty => empty.insert(arena.page(codec.page_bytes())?),
            };
            codec.write(rows.numbers, rows.stride, at, first, page)?;
        }
        let mut done = first;
        while done < rows.count {
            let offset = (at + done - rule.sinks) % tokens;
            let count = (tokens - offset).min(rows.count - done);
            let mut page = match self.tail.take() {
                Some(page) => page,
                None => match self.spare_exact.pop() {
                    Some(page) => page,
                    None => arena.page(self.codecs.exact().page_bytes())?,
                },
            };
            let numbers = &rows.numbers[done * rows.stride..];
            self.codecs.exact().write(numbers, rows.stride, offset, count, &mut page)?;
            if offset + count == tokens {
                self.exact.push_back(page.freeze());
            } else {
                self.tail = Some(page);
            }
            done += count;
        }
        let end = at + rows.count;
        self.encode(rule.encoded_at(end, tokens), end.saturating_sub(rule.sinks), arena)
    }

    fn check(&self, rows: Rows<'_>, dim: usize) -> Result<(), Fault> {
        let largest = self.codecs.exact().element().largest();
        for (row, numbers) in rows.numbers.chunks(rows.stride).take(rows.count).enumerate() {
            let numbers = &numbers[..dim];
            if !numbers.iter().all(|x| x.abs() <= largest) {
                let value =
                    numbers.iter().copied().find(|x| x.is_nan() || x.abs() > largest).unwrap_or(f32::NAN);
                return Err(Fault::Number { row, value });
            }
        }
        Ok(())
    }

    /// Encodes pages up to `end`; `held` tokens follow the sinks.
    fn encode(&mut self, end: usize, held: usize, arena: &Arena) -> Result<(), Fault> {
        if self.encoded_end() >= end {
            return Ok(());
        }
        let (dim, tokens) = (self.codecs.codec().dim(), self.codecs.page_tokens());
        let mut rows = vec![0.0; tokens * dim]; // (tokens, dim)
        for page in self.encoded_end()..end {
            let index = page - self.exact_first;
            if let (true, Some(page)) = (self.codecs.is_exact(), self.exact.get(index)) {
                self.encoded.push_back(page.clone());
                continue;
            }
            let Some(exact) = self.exact(page) else { break };
            self.codecs.exact().decode(exact, &mut rows)?;
            // A page that is not full is padded with its last token.
            let have = (held - page * tokens).min(tokens);
            for token in have..tokens {
                rows.copy_within((have - 1) * dim..have * dim, token * dim);
            }
            let mut bytes = match self.spare_encoded.pop() {
                Some(page) => page,
                None => arena.page(self.codecs.codec().page_bytes())?,
            };
            self.codecs.codec().encode(&rows, &mut bytes)?;
            self.encoded.push_back(bytes.freeze());
        }
        Ok(())
    }

    /// Ends a pass with `len` tokens held: forgets exact rows that no later query reads, and pages that have left the
    /// window. One page more than the window needs is kept, so that a few tokens can be taken back.
    pub(crate) fn settle(&mut self, rule: &Visibility, len: usize, window: Option<usize>) {
        let tokens = self.codecs.page_tokens();
        let needed = rule.encoded_for(len, tokens);
        while self.exact_first < needed && self.exact.pop_front().is_some() {
            self.exact_first += 1;
        }
        let seen = rule.first_seen(len, window);
        while !self.encoded.is_empty() && rule.page_start(self.dropped + 2, tokens) <= seen {
            self.encoded.pop_front();
            self.dropped += 1;
        }
    }

    /// The largest length up to `len` that this side can go back to as if it had never been longer.
    pub(crate) fn restorable(&self, rule: &Visibility, len: usize, window: Option<usize>) -> usize {
        let tokens = self.codecs.page_tokens();
        if len <= rule.sinks {
            return len;
        }
        let held = len - rule.sinks;
        let exact_needed = match rule.mode {
            Mode::Deployed => rule.encoded_for(len, tokens),
            Mode::Strict => held / tokens,
        };
        let none_needed = exact_needed == held.div_ceil(tokens);
        let seen = rule.first_seen(len, window);
        if self.dropped > 0 && rule.page_start(self.dropped, tokens) > seen {
            return rule.sinks;
        }
        if none_needed || exact_needed >= self.exact_first {
            return len;
        }
        // With recent rows to be read exactly, the rows before the cut are gone as well.
        if rule.recent > 0 { rule.sinks } else { rule.page_start(exact_needed, tokens) }
    }

    /// Goes back to `len` tokens, which [`SideStore::restorable`] has allowed.
    pub(crate) fn cut(&mut self, rule: &Visibility, len: usize) -> Result<(), ArenaFull> {
        let tokens = self.codecs.page_tokens();
        let held = len.saturating_sub(rule.sinks);
        if held == 0 {
            let fresh = SideStore::new(Arc::clone(&self.codecs));
            *self = SideStore { sinks: self.sinks.take(), ..fresh };
            return Ok(());
        }
        let keep = match rule.mode {
            Mode::Deployed => rule.encoded_at(len, tokens),
            Mode::Strict => held / tokens,
        };
        self.encoded.truncate(keep.saturating_sub(self.dropped));
        let (page, partial) = (held / tokens, !held.is_multiple_of(tokens));
        let Some(index) = page.checked_sub(self.exact_first) else {
            self.exact.clear();
            self.exact_first = page;
            self.tail = None;
            return Ok(());
        };
        if index < self.exact.len() {
            let cut = self.exact.drain(index..).next();
            self.tail = match cut {
                Some(page) if partial => Some(page.into_mut()?),
                _ => None,
            };
        } else if !partial {
            self.tail = None;
        }
        Ok(())
    }

    /// A copy that shares all full pages.
    pub(crate) fn fork(&self) -> Result<SideStore, ArenaFull> {
        let copy = |page: &Option<PageMut>| page.as_ref().map(PageMut::copy).transpose();
        Ok(SideStore {
            codecs: Arc::clone(&self.codecs),
            sinks: copy(&self.sinks)?,
            encoded: self.encoded.clone(),
            dropped: self.dropped,
            exact: self.exact.clone(),
            exact_first: self.exact_first,
            tail: copy(&self.tail)?,
            spare_exact: Vec::new(),
            spare_encoded: Vec::new(),
        })
    }

    /// Decodes one page, (tokens, dim): exact rows where they are held, encoded ones elsewhere.
    pub(crate) fn decode(&self, page: usize, rows: &mut [f32]) -> Result<(), CodecError> {
        match (self.exact(page), self.encoded(page)) {
            (Some(exact), _) => self.codecs.exact().decode(exact, rows),
            (None, Some(encoded)) => self.codecs.codec().decode(encoded, rows),
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

    /// Slots in use: (bytes of encoded pages, bytes of exact ones, spare ones included). A page that is both counts as
    /// encoded.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let slots = |page: &[u8]| Arena::slot_bytes(page.len());
        let encoded = self.encoded.iter().map(|page| slots(page)).sum();
        let twice = if self.codecs.is_exact() {
            self.encoded_end().saturating_sub(self.exact_first).min(self.exact.len())
        } else {
            0
        };
        let full = self.exact.iter().skip(twice).map(|page| slots(page));
        let own = self.sinks.iter().chain(&self.tail).chain(&self.spare_exact).chain(&self.spare_encoded);
        (encoded, full.chain(own.map(|page| slots(page))).sum())
    }

    /// Rows that are held in exact form only, of `len` tokens in all.
    pub(crate) fn exact_rows(&self, rule: &Visibility, len: usize) -> usize {
        let held = len.saturating_sub(rule.sinks);
        len.min(rule.sinks) + held.saturating_sub(self.encoded_end() * self.codecs.page_tokens())
    }
}
