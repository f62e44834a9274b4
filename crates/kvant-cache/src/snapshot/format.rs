//! The layout of a file: see the module's documentation for the table.

use super::{Digest, PART_VERSION, Signature, SnapshotError, VERSION};
use crate::layout::{CacheLayout, EntryShape};
use crate::visibility::{MAX_SINKS, Mode, Visibility};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"KVANTSEQ";

/// Pages start at multiples of this, as they do in an arena.
const ALIGN: usize = 64;

/// Bytes of the preamble before its first list, or before what is said of a part.
const FIXED: usize = 120;

/// Bytes that are said of a part.
const PART: usize = 48;

/// Bytes from which on the length of the preamble is known.
pub(super) const OPENING: usize = 32;

/// Where the part of the preamble starts that its checksum covers.
const COVERED: usize = 16;

/// Everything but the pages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Preamble {
    pub signature: Signature,
    /// None for a whole sequence.
    pub part: Option<Part>,
    pub rule: Visibility,
    pub shapes: Vec<EntryShape>,
    /// (entries, kv heads, keys and values).
    pub sides: Vec<SideRecord>,
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
    /// Exact rows that a query after the end reads are here.
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
    pub page_tokens: usize,
    pub encoded_bytes: usize,
    pub exact_bytes: usize,
    pub sink_bytes: usize,
}

/// Which pages a side has, by number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SidePages {
    pub sinks: bool,
    pub encoded: Range<usize>,
    /// Full pages that are not encoded.
    pub exact: Range<usize>,
    pub tail: bool,
}

impl SideRecord {
    /// The records of a layout's sides, nothing dropped.
    pub(super) fn of(layout: &CacheLayout) -> impl Iterator<Item = SideRecord> {
        use kvant_codec::PageCodec;
        layout.sides().map(|(_, _, _, codecs)| SideRecord {
            dropped: 0,
            page_tokens: codecs.page_tokens(),
            encoded_bytes: codecs.codec().page_bytes(),
            exact_bytes: codecs.exact().page_bytes(),
            sink_bytes: codecs.sinks().page_bytes(),
        })
    }

    /// The pages of a side for a stretch of tokens: those that are encoded between its ends, and those that are not yet.
    pub(super) fn pages(&self, rule: &Visibility, extent: Extent) -> SidePages {
        let Extent { from, len, ends } = extent;
        let held = len.saturating_sub(rule.sinks);
        let whole = held / self.page_tokens;
        let first = self.dropped.max(rule.encoded_at(from, self.page_tokens));
        let end = rule.encoded_at(len, self.page_tokens).max(first);
        SidePages {
            sinks: from == 0 && len > 0 && rule.sinks > 0,
            encoded: first..end,
            exact: end..if ends { whole.max(end) } else { end },
            tail: ends && !held.is_multiple_of(self.page_tokens),
        }
    }

    /// Sizes of those pages, in the order of the file.
    pub(super) fn sizes(&self, pages: &SidePages) -> impl Iterator<Item = usize> + use<> {
        let repeat = std::iter::repeat_n::<usize>;
        repeat(self.sink_bytes, usize::from(pages.sinks))
            .chain(repeat(self.encoded_bytes, pages.encoded.len()))
            .chain(repeat(self.exact_bytes, pages.exact.len() + usize::from(pages.tail)))
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
            self.sides.iter().filter(|side| side.dropped > self.rule.encoded_at(from, side.page_tokens));
        lacking.map(|side| self.rule.page_start(side.dropped, side.page_tokens)).max().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        FIXED
            + self.part.map_or(0, |_| PART)
            + 32 * self.shapes.len()
            + 24 * self.sides.len()
            + self.policy.len()
            + 4 * self.tokens.len()
            + self.note.len()
            + 4 * self.checksums.len()
    }

    /// Where each page lies, in order, and where the file ends; `None` for sizes beyond any file.
    pub(super) fn places(&self) -> Option<(Vec<Range<usize>>, usize)> {
        let mut places = Vec::with_capacity(self.checksums.len());
        let mut at = self.len().checked_next_multiple_of(ALIGN)?;
        for side in &self.sides {
            for size in side.sizes(&side.pages(&self.rule, self.extent())) {
                let end = at.checked_add(size)?;
                places.push(at..end);
                at = end.checked_next_multiple_of(ALIGN)?;
            }
        }
        Some((places, at))
    }

