//! What is held, as numbers.

use super::layer::Kept;
use super::refused;
use super::tensor::View;
use kvant_cache::{ExactWindow, KvSlot, PageId, Sequence, SideStore, Store};
use kvant_codec::{PageCodec, Side};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The sequences of a batch in one layer.
pub struct Held<'a> {
    pub sequences: &'a [Sequence],
    pub slot: KvSlot,
    pub heads: usize,
    pub rule: &'a ExactWindow,
}

/// Decodes both sides of all heads of all rows; threads share the sides.
pub fn decode_sides(held: &Held<'_>, views: [View; 2], first: &[usize], places: &Kept) -> PyResult<()> {
    let failure = Mutex::new(None);
    kvant_threads::for_each(held.sequences.len() * held.heads * 2, |task| {
        let (batch, head, side) = (task / (2 * held.heads), task / 2 % held.heads, task % 2);
        let (sequence, view, first) = (&held.sequences[batch], &views[side], first[batch]);
        let len = sequence.slot_len(held.slot);
        let place = |position: usize| {
            let index = position - first;
            places.as_ref().map_or(Some(index), |places| places[batch].get(index).copied())
        };
        // Whole pages are decoded to where they belong.
        let direct = |position: usize, count: usize| match places {
            // SAFETY: this task is the only one with this row, head and side.
            None => unsafe { view.block_mut([batch, head, position.checked_sub(first)?], count) },
            Some(_) => None,
        };
        let put = |position: usize, row: &[f32]| {
            if let Some(place) = place(position).filter(|place| *place < view.shape[2]) {
                // SAFETY: this task is the only one with this row, head and side.
                unsafe { view.write([batch, head, place], row) };
            }
        };
        let side = [Side::Key, Side::Value][side];
        let done = match sequence.side(held.slot, head, side) {
            Some(side) => rows(&Pages { side, store: sequence.store() }, held.rule, first..len, direct, put),
            None => Err(format!("kv head {head} has no {side:?} side")),
        };
        if let Err(error) = done {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |error| Err(refused(error)))
}

/// The pages of a side, wherever they lie.
struct Pages<'a> {
    side: &'a SideStore,
    store: &'a Store,
}

impl<'a> Pages<'a> {
    /// A page in host memory as it is, one on a device copied.
    fn bytes(
        &self,
        host: Option<&'a [u8]>,
        device: Option<PageId>,
        codec: &dyn PageCodec,
    ) -> Option<Cow<'a, [u8]>> {
        match (host, device, self.store) {
            (Some(bytes), ..) => Some(Cow::Borrowed(bytes)),
            (None, Some(page), Store::Device(store)) => {
                let mut bytes = vec![0; codec.page_bytes()];
                store.read(page, &mut bytes);
                Some(Cow::Owned(bytes))
            }
            _ => None,
        }
    }

    fn sinks(&self) -> Option<Cow<'a, [u8]>> {
        self.bytes(self.side.sinks(), self.side.sinks_id(), self.side.codecs().sinks())
    }

    fn exact(&self, page: usize) -> Option<Cow<'a, [u8]>> {
        self.bytes(self.side.exact(page), self.side.exact_id(page), self.side.codecs().exact())
    }

    fn encoded(&self, page: usize) -> Option<Cow<'a, [u8]>> {
        self.bytes(self.side.encoded(page), self.side.encoded_id(page), self.side.codecs().codec())
    }
}

/// Decodes some positions of one side, up to its last, page by page: what queries after the last read as bytes comes from bytes.
fn rows<'a>(
    store: &Pages<'_>,
    rule: &ExactWindow,
    positions: Range<usize>,
    direct: impl Fn(usize, usize) -> Option<&'a mut [f32]>,
    mut put: impl FnMut(usize, &[f32]),
) -> Result<(), String> {
    let (codecs, Range { start: first, end: len }) = (store.side.codecs(), positions);
    let (tokens, dim) = (codecs.page_tokens(), codecs.codec().dim());
    let mut rows = vec![0.0; tokens.max(codecs.sinks().page_tokens()) * dim]; // (tokens, dim)
    if first < rule.sinks.min(len) {
        let page = store.sinks().ok_or("the sinks are not held")?;
        let rows = &mut rows[..codecs.sinks().page_tokens() * dim];
        codecs.sinks().decode(&page, rows).map_err(|error| error.to_string())?;
        let held = rows.chunks_exact(dim).enumerate().take(rule.sinks.min(len)).skip(first);
        held.for_each(|(position, row)| put(position, row));
    }
    let encoded = rule.encoded_for(len, tokens);
    let rows = &mut rows[..tokens * dim];
    for page in first.saturating_sub(rule.sinks) / tokens..len.saturating_sub(rule.sinks).div_ceil(tokens) {
        let start = rule.page_start(page, tokens);
        let as_bytes = (page < encoded).then(|| store.encoded(page)).flatten();
        let (codec, bytes) = match as_bytes {
            Some(bytes) => (codecs.codec(), bytes),
            None => {
                let gone = || format!("positions {start} to {} are not held any more", start + tokens);
                (codecs.exact() as &dyn PageCodec, store.exact(page).ok_or_else(gone)?)
            }
        };
        let is_whole = start >= first && start + tokens <= len;
        if let Some(block) = is_whole.then(|| direct(start, tokens)).flatten() {
            codec.decode(&bytes, block).map_err(|error| error.to_string())?;
            continue;
        }
        codec.decode(&bytes, rows).map_err(|error| error.to_string())?;
        for (position, row) in
            (start..len).zip(rows.chunks_exact(dim)).filter(|(position, _)| *position >= first)
        {
            put(position, row);
        }
    }
    Ok(())
}
