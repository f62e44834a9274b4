//! How a side goes back, and how another comes to share its pages.

use super::SideStore;
use crate::arena::ArenaError;
use crate::exact_window::{ExactWindow, Mode};
use crate::page::{Held, PageMut};
use std::sync::Arc;

impl SideStore {
    /// The largest length up to `len` that this side can go back to as if it had never been longer.
    pub(crate) fn restorable(&self, rule: &ExactWindow, len: usize, window: Option<usize>) -> usize {
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
    pub(crate) fn cut(&mut self, rule: &ExactWindow, len: usize) -> Result<(), ArenaError> {
        let tokens = self.codecs.page_tokens();
        let held = len.saturating_sub(rule.sinks);
        if held == 0 {
            let fresh = SideStore::new(Arc::clone(&self.codecs), self.kinds);
            *self = SideStore { sinks: self.sinks.take().filter(|_| len > 0), ..fresh };
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
    pub(crate) fn fork(&self) -> Result<SideStore, ArenaError> {
        Ok(SideStore { tail: self.tail.as_ref().map(PageMut::copy).transpose()?, ..self.share()? })
    }

    /// A copy that shares all full pages, cut to `len` tokens, which [`SideStore::restorable`] has allowed. The tail is
    /// copied only if the cut goes through it.
    pub(crate) fn prefix(&self, rule: &ExactWindow, len: usize) -> Result<SideStore, ArenaError> {
        let (held, tokens) = (len.saturating_sub(rule.sinks), self.codecs.page_tokens());
        let in_tail = held / tokens == self.exact_first + self.exact.len() && !held.is_multiple_of(tokens);
        let tail = self.tail.as_ref().filter(|_| in_tail).map(PageMut::copy).transpose()?;
        let mut prefix = SideStore { tail, ..self.share()? };
        prefix.cut(rule, len)?;
        Ok(prefix)
    }

    /// A copy without tail.
    fn share(&self) -> Result<SideStore, ArenaError> {
        Ok(SideStore {
            codecs: Arc::clone(&self.codecs),
            kinds: self.kinds,
            sinks: self.sinks.as_ref().map(Held::fork).transpose()?,
            encoded: self.encoded.clone(),
            dropped: self.dropped,
            exact: self.exact.clone(),
            exact_first: self.exact_first,
            tail: None,
            spare_exact: Vec::new(),
            spare_encoded: Vec::new(),
        })
    }
}
