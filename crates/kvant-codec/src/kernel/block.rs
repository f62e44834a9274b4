//! Many heads at once: a page's codes expanded to bytes, as the processor's unit for whole blocks reads them.
//!
//! Only the integer sums are made differently. Queries and weights are folded and rounded as for one head, and what
//! becomes of a sum is the same code, so a head gets the same bits alone or in a block.

use super::{MixedWidth, Pages, by_width};
use crate::format::{PackedFormat, Side, Span};
use crate::pack::unpack;
use crate::scratch::Scratch;
use kvant_simd::{Block, LANES, MatrixUnit, OCTET, ROWS, Simd, Work};
use std::marker::PhantomData;

/// Fewer octets than this are not worth a block: its sums have to be stored and read again.
pub(super) const LEAST: usize = 4;

/// Tiles whose sums are kept at a time.
pub(super) const TILES: usize = 8;

/// Heads that are folded before the codes are read: folding is a chain of reductions, of which several run side by side,
/// and a unit is asked seldom and much. (AMX falls asleep after 600 cycles without a product, the next then takes 600
/// cycles more, and while it is awake vectors run at little more than half of their speed: measured on Emerald Rapids.)
pub(super) const BATCH: usize = 6 * ROWS;

/// Integers of the sums that a room has.
const SUMS: usize = 2 * BATCH * TILES * LANES;

/// Where a call folds its heads to, and, where there is a unit and enough heads to pay for it, the page's codes as bytes
/// and the sums of blocks. Dropped with the call.
pub(super) struct Room {
    scratch: Scratch,
    /// Bytes of folded heads, and of codes after them.
    heads: usize,
    codes: usize,
}

impl Room {
    /// Room for `heads` bytes of folded heads, of which there are `count`.
    ///
    /// # Safety
    /// `pages.page` is a page of the format; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn new<S: Simd>(
        format: &PackedFormat,
        joined: Option<&MixedWidth>,
        heads: usize,
        count: usize,
        pages: Pages,
    ) -> Room {
        let heads = heads.next_multiple_of(64);
        let pays = joined.is_none() || format.coded / 8 >= LEAST;
        if count < ROWS || !pays || !S::Matrix::is_there() {
            return Room { scratch: Scratch::take(heads / size_of::<f32>()), heads, codes: 0 };
        }
        let mut room = Room::sized(heads, format.coded * format.tokens, true);
        let to = room.places().1;
        for span in &format.spans {
            // MixedWidth spans lie side by side, others one after the other.
            let (first, rows, skip) = match joined {
                Some(_) => (span.first / format.side.row(), format.coded / format.side.row(), 0),
                None => (0, span.len / format.side.row(), span.first * format.tokens),
            };
            if joined.is_some() || octets(format, span) >= LEAST {
                let Pages { page, next } = pages;
                // SAFETY: the caller's page; there is a byte for every code of the spans before and of this one.
                unsafe {
                    let to = to.add(skip);
                    by_width!(S, span, Expand::<S> { format, span, page, next, to, first, rows });
                }
            }
        }
        room
    }

    /// Room for `heads` bytes of folded heads, `codes` bytes of codes, and the sums of blocks where there are any.
    #[inline(always)]
    pub(super) fn sized(heads: usize, codes: usize, sums: bool) -> Room {
        let heads = heads.next_multiple_of(64);
        let sums = if sums { SUMS } else { 0 };
        Room { scratch: Scratch::take((heads + codes) / size_of::<f32>() + sums), heads, codes }
    }

    /// Where folded heads, codes and sums go, all at once.
    #[inline(always)]
    pub(super) fn places(&mut self) -> (*mut i8, *mut u8, BlockSums) {
        let bytes = self.bytes();
        let codes = bytes.cast::<u8>().wrapping_add(self.heads);
        (bytes, codes, BlockSums(codes.wrapping_add(self.codes).cast()))
    }

    /// Where folded heads go.
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> *mut i8 {
        self.scratch.floats().as_mut_ptr().cast()
    }

    /// The codes of a span that is worth a block.
    #[inline(always)]
    pub(super) fn codes(&mut self, format: &PackedFormat, span: &Span) -> Option<*const u8> {
        let codes = self.places().1.cast_const();
        let pays = self.codes > 0 && octets(format, span) >= LEAST;
        pays.then(|| codes.wrapping_add(span.first * format.tokens))
    }

    /// The codes of all spans, joined.
    #[inline(always)]
    pub(super) fn joined_codes(&mut self) -> Option<*const u8> {
        let codes = self.places().1.cast_const();
        (self.codes > 0).then_some(codes)
    }

    /// Where sums go, if there are codes.
    #[inline(always)]
    pub(super) fn sums(&mut self) -> BlockSums {
        self.places().2
    }
}

