//! How a side grows: rows come in exactly, pages are encoded when they are due, and what nobody will read is forgotten.

use super::SideStore;
use crate::arena::ArenaError;
use crate::layout::Slack;
use crate::page::{Held, PageMut};
use crate::store::Store;
use crate::visibility::{Mode, Visibility};
use kvant_codec::{CodecError, PageCodec};

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
    Memory(ArenaError),
    Codec(CodecError),
    Number { row: usize, value: f32 },
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
    /// Takes the memory that `tokens` more than `len` will need.
    pub(crate) fn reserve(
        &mut self,
        rule: &Visibility,
        len: usize,
        tokens: usize,
        memory: &Store,
    ) -> Result<(), ArenaError> {
        let page = self.codecs.page_tokens();
        let pages = |len: usize| len.saturating_sub(rule.sinks).div_ceil(page);
        let exact = pages(len + tokens) - pages(len);
        while self.spare_exact.len() < exact {
            self.spare_exact.push(memory.page(self.codecs.exact().page_bytes())?);
        }
        if !self.codecs.is_exact() {
            let encoded = rule.encoded_at(len + tokens, page).saturating_sub(self.encoded_end());
            while self.spare_encoded.len() < encoded {
                self.spare_encoded.push(memory.page(self.codecs.codec().page_bytes())?);
            }
        }
        if len < rule.sinks && tokens > 0 {
            self.sinks = Some(Held::Own(self.take_sinks(memory)?));
        }
        Ok(())
    }

    /// Takes rows from position `at` on, and encodes the pages that are due.
    pub(crate) fn append(
        &mut self,
        rule: &Visibility,
        at: usize,
        rows: Rows<'_>,
        memory: &Store,
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
            let mut page = self.take_sinks(memory)?;
            let sinks = self.codecs.sinks();
            page.edit(|bytes| sinks.write(rows.numbers, rows.stride, at, first, bytes))?;
            let complete = at + first == rule.sinks;
            self.sinks = Some(if complete { Held::Shared(page.freeze()) } else { Held::Own(page) });
        }
        let mut done = first;
        while done < rows.count {
            let offset = (at + done - rule.sinks) % tokens;
            let count = (tokens - offset).min(rows.count - done);
            let mut page = match self.tail.take() {
                Some(page) => page,
                None => match self.spare_exact.pop() {
                    Some(page) => page,
                    None => memory.page(self.codecs.exact().page_bytes())?,
                },
            };
            let numbers = &rows.numbers[done * rows.stride..];
            let exact = self.codecs.exact();
            page.edit(|bytes| exact.write(numbers, rows.stride, offset, count, bytes))?;
            if offset + count == tokens {
                self.exact.push_back(page.freeze());
            } else {
                self.tail = Some(page);
            }
            done += count;
        }
        let end = at + rows.count;
        self.encode(rule.encoded_at(end, tokens), end.saturating_sub(rule.sinks), memory)
    }

    /// The page of the sinks, to be written.
    fn take_sinks(&mut self, memory: &Store) -> Result<PageMut, ArenaError> {
        match self.sinks.take() {
            Some(page) => page.into_mut(),
            None => memory.page(self.codecs.sinks().page_bytes()),
        }
    }

    fn check(&self, rows: Rows<'_>, dim: usize) -> Result<(), Fault> {
        let largest = self.codecs.exact().element().largest();
        for (row, numbers) in rows.numbers.chunks(rows.stride).take(rows.count).enumerate() {
            let numbers = &numbers[..dim];
            // Not `all`, which stops at the first and so goes through them one by one.
            if !numbers.iter().fold(true, |fits, x| fits & (x.abs() <= largest)) {
                let value =
                    numbers.iter().copied().find(|x| x.is_nan() || x.abs() > largest).unwrap_or(f32::NAN);
                return Err(Fault::Number { row, value });
            }
        }
        Ok(())
    }

    /// Encodes pages up to `end`; `held` tokens follow the sinks.
    fn encode(&mut self, end: usize, held: usize, memory: &Store) -> Result<(), Fault> {
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
            let Some(exact) = self.exact_page(page) else { break };
            self.codecs.exact().decode(&exact.canonical(), &mut rows)?;
            // A page that is not full is padded with its last token.
            let have = (held - page * tokens).min(tokens);
            for token in have..tokens {
                rows.copy_within((have - 1) * dim..have * dim, token * dim);
            }
            let mut bytes = match self.spare_encoded.pop() {
                Some(page) => page,
                None => memory.page(self.codecs.codec().page_bytes())?,
            };
            bytes.edit(|bytes| self.codecs.codec().encode(&rows, bytes))?;
            self.encoded.push_back(bytes.freeze());
        }
        Ok(())
    }

    /// Ends a pass with `len` tokens held: forgets exact rows that no later query reads, and pages that have left the
    /// window. What `slack` says is kept besides, so that a few tokens can be taken back.
    pub(crate) fn settle(&mut self, rule: &Visibility, len: usize, window: Option<usize>, slack: Slack) {
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
