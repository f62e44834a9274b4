//! The layout of a file: see the module's documentation for the table.

use super::{Digest, Numerics, PART_VERSION, Signature, VERSION};
use crate::exact_window::ExactWindow;
use crate::layout::CacheLayout;
use crate::recurrent::StateType;
use crate::slot::{RecurrentShape, STATE_CHUNK, SlotKind, Slots};
use std::ops::Range;

pub(super) const MAGIC: &[u8; 8] = b"KVANTSEQ";

/// Pages start at multiples of this, as they do in an arena.
const ALIGN: usize = 64;

/// Bytes of the preamble that all versions have in common.
pub(super) const FIXED: usize = 120;

/// Bytes that are said of a part.
const PART: usize = 48;

/// Bytes of version 3 besides: numerics, whether it is a part, and the counts of recurrent state.
const VERSION_3: usize = 32 + 8 + 16;

/// Bytes from which on the length of the preamble is known.
pub(super) const OPENING: usize = 32;

/// Where the part of the preamble starts that its checksum covers.
pub(super) const COVERED: usize = 16;

/// Everything but the pages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Preamble {
    pub version: u32,
    pub signature: Signature,
    /// None before version 3.
    pub numerics: Option<Numerics>,
    /// None for a whole sequence.
    pub part: Option<Part>,
    pub rule: ExactWindow,
    pub slots: Slots,
    /// How the states of recurrent slots are stored; f32 where there are none.
    pub state_type: StateType,
    /// (slots, kv heads, keys and values).
    pub sides: Vec<SideRecord>,
    pub states: StateRecord,
    pub policy: String,
    /// Those of this file.
    pub tokens: Vec<u32>,
    pub note: Vec<u8>,
    pub checksums: Vec<u32>,
}

/// Says that what comes before is in other files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Tokens before the first of this file.
    pub from: usize,
    /// Names them all.
    pub before: Digest,
    /// Exact rows and states that a query after the end reads are here.
    pub ends: bool,
}

/// Which stretch of a sequence is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub from: usize,
    pub len: usize,
    pub ends: bool,
}

/// What is written about one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SideRecord {
    pub dropped: usize,
    /// Number of the first exact page; none, as before version 3, for the first that is not encoded.
    pub exact_first: Option<usize>,
    pub sizes: PageSizes,
}

/// Tokens and bytes of a side's pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PageSizes {
    pub tokens: usize,
    pub encoded: usize,
    pub exact: usize,
    pub sinks: usize,
}

/// Which pages a side has, by number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SidePages {
    pub sinks: bool,
    pub encoded: Range<usize>,
    /// Full pages that are not encoded, or kept exact besides.
    pub exact: Range<usize>,
    pub tail: bool,
}