    /// Its bytes in a file of `file_len`.
    pub(super) fn to_bytes(&self, file_len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u64).to_le_bytes());
        let small = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u32).to_le_bytes());
        bytes.extend(MAGIC);
        bytes.extend(if self.part.is_some() { PART_VERSION } else { VERSION }.to_le_bytes());
        bytes.extend([0; 4]);
        number(&mut bytes, self.len());
        number(&mut bytes, file_len);
        bytes.extend(self.signature);
        for field in [
            self.tokens.len(),
            self.rule.sinks,
            self.rule.recent,
            self.rule.streaming.unwrap_or(0),
            self.shapes.len(),
            self.policy.len(),
            self.note.len(),
        ] {
            number(&mut bytes, field);
        }
        if let Some(part) = &self.part {
            number(&mut bytes, part.from);
            number(&mut bytes, usize::from(part.ends));
            bytes.extend(part.before);
        }
        for shape in &self.shapes {
            for field in [shape.kv_heads, shape.key_dim, shape.value_dim, shape.window.unwrap_or(0)] {
                number(&mut bytes, field);
            }
        }
        for side in &self.sides {
            number(&mut bytes, side.dropped);
            for field in [side.page_tokens, side.encoded_bytes, side.exact_bytes, side.sink_bytes] {
                small(&mut bytes, field);
            }
        }
        bytes.extend(self.policy.as_bytes());
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(&self.note);
        bytes.extend(self.checksums.iter().flat_map(|sum| sum.to_le_bytes()));
        let sum = crc32fast::hash(&bytes[COVERED..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

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
        if ![VERSION, PART_VERSION].contains(&found) {
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
        let preamble = fields.preamble(found == PART_VERSION)?;
        if fields.at != bytes.len() {
            return Err(absurd("the length of its preamble"));
        }
        Ok(preamble)
    }
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

    fn rule(&mut self) -> Option<Visibility> {
        // Sums of these and of positions stay far from overflowing.
        let mut bounded = |most: usize| self.count().filter(|number| *number <= most);
        let (sinks, recent) = (bounded(MAX_SINKS)?, bounded(i32::MAX as usize)?);
        let streaming = bounded(i32::MAX as usize)?;
        Some(Visibility {
            sinks,
            recent,
            mode: Mode::Deployed,
            streaming: (streaming > 0).then_some(streaming),
        })
    }

    fn shape(&mut self) -> Option<EntryShape> {
        Some(EntryShape {
            kv_heads: self.count()?,
            key_dim: self.count()?,
            value_dim: self.count()?,
            window: Some(self.count()?).filter(|window| *window > 0),
        })
    }

    fn side(&mut self) -> Option<SideRecord> {
        Some(SideRecord {
            dropped: self.count()?,
            page_tokens: self.size().filter(|tokens| *tokens > 0)?,
            encoded_bytes: self.size()?,
            exact_bytes: self.size()?,
            sink_bytes: self.size()?,
        })
    }

    fn part(&mut self, rule: &Visibility) -> Option<Part> {
        let from = self.count().filter(|from| *from <= i32::MAX as usize)?;
        let ends = self.count().filter(|ends| *ends <= 1)? == 1;
        let before = self.array()?;
        // A part begins at the beginning, or where pages have begun.
        (from == 0 || from > rule.sinks).then_some(Part { from, before, ends })
    }

    fn preamble(&mut self, is_part: bool) -> Result<Preamble, SnapshotError> {
        let signature = self.array().ok_or_else(|| absurd("its signature"))?;
        let held = self.count().ok_or_else(|| absurd("the number of its tokens"))?;
        let rule = self.rule().ok_or_else(|| absurd("its visibility rule"))?;
        let counts = || absurd("the lengths of its lists");
        let (entries, policy, note) = (
            self.count().ok_or_else(counts)?,
            self.count().ok_or_else(counts)?,
            self.count().ok_or_else(counts)?,
        );
        let part = match is_part {
            true => Some(self.part(&rule).ok_or_else(|| absurd("what it says of being a part"))?),
            false => None,
        };
        let shapes =
            self.list(entries, 32, Cursor::shape).ok_or_else(|| absurd("the shapes of its layers"))?;
        let sides = shapes
            .iter()
            .try_fold(0_usize, |sum, shape| sum.checked_add(shape.kv_heads.checked_mul(2)?))
            .and_then(|count| self.list(count, 24, Cursor::side))
            .ok_or_else(|| absurd("the sizes of its pages"))?;
        let policy = self.take(policy).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let policy = policy.ok_or_else(|| absurd("its policy"))?.to_owned();
        let tokens = self.numbers(held).ok_or_else(|| absurd("the number of its tokens"))?;
        let note = self.take(note).ok_or_else(|| absurd("the length of its note"))?.to_vec();
        let heads = shapes.iter().flat_map(|shape| std::iter::repeat_n(shape, 2 * shape.kv_heads));
        let mut preamble = Preamble {
            signature,
            part,
            rule,
            shapes: Vec::new(),
            sides: Vec::new(),
            policy,
            tokens,
            note,
            checksums: Vec::new(),
        };
        let extent = preamble.extent();
        let mut pages = 0_usize;
        for (side, shape) in sides.iter().zip(heads) {
            // What a part lacks, others may have; but it says nothing of pages after its own.
            let most = match part {
                Some(_) => rule.encoded_at(extent.len, side.page_tokens),
                None => extent.len / side.page_tokens,
            };
            let is_seen = || {
                let start = rule.page_start(side.dropped, side.page_tokens);
                part.is_none() && start > rule.first_seen(extent.len, shape.window)
            };
            if side.dropped > most || side.dropped > 0 && is_seen() {
                return Err(absurd("pages are missing that can be seen"));
            }
            pages = pages.saturating_add(side.pages(&rule, extent).count());
        }
        preamble.checksums = self.numbers(pages).ok_or_else(|| absurd("the number of its pages"))?;
        Ok(Preamble { shapes, sides, ..preamble })
    }
}
