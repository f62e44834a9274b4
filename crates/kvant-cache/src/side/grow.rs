//! How a side grows: rows come in exactly, pages are encoded when they are due, and what nobody will read is forgotten.

use super::SideStore;
use super::fill::Fill;
use crate::arena::{Arena, ArenaError};
use crate::exact_window::{ExactWindow, Mode};
use crate::layout::Slack;
use crate::page::{Held, PageMut};
use crate::store::Store;
use kvant_codec::{CodecError, PageCodec};

/// Why rows could not be taken.
#[derive(Debug)]
pub(crate) enum Fault {
    Memory(ArenaError),
    Codec(CodecError),
    Number {
        row: usize,
        value: f32,
    },
    /// A page of host memory where one of a device was expected.
    NotDevice,
}

impl From<ArenaError> for Fault {
    fn from(error: ArenaError) -> Fault {
        Fault::Memory(error)
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Fault {
        Fault::Codec(error)
    }
}

impl SideStore {
    /// Pages, exact and encoded, that `tokens` more than `len` need in advance.
    fn wanted(&self, rule: &ExactWindow, len: usize, tokens: usize) -> (usize, usize) {
        let page = self.codecs.page_tokens();
        let pages = |len: usize| len.saturating_sub(rule.sinks).div_ceil(page);
        let encoded = match self.codecs.is_exact() {
            true => 0,
            false => rule.encoded_at(len + tokens, page).saturating_sub(self.encoded_end()),
        };
        (pages(len + tokens) - pages(len), encoded)
    }

    /// Bytes of the pages that [`reserve`](SideStore::reserve) will take; the sinks' own is left out.
    pub(crate) fn bytes_to_reserve(&self, rule: &ExactWindow, len: usize, tokens: usize) -> usize {
        let (exact, encoded) = self.wanted(rule, len, tokens);
        let bytes = |pages: usize, spare: &[PageMut], size: usize| {
            pages.saturating_sub(spare.len()).saturating_mul(Arena::slot_bytes(size))
        };
        let exact = bytes(exact, &self.spare_exact, self.codecs.exact().page_bytes());
        exact.saturating_add(bytes(encoded, &self.spare_encoded, self.codecs.codec().page_bytes()))
    }

    /// Takes the memory that `tokens` more than `len` will need.
    pub(crate) fn reserve(
        &mut self,
        rule: &ExactWindow,
        len: usize,
        tokens: usize,
        memory: &Store,
    ) -> Result<(), ArenaError> {
        let (exact, encoded) = self.wanted(rule, len, tokens);
        while self.spare_exact.len() < exact {
            self.spare_exact.push(memory.page(self.kinds.exact, self.codecs.exact().page_bytes())?);
        }
        while self.spare_encoded.len() < encoded {
            self.spare_encoded.push(memory.page(self.kinds.encoded, self.codecs.codec().page_bytes())?);
        }
        if len < rule.sinks && tokens > 0 {
            self.sinks = Some(Held::Own(self.take_sinks(memory)?));
        }
        Ok(())
    }

    /// Takes `count` rows from position `at` on, and encodes the pages that are due; `fill` writes their bytes.
    pub(crate) fn append(
        &mut self,
        rule: &ExactWindow,
        at: usize,
        count: usize,
        fill: &mut impl Fill,
        memory: &Store,
    ) -> Result<(), Fault> {
        let tokens = self.codecs.page_tokens();
        fill.check(self.codecs.exact())?;
        if rule.mode == Mode::Strict {
            // The last page was padded; it is encoded anew with its own tokens.
            let whole = at.saturating_sub(rule.sinks) / tokens;
            self.encoded.truncate(whole.saturating_sub(self.dropped));
        }
        let first = rule.sinks.saturating_sub(at).min(count);
        if first > 0 {
            let mut page = self.take_sinks(memory)?;
            fill.write(self.codecs.sinks(), &mut page, at, 0..first)?;
            let complete = at + first == rule.sinks;
            self.sinks = Some(if complete { Held::Shared(page.freeze()) } else { Held::Own(page) });
        }
        let mut done = first;
        while done < count {
            let offset = (at + done - rule.sinks) % tokens;
            let fits = (tokens - offset).min(count - done);
            let mut page = match self.tail.take() {
                Some(page) => page,
                None => match self.spare_exact.pop() {
                    Some(page) => page,
                    None => memory.page(self.kinds.exact, self.codecs.exact().page_bytes())?,
                },
            };
            fill.write(self.codecs.exact(), &mut page, offset, done..done + fits)?;
            if offset + fits == tokens {
                self.exact.push_back(page.freeze());
            } else {
                self.tail = Some(page);
            }
            done += fits;
        }
        let end = at + count;
        self.encode(rule.encoded_at(end, tokens), end.saturating_sub(rule.sinks), fill, memory)
    }

    /// The page of the sinks, to be written.
    fn take_sinks(&mut self, memory: &Store) -> Result<PageMut, ArenaError> {
        match self.sinks.take() {
            Some(page) => page.into_mut(),
            None => memory.page(self.kinds.sinks, self.codecs.sinks().page_bytes()),
        }
    }

    /// Encodes pages up to `end`; `held` tokens follow the sinks.
    fn encode(&mut self, end: usize, held: usize, fill: &mut impl Fill, memory: &Store) -> Result<(), Fault> {
        let tokens = self.codecs.page_tokens();
        for page in self.encoded_end()..end {
            let index = page - self.exact_first;
            if let (true, Some(page)) = (self.codecs.is_exact(), self.exact.get(index)) {
                self.encoded.push_back(page.clone());
                continue;
            }
            let have = (held - page * tokens).min(tokens);
            let mut bytes = match self.spare_encoded.pop() {
                Some(page) => page,
                None => memory.page(self.kinds.encoded, self.codecs.codec().page_bytes())?,
            };
            let Some(exact) = self.exact_page(page) else { break };
            fill.encode(&self.codecs, exact, have, &mut bytes)?;
            self.encoded.push_back(bytes.freeze());
        }
        Ok(())
    }

    /// Ends a pass with `len` tokens held: forgets exact rows that no later query reads, and pages that have left the
    /// window. What `slack` says is kept besides, so that a few tokens can be taken back.
    pub(crate) fn settle(&mut self, rule: &ExactWindow, len: usize, window: Option<usize>, slack: Slack) {
        let tokens = self.codecs.page_tokens();
        let needed = rule.encoded_for(len.saturating_sub(slack.exact), tokens);
        while self.exact_first < needed && self.exact.pop_front().is_some() {
            self.exact_first += 1;
        }
        let seen = rule.first_seen(len, window).saturating_sub(slack.window);
        while !self.encoded.is_empty() && rule.page_start(self.dropped + 1, tokens) <= seen {
            self.encoded.pop_front();
            self.dropped += 1;
        }
    }
}
