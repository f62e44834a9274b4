//! Page codecs: rows to pages, and attention's inner loops on the pages.

use crate::memory::{borrow, handle, list, release, text};
use crate::rows::{KvantOutput, KvantRows, Shape};
use crate::status::{Failure, KvantStatus, guard};
use kvant_codec::{Accumulator, CodecError, KvSpec, PageCodec, Query, Side};
use std::ffi::c_char;

/// What a codec is for: keys and values are kept in different ways.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantSide {
    /// Keys, which queries score.
    Key = 0,
    /// Values, which are summed up.
    Value = 1,
}

impl KvantSide {
    fn of(number: i32) -> Result<Side, Failure> {
        match number {
            n if n == Self::Key as i32 => Ok(Side::Key),
            n if n == Self::Value as i32 => Ok(Side::Value),
            other => Err(Failure::argument(format!("side is {other}, and no kvant_side"))),
        }
    }
}

/// A codec of one side for heads of one width. Any number of threads may use it at once.
pub struct KvantCodec(Box<dyn PageCodec>);

impl KvantCodec {
    fn pages(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.0.page_tokens())
    }

    /// Refuses pages of another size than so many tokens have.
    fn check(&self, tokens: usize, length: usize) -> Result<(), Failure> {
        let (pages, size) = (self.pages(tokens), self.0.page_bytes());
        if tokens > 0 && pages.checked_mul(size) == Some(length) {
            return Ok(());
        }
        Err(Failure::argument(format!(
            "{length} bytes are no pages of {tokens} tokens: those are {pages} pages of {size} bytes"
        )))
    }

    /// The first token of every page, how many it has, and the page.
    fn each<'p>(&self, tokens: usize, pages: &'p [u8]) -> impl Iterator<Item = (usize, usize, &'p [u8])> {
        let own = self.0.page_tokens();
        let parts = pages.chunks_exact(self.0.page_bytes()).enumerate();
        parts.map(move |(index, page)| (index * own, own.min(tokens - index * own), page))
    }
}

fn refused(error: CodecError) -> Failure {
    let status = match error {
        CodecError::NotFinite { .. } => KvantStatus::BadNumber,
        _ => KvantStatus::InvalidArgument,
    };
    Failure::new(status, error.to_string())
}

/// Makes the codec that a spec such as "int4" or "k8v4" has for a side (a kvant_side) of heads with dim channels. Codecs that need a
/// plan cannot be had alone.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_new(
    spec: *const c_char,
    side: i32,
    dim: usize,
    codec: *mut *mut KvantCodec,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (codec, spec) = unsafe { (handle(codec, "codec")?, text(spec, "spec")?) };
        let side = KvantSide::of(side)?;
        let spec: KvSpec = spec.parse().map_err(|error| Failure::argument(format!("{error}")))?;
        let built = spec.side(side).build(side, dim);
        codec.give(KvantCodec(
            built.map_err(|error| Failure::new(KvantStatus::Unsupported, error.to_string()))?,
        ));
        Ok(())
    })
}

/// Tokens of a page; 0 for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_page_tokens(codec: *const KvantCodec) -> usize {
    // SAFETY: the caller's contract.
    unsafe { borrow(codec, "codec") }.map_or(0, |codec| codec.0.page_tokens())
}

/// Bytes of a page, everything included; 0 for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_page_bytes(codec: *const KvantCodec) -> usize {
    // SAFETY: the caller's contract.
    unsafe { borrow(codec, "codec") }.map_or(0, |codec| codec.0.page_bytes())
}

/// Encodes rows, (tokens, dim), into pages: length is page_bytes for every page_tokens tokens, rounded up. A last page that is not
/// full is filled up with its last row. Heads of the rows given do not matter.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_encode(
    codec: *const KvantCodec,
    tokens: usize,
    rows: *const KvantRows,
    pages: *mut u8,
    length: usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (codec, rows) = unsafe { (borrow(codec, "codec")?, borrow(rows, "rows")?) };
        codec.check(tokens, length)?;
        // SAFETY: the caller's contract; a list checks the pointer and the count.
        unsafe { list(pages.cast_const(), length, "pages") }?;
        let (own, dim) = (codec.0.page_tokens(), codec.0.dim());
        let mut numbers = Vec::new();
        // SAFETY: the caller's contract.
        unsafe { rows.read(Shape { rows: tokens, heads: 1, dim }, &mut numbers, "rows") }?;
        for _ in tokens..codec.pages(tokens) * own {
            numbers.extend_from_within(numbers.len() - dim..);
        }
        let mut made = vec![0; length];
        for (rows, page) in numbers.chunks_exact(own * dim).zip(made.chunks_exact_mut(codec.0.page_bytes())) {
            codec.0.encode(rows, page).map_err(refused)?;
        }
        // SAFETY: so many bytes can be written there, and they are no part of what was made here.
        unsafe { std::ptr::copy_nonoverlapping(made.as_ptr(), pages, length) };
        Ok(())
    })
}

