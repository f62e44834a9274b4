//! Reading a preamble, of any version: nothing is believed before it is checked.

use super::format::{
    COVERED, Extent, FIXED, KEYS_VALUES, LATENT, MAGIC, PageSizes, Part, Preamble, RECURRENT,
    SavedCheckpoint, SideRecord, StateChunk, StateRecord, VERSIONS, VIEW, state_type,
};
use super::{PART_VERSION, SnapshotError, VERSION};
use crate::exact_window::{ExactWindow, MAX_SINKS, Mode};
use crate::recurrent::StateType;
use crate::slot::{KvShape, LatentShape, RecurrentShape, Slots};

impl Preamble {
    /// Reads and checks the preamble, with which a file of `size` bytes begins.
    pub(super) fn parse(file: &[u8], size: u64) -> Result<Preamble, SnapshotError> {
        if !file.starts_with(MAGIC) {
            return Err(SnapshotError::Foreign);
        }
        let mut fields = Cursor { bytes: file, at: MAGIC.len() };
        let cut_off = SnapshotError::Length { got: size, want: FIXED as u64 };
        let (Some(found), Some(sum), Some(len), Some(file_len)) =
            (fields.u32(), fields.u32(), fields.u64(), fields.u64())
        else {
            return Err(cut_off);
        };
        if !VERSIONS.contains(&found) {
            return Err(SnapshotError::Version { found });
        }
        if file_len != size {
            return Err(SnapshotError::Length { got: size, want: file_len });
        }
        let Some(bytes) =
            usize::try_from(len).ok().filter(|len| *len >= FIXED).and_then(|len| file.get(..len))
        else {
            return Err(absurd("the length of its preamble"));
        };
        if crc32fast::hash(&bytes[COVERED..]) != sum {
            return Err(SnapshotError::Damaged { what: "its preamble does not match its checksum".into() });
        }
        let mut fields = Cursor { bytes, at: fields.at };
        let preamble = fields.preamble(found)?;
        if fields.at != bytes.len() {
            return Err(absurd("the length of its preamble"));
        }
        Ok(preamble)
    }

    /// Whether every side lacks only pages that others may have, or that can no longer be seen.
    fn is_complete(&self) -> bool {
        let Extent { len, .. } = self.extent();
        let shapes = self.slots.iter().filter_map(|(_, slot)| slot.kind.stored());
        let windows = shapes.flat_map(|shape| std::iter::repeat_n(shape.window, side_count(&shape)));
        self.sides.iter().zip(windows).all(|(side, window)| {
            let tokens = side.sizes.tokens;
            // What a part lacks, others may have; but it says nothing of pages after its own.
            let encoded = self.rule.encoded_at(len, tokens);
            let most = if self.part.is_some() { encoded } else { len / tokens };
            let is_seen = || {
                let start = self.rule.page_start(side.dropped, tokens);
                self.part.is_none() && start > self.rule.first_seen(len, window)
            };
            let exact_first = side.exact_first.unwrap_or(encoded);
            side.dropped <= most
                && (side.dropped == 0 || !is_seen())
                && exact_first <= encoded.max(side.dropped)
        })
    }
}

/// Sides of all heads of a slot; at most what can be counted.
fn side_count(shape: &KvShape) -> usize {
    shape.kv_heads.saturating_mul(1 + usize::from(shape.key_dim > 0))
}

fn absurd(what: &'static str) -> SnapshotError {
    SnapshotError::Absurd { what }
}