/// Octets of a sum: of channels of a key, of tokens of a value.
pub(super) fn octets(format: &PackedFormat, span: &Span) -> usize {
    match format.side {
        Side::Key => span.len / 8,
        Side::Value => format.tokens / 8,
    }
}

/// One span's codes from units to bytes.
struct Expand<'a, S, const BITS: u32, const TABLE: bool> {
    format: &'a PackedFormat,
    span: &'a Span,
    page: *const u8,
    next: *const u8,
    /// (tiles, octets, 128).
    to: *mut u8,
    /// Where the span's rows are among those that lie side by side, and how many those are.
    first: usize,
    rows: usize,
    simd: PhantomData<S>,
}

impl<S: Simd, const BITS: u32, const TABLE: bool> Work<S> for Expand<'_, S, BITS, TABLE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { format, span, page, next, to, first, rows, .. } = self;
        let units = format.side.units(format.tokens);
        // SAFETY: the span's units lie within the page, and there is room for all of them.
        unsafe {
            let table = S::table(span.meaning.table());
            for row in 0..span.len / format.side.row() {
                for unit in 0..units {
                    let at = span.codes + (row * units + unit) * 16 * BITS as usize;
                    S::prefetch(next.wrapping_add(at));
                    let (mut a, mut b) = unpack::<S, BITS>(page.add(at));
                    if TABLE {
                        (a, b) = (S::lookup::<BITS>(table, a), S::lookup::<BITS>(table, b));
                    }
                    let octet = match format.side {
                        Side::Key => unit * rows + first + row,
                        Side::Value => row * units + unit,
                    };
                    S::Matrix::keep(to.add(octet * OCTET), a, b);
                }
            }
        }
    }
}

/// The bytes of some heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub bytes: *const i8,
    /// Bytes from one head to the next, and from one plane of a head to the next.
    pub stride: usize,
    pub plane: usize,
}

/// The integer sums of up to [`BATCH`] heads with up to [`TILES`] tiles: (blocks, planes, tiles, 16 heads, lanes).
#[derive(Clone, Copy)]
pub(super) struct BlockSums(*mut i32);

impl BlockSums {
    fn at(self, head: usize, plane: usize, tile: usize) -> *mut i32 {
        let block = (head / ROWS * 2 + plane) * TILES + tile;
        self.0.wrapping_add((block * ROWS + head % ROWS) * LANES)
    }

    /// Multiplies `count` heads, a multiple of sixteen, with codes, (tiles, octets, 128).
    ///
    /// # Safety
    /// The sums are of a room with codes; the unit has begun for these octets; there are bytes of so many heads and codes
    /// of so many tiles.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(
        self,
        planes: usize,
        heads: Heads,
        count: usize,
        codes: *const u8,
        octets: usize,
        tiles: usize,
    ) {
        for first in (0..count).step_by(ROWS) {
            for plane in 0..planes {
                let rows = heads.bytes.wrapping_add(first * heads.stride + plane * heads.plane);
                let sums = self.at(first, plane, 0);
                // SAFETY: the caller's contract, and room for all tiles.
                unsafe {
                    S::Matrix::multiply(&Block { rows, stride: heads.stride, codes, octets, tiles, sums });
                }
            }
        }
    }

    /// Both planes of a head's sums with a tile.
    ///
    /// # Safety
    /// They were multiplied; of one plane, the second is of no meaning. The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd>(self, planes: usize, head: usize, tile: usize) -> (S::I, S::I) {
        // SAFETY: the caller's contract.
        unsafe {
            let low = S::iload(self.at(head, 0, tile));
            let high = if planes == 2 { S::iload(self.at(head, 1, tile)) } else { S::izero() };
            (low, high)
        }
    }
}