/// What is written about recurrent state, the same for all recurrent slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StateRecord {
    /// Chunks in order: where they start, and how many rows are here. The last one is open at the end of the file's tokens.
    pub chunks: Vec<StateChunk>,
    /// Checkpoints, in order; each lies in a chunk.
    pub checkpoints: Vec<SavedCheckpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StateChunk {
    pub start: usize,
    pub rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SavedCheckpoint {
    pub position: usize,
    /// Kept when it is no longer among the newest.
    pub is_kept: bool,
}

impl StateChunk {
    pub(super) fn covers(&self, position: usize) -> bool {
        (self.start..=self.start + self.rows).contains(&position)
    }
}

impl StateRecord {
    /// Whether it is what a sequence of `len` tokens can have.
    pub(super) fn is_sound(&self, len: usize) -> bool {
        let chunks = &self.chunks;
        let ordered = chunks.windows(2).all(|pair| pair[0].start < pair[1].start);
        let aligned =
            chunks.iter().all(|chunk| chunk.start.is_multiple_of(STATE_CHUNK) && chunk.rows <= STATE_CHUNK);
        let ends = chunks.last().is_none_or(|chunk| chunk.start.checked_add(chunk.rows) == Some(len));
        let positions = self.checkpoints.windows(2).all(|pair| pair[0].position < pair[1].position);
        let held = |saved: &SavedCheckpoint| saved.position > 0 && self.chunk_of(saved.position).is_some();
        ordered && aligned && ends && positions && self.checkpoints.iter().all(held)
    }

    /// The chunk that has the state at a position: of two, the later, which needs no rows.
    pub(super) fn chunk_of(&self, position: usize) -> Option<usize> {
        self.chunks.iter().rposition(|chunk| chunk.covers(position))
    }

    /// Sizes of the pages of one slot, in the order of the file; `None` for sizes beyond any file.
    fn sizes(&self, shape: &RecurrentShape, state_type: StateType) -> Option<Vec<usize>> {
        let mut sizes = Vec::with_capacity(2 * self.chunks.len());
        for chunk in &self.chunks {
            if chunk.start > 0 {
                sizes.push(Some(state_type.bytes(shape.state)).filter(|bytes| *bytes < usize::MAX)?);
            }
            if chunk.rows > 0 {
                sizes.push(shape.row.checked_mul(size_of::<f32>() * chunk.rows)?);
            }
        }
        Some(sizes)
    }
}

impl PageSizes {
    /// Those of a layout's sides.
    pub(super) fn of(layout: &CacheLayout) -> impl Iterator<Item = PageSizes> {
        use kvant_codec::PageCodec;
        layout.sides().map(|(_, _, _, codecs)| PageSizes {
            tokens: codecs.page_tokens(),
            encoded: codecs.codec().page_bytes(),
            exact: codecs.exact().page_bytes(),
            sinks: codecs.sinks().page_bytes(),
        })
    }
}

impl SideRecord {
    /// The pages of a side for a stretch of tokens: those that are encoded between its ends, and those that are read exactly.
    pub(super) fn pages(&self, rule: &ExactWindow, extent: Extent) -> SidePages {
        let Extent { from, len, ends } = extent;
        let tokens = self.sizes.tokens;
        let held = len.saturating_sub(rule.sinks);
        let whole = held / tokens;
        let first = self.dropped.max(rule.encoded_at(from, tokens));
        let end = rule.encoded_at(len, tokens).max(first);
        let exact_first = self.exact_first.unwrap_or(end).min(end);
        SidePages {
            sinks: from == 0 && len > 0 && rule.sinks > 0,
            encoded: first..end,
            exact: exact_first..if ends { whole.max(end) } else { exact_first },
            tail: ends && !held.is_multiple_of(tokens),
        }
    }

    /// Sizes of those pages, in the order of the file.
    pub(super) fn sizes(&self, pages: &SidePages) -> impl Iterator<Item = usize> + use<> {
        let repeat = std::iter::repeat_n::<usize>;
        repeat(self.sizes.sinks, usize::from(pages.sinks))
            .chain(repeat(self.sizes.encoded, pages.encoded.len()))
            .chain(repeat(self.sizes.exact, pages.exact.len() + usize::from(pages.tail)))
    }
}

impl SidePages {
    pub(super) fn count(&self) -> usize {
        usize::from(self.sinks) + self.encoded.len() + self.exact.len() + usize::from(self.tail)
    }
}

impl Preamble {
    /// The stretch that this file holds.
    pub(super) fn extent(&self) -> Extent {
        let (from, ends) = self.part.map_or((0, true), |part| (part.from, part.ends));
        Extent { from, len: from + self.tokens.len(), ends }
    }

    /// From which position on no page of its stretch is missing; 0 if none is.
    pub(super) fn held_from(&self) -> usize {
        let from = self.extent().from;
        let lacking =
            self.sides.iter().filter(|side| side.dropped > self.rule.encoded_at(from, side.sizes.tokens));
        lacking.map(|side| self.rule.page_start(side.dropped, side.sizes.tokens)).max().unwrap_or(0)
    }

    /// The shapes of its recurrent slots.
    pub(super) fn states(&self) -> impl Iterator<Item = RecurrentShape> {
        self.slots.iter().filter_map(|(_, slot)| match slot.kind {
            SlotKind::Recurrent(shape) => Some(shape),
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => None,
        })
    }

    pub(super) fn len(&self) -> usize {
        let part = self.part.map_or(0, |_| PART);
        let records = match self.version {
            VERSION => {
                let states = 16 * self.states.chunks.len() + 16 * self.states.checkpoints.len();
                VERSION_3 + 48 * self.slots.len() + 32 * self.sides.len() + states
            }
            _ => 32 * self.slots.len() + 24 * self.sides.len(),
        };
        let lists = self.policy.len() + 4 * self.tokens.len() + self.note.len() + 4 * self.checksums.len();
        FIXED + part + records + lists
    }

    /// How many pages there are; `None` for more than can be counted.
    pub(super) fn page_count(&self) -> Option<usize> {
        let sides = self.sides.iter().map(|side| side.pages(&self.rule, self.extent()).count());
        let chunks = self.states.chunks.iter();
        let states: usize =
            chunks.map(|chunk| usize::from(chunk.start > 0) + usize::from(chunk.rows > 0)).sum();
        let states = states.checked_mul(self.states().count())?;
        sides.chain([states]).try_fold(0_usize, usize::checked_add)
    }

    /// Where each page lies, in order, and where the file ends; `None` for sizes beyond any file.
    pub(super) fn places(&self) -> Option<(Vec<Range<usize>>, usize)> {
        let mut places = Vec::with_capacity(self.checksums.len());
        let mut at = self.len().checked_next_multiple_of(ALIGN)?;
        let mut place = |size: usize| {
            let end = at.checked_add(size)?;
            places.push(at..end);
            at = end.checked_next_multiple_of(ALIGN)?;
            Some(())
        };
        for side in &self.sides {
            side.sizes(&side.pages(&self.rule, self.extent())).try_for_each(&mut place)?;
        }
        for shape in self.states() {
            self.states.sizes(&shape, self.state_type)?.into_iter().try_for_each(&mut place)?;
        }
        Some((places, at))
    }

    /// Its bytes in a file of `file_len`, in the newest version.
    pub(super) fn to_bytes(&self, file_len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u64).to_le_bytes());
        let small = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u32).to_le_bytes());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        number(&mut bytes, self.len());
        number(&mut bytes, file_len);
        bytes.extend(self.signature);
        for field in [
            self.tokens.len(),
            self.rule.sinks,
            self.rule.recent,
            self.rule.streaming.unwrap_or(0),
            self.slots.len(),
            self.policy.len(),
            self.note.len(),
        ] {
            number(&mut bytes, field);
        }
        bytes.extend(self.numerics.unwrap_or_default());
        let StateRecord { chunks, checkpoints } = &self.states;
        for field in [usize::from(self.part.is_some()), chunks.len(), checkpoints.len()] {
            number(&mut bytes, field);
        }
        if let Some(part) = &self.part {
            number(&mut bytes, part.from);
            number(&mut bytes, usize::from(part.ends));
            bytes.extend(part.before);
        }
        for (_, slot) in self.slots.iter() {
            let fields = match slot.kind {
                SlotKind::KeysValues(shape) => {
                    [KEYS_VALUES, shape.kv_heads, shape.key_dim, shape.value_dim, shape.window.unwrap_or(0)]
                }
                SlotKind::View(owner) => [VIEW, owner.index(), 0, 0, 0],
                SlotKind::Latent(shape) => {
                    [LATENT, shape.kv_heads, shape.latent_dim, shape.rope_dim, shape.window.unwrap_or(0)]
                }
                SlotKind::Recurrent(shape) => {
                    [RECURRENT, shape.state, shape.row, type_number(self.state_type), 0]
                }
            };
            number(&mut bytes, slot.layer);
            fields.into_iter().for_each(|field| number(&mut bytes, field));
        }
        for side in &self.sides {
            number(&mut bytes, side.dropped);
            number(&mut bytes, side.pages(&self.rule, self.extent()).exact.start);
            let PageSizes { tokens, encoded, exact, sinks } = side.sizes;
            [tokens, encoded, exact, sinks].into_iter().for_each(|field| small(&mut bytes, field));
        }
        for chunk in chunks {
            number(&mut bytes, chunk.start);
            number(&mut bytes, chunk.rows);
        }
        for checkpoint in checkpoints {
            number(&mut bytes, checkpoint.position);
            number(&mut bytes, usize::from(checkpoint.is_kept));
        }
        bytes.extend(self.policy.as_bytes());
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(&self.note);
        bytes.extend(self.checksums.iter().flat_map(|sum| sum.to_le_bytes()));
        let sum = crc32fast::hash(&bytes[COVERED..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// Kinds of slots, by number.
pub(super) const KEYS_VALUES: usize = 1;
pub(super) const VIEW: usize = 2;
pub(super) const LATENT: usize = 3;
pub(super) const RECURRENT: usize = 4;

/// Types of recurrent state, by number. Files of version 3 from before there was a choice have the first.
const STATE_TYPES: [StateType; 3] = [StateType::F32, StateType::Bf16, StateType::Int8];

fn type_number(state_type: StateType) -> usize {
    match state_type {
        StateType::F32 => 0,
        StateType::Bf16 => 1,
        StateType::Int8 => 2,
    }
}

/// The type of a number.
pub(super) fn state_type(number: usize) -> Option<StateType> {
    STATE_TYPES.get(number).copied()
}

/// The versions that are read.
pub(super) const VERSIONS: [u32; 3] = [1, PART_VERSION, VERSION];