/// Reads fields one after another, never beyond the end.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok()
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    /// A number that sums with others stay far from overflowing with.
    fn bounded(&mut self, most: usize) -> Option<usize> {
        self.count().filter(|number| *number <= most)
    }

    /// A list of `count` items of `width` bytes each: what is left must hold it before anything is allocated.
    fn list<T>(
        &mut self,
        count: usize,
        width: usize,
        item: impl FnMut(&mut Cursor<'a>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut part = Cursor { bytes: self.take(count.checked_mul(width)?)?, at: 0 };
        let mut item = item;
        (0..count).map(|_| item(&mut part)).collect()
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<u32>> {
        self.list(count, 4, Cursor::u32)
    }

    fn rule(&mut self) -> Option<ExactWindow> {
        let (sinks, recent) = (self.bounded(MAX_SINKS)?, self.bounded(MOST)?);
        let streaming = self.bounded(MOST)?;
        let streaming = (streaming > 0).then_some(streaming);
        Some(ExactWindow { sinks, recent, mode: Mode::Deployed, streaming })
    }

    fn shape(&mut self) -> Option<KvShape> {
        Some(KvShape {
            kv_heads: self.count()?,
            key_dim: self.count()?,
            value_dim: self.count()?,
            window: Some(self.count()?).filter(|window| *window > 0),
        })
    }

    /// One slot of version 3: layer, kind, and four numbers. All recurrent ones store their state alike.
    fn slot(&mut self, slots: &mut Slots, state: &mut Option<StateType>) -> Option<()> {
        let (layer, kind) = (self.bounded(MOST)?, self.count()?);
        match kind {
            KEYS_VALUES => {
                slots.keys_values(layer, self.shape().filter(|shape| shape.key_dim > 0)?);
            }
            VIEW => {
                let (owner, rest) = (self.count()?, [self.count()?, self.count()?, self.count()?]);
                let owner = slots.kv(owner).filter(|owner| slots.owner(*owner) == *owner)?;
                (rest == [0; 3]).then(|| slots.view(layer, owner))?;
            }
            LATENT => {
                let (kv_heads, latent_dim, rope_dim) = (self.count()?, self.count()?, self.count()?);
                let window = Some(self.count()?).filter(|window| *window > 0);
                slots.latent(layer, LatentShape { kv_heads, latent_dim, rope_dim, window });
            }
            RECURRENT => {
                let shape = RecurrentShape { state: self.count()?, row: self.count()? };
                let own = state_type(self.count()?)?;
                let is_sound = self.count()? == 0 && state.is_none_or(|state| state == own);
                is_sound.then(|| slots.recurrent(layer, shape))?;
                *state = Some(own);
            }
            _ => return None,
        }
        Some(())
    }

    fn slots(&mut self, version: u32, count: usize) -> Option<(Slots, StateType)> {
        if version != VERSION {
            let slots = self.list(count, 32, Cursor::shape)?.into_iter().collect();
            return Some((slots, StateType::default()));
        }
        let (mut slots, mut state) = (Slots::new(), None);
        self.list(count, 48, |fields| fields.slot(&mut slots, &mut state))?;
        Some((slots, state.unwrap_or_default()))
    }

    fn side(&mut self, version: u32) -> Option<SideRecord> {
        Some(SideRecord {
            dropped: self.count()?,
            exact_first: if version == VERSION { Some(self.count()?) } else { None },
            sizes: PageSizes {
                tokens: self.size().filter(|tokens| *tokens > 0)?,
                encoded: self.size()?,
                exact: self.size()?,
                sinks: self.size()?,
            },
        })
    }

    fn part(&mut self, rule: &ExactWindow) -> Option<Part> {
        let from = self.bounded(MOST)?;
        let ends = self.bounded(1)? == 1;
        let before = self.array()?;
        // A part begins at the beginning, or where pages have begun.
        (from == 0 || from > rule.sinks).then_some(Part { from, before, ends })
    }

    fn states(&mut self, chunks: usize, checkpoints: usize) -> Option<StateRecord> {
        let chunk = |fields: &mut Cursor<'a>| {
            Some(StateChunk { start: fields.bounded(MOST)?, rows: fields.count()? })
        };
        let checkpoint = |fields: &mut Cursor<'a>| {
            Some(SavedCheckpoint { position: fields.bounded(MOST)?, is_kept: fields.bounded(1)? == 1 })
        };
        let chunks = self.list(chunks, 16, chunk)?;
        Some(StateRecord { chunks, checkpoints: self.list(checkpoints, 16, checkpoint)? })
    }

    fn preamble(&mut self, version: u32) -> Result<Preamble, SnapshotError> {
        let signature = self.array().ok_or_else(|| absurd("its signature"))?;
        let held = self.count().ok_or_else(|| absurd("the number of its tokens"))?;
        let rule = self.rule().ok_or_else(|| absurd("its exact window"))?;
        let counts = || absurd("the lengths of its lists");
        let (slots, policy, note) = (
            self.count().ok_or_else(counts)?,
            self.count().ok_or_else(counts)?,
            self.count().ok_or_else(counts)?,
        );
        let (mut numerics, mut is_part, mut chunks, mut checkpoints) = (None, version == PART_VERSION, 0, 0);
        if version == VERSION {
            numerics = Some(self.array().ok_or_else(|| absurd("its numerics"))?);
            is_part = self.bounded(1).ok_or_else(|| absurd("what it says of being a part"))? == 1;
            (chunks, checkpoints) = (self.count().ok_or_else(counts)?, self.count().ok_or_else(counts)?);
        }
        let part = match is_part {
            true => Some(self.part(&rule).ok_or_else(|| absurd("what it says of being a part"))?),
            false => None,
        };
        let (slots, state_type) =
            self.slots(version, slots).ok_or_else(|| absurd("the slots of its layers"))?;
        let sides = slots
            .iter()
            .filter_map(|(_, slot)| slot.kind.stored())
            .try_fold(0_usize, |sum, shape| sum.checked_add(side_count(&shape)))
            .and_then(|count| {
                let width = if version == VERSION { 32 } else { 24 };
                self.list(count, width, |fields| fields.side(version))
            })
            .ok_or_else(|| absurd("the sizes of its pages"))?;
        let states =
            self.states(chunks, checkpoints).ok_or_else(|| absurd("the chunks of its recurrent state"))?;
        let policy = self.take(policy).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let policy = policy.ok_or_else(|| absurd("its policy"))?.to_owned();
        let tokens = self.numbers(held).ok_or_else(|| absurd("the number of its tokens"))?;
        let note = self.take(note).ok_or_else(|| absurd("the length of its note"))?.to_vec();
        let checksums = Vec::new();
        let preamble = Preamble {
            version,
            signature,
            numerics,
            part,
            rule,
            slots,
            state_type,
            sides,
            states,
            policy,
            tokens,
            note,
            checksums,
        };
        self.check(preamble)
    }

    /// Checks what hangs together, and reads the checksums of as many pages as there must be.
    fn check(&mut self, preamble: Preamble) -> Result<Preamble, SnapshotError> {
        if !preamble.is_complete() {
            return Err(absurd("pages are missing that can be seen"));
        }
        let (len, ends) = (preamble.extent().len, preamble.extent().ends);
        let has_states = preamble.states().next().is_some();
        let is_there = !preamble.states.chunks.is_empty();
        // The state at the end is needed to go on, and only there.
        if is_there != (has_states && ends && len > 0) || !preamble.states.is_sound(len) {
            return Err(absurd("the chunks of its recurrent state"));
        }
        let pages = preamble.page_count().and_then(|pages| self.numbers(pages));
        let checksums = pages.ok_or_else(|| absurd("the number of its pages"))?;
        Ok(Preamble { checksums, ..preamble })
    }
}

/// No position or window is larger.
const MOST: usize = i32::MAX as usize;