/// Decodes pages into out, (tokens, dim). Any bytes decode to something.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_decode(
    codec: *const KvantCodec,
    tokens: usize,
    pages: *const u8,
    length: usize,
    out: *const KvantOutput,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (codec, out) = unsafe { (borrow(codec, "codec")?, borrow(out, "out")?) };
        codec.check(tokens, length)?;
        // SAFETY: the caller's contract.
        let pages = unsafe { list(pages, length, "pages") }?;
        let dim = codec.0.dim();
        let mut rows = vec![0.0; codec.pages(tokens) * codec.0.page_tokens() * dim];
        let size = codec.0.page_tokens() * dim;
        for (page, rows) in pages.chunks_exact(codec.0.page_bytes()).zip(rows.chunks_exact_mut(size)) {
            codec.0.decode(page, rows).map_err(refused)?;
        }
        // SAFETY: the caller's contract.
        unsafe { out.write(Shape { rows: tokens, heads: 1, dim }, &rows[..tokens * dim], "out") }
    })
}

/// Scores: out, (queries, tokens), gets the products of every query, (queries, dim), with every token, from the pages as they are.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_scores(
    codec: *const KvantCodec,
    tokens: usize,
    pages: *const u8,
    length: usize,
    count: usize,
    queries: *const KvantRows,
    out: *const KvantOutput,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (codec, queries, out) =
            unsafe { (borrow(codec, "codec")?, borrow(queries, "queries")?, borrow(out, "out")?) };
        codec.check(tokens, length)?;
        // SAFETY: the caller's contract.
        let pages = unsafe { list(pages, length, "pages") }?;
        let shape = Shape { rows: count, heads: 1, dim: tokens };
        out.check(shape, "out")?;
        let mut numbers = Vec::new();
        // SAFETY: the caller's contract.
        unsafe {
            queries.read(Shape { rows: count, heads: 1, dim: codec.0.dim() }, &mut numbers, "queries")
        }?;
        let mut query = Query::new();
        codec.0.prepare(&numbers, &mut query).map_err(refused)?;
        let own = codec.0.page_tokens();
        let (mut found, mut scores) = (vec![0.0; count * own], vec![0.0; count * tokens]);
        for (first, used, page) in codec.each(tokens, pages) {
            codec.0.scores(&query, page, &mut found).map_err(refused)?;
            for (row, out) in found.chunks_exact(own).zip(scores.chunks_exact_mut(tokens)) {
                out[first..first + used].copy_from_slice(&row[..used]);
            }
        }
        // SAFETY: the caller's contract.
        unsafe { out.write(shape, &scores, "out") }
    })
}

/// Sums up: out, (queries, dim), gets for every query the sum of all tokens, each times its weight, (queries, tokens), from the pages
/// as they are.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_accumulate(
    codec: *const KvantCodec,
    tokens: usize,
    pages: *const u8,
    length: usize,
    count: usize,
    weights: *const KvantRows,
    out: *const KvantOutput,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (codec, weights, out) =
            unsafe { (borrow(codec, "codec")?, borrow(weights, "weights")?, borrow(out, "out")?) };
        codec.check(tokens, length)?;
        // SAFETY: the caller's contract.
        let pages = unsafe { list(pages, length, "pages") }?;
        let shape = Shape { rows: count, heads: 1, dim: codec.0.dim() };
        out.check(shape, "out")?;
        let mut numbers = Vec::new();
        // SAFETY: the caller's contract.
        unsafe { weights.read(Shape { rows: count, heads: 1, dim: tokens }, &mut numbers, "weights") }?;
        if let Some(at) = numbers.iter().position(|weight| !weight.is_finite()) {
            let (token, value) = (at % tokens, numbers[at]);
            return Err(refused(CodecError::NotFinite { token, channel: 0, value }));
        }
        let own = codec.0.page_tokens();
        let mut sums = Accumulator::new(count, shape.dim);
        let mut padded = vec![0.0; count * own];
        for (first, used, page) in codec.each(tokens, pages) {
            // Rows that only fill up a page weigh nothing.
            padded.fill(0.0);
            for (row, weights) in padded.chunks_exact_mut(own).zip(numbers.chunks_exact(tokens)) {
                row[..used].copy_from_slice(&weights[first..first + used]);
            }
            codec.0.accumulate(&padded, page, &mut sums).map_err(refused)?;
        }
        let mut results = vec![0.0; count * shape.dim];
        codec.0.finish(&sums, &mut results).map_err(refused)?;
        // SAFETY: the caller's contract.
        unsafe { out.write(shape, &results, "out") }
    })
}

/// Frees a codec. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_codec_free(codec: *mut KvantCodec) {
    // SAFETY: the caller's contract.
    unsafe { release(codec) }
}
