//! Who writes the bytes of a side that grows: the host, from rows it was given; or a device, which is told what goes where.

use super::Fault;
use crate::layout::SideCodecs;
use crate::page::{AnyPage, PageMut};
use crate::store::PageId;
use kvant_codec::{ExactCodec, PageCodec};
use std::ops::Range;

/// Writes the bytes of pages that a side takes.
pub(crate) trait Fill {
    /// Refuses rows that cannot be stored, before anything has changed.
    fn check(&self, exact: &ExactCodec) -> Result<(), Fault>;

    /// Writes rows of the chunk as the tokens from `first` on of an exact page.
    fn write(
        &mut self,
        codec: &ExactCodec,
        page: &mut PageMut,
        first: usize,
        rows: Range<usize>,
    ) -> Result<(), Fault>;

    /// Encodes an exact page of which `have` tokens are there; the last of them stands for those that are not.
    fn encode(
        &mut self,
        codecs: &SideCodecs,
        exact: AnyPage<'_>,
        have: usize,
        page: &mut PageMut,
    ) -> Result<(), Fault>;
}

/// Vectors of one head within a chunk: vector i is at i · stride.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

impl Fill for Rows<'_> {
    fn check(&self, exact: &ExactCodec) -> Result<(), Fault> {
        let largest = exact.element().largest();
        for (row, numbers) in self.numbers.chunks(self.stride).take(self.count).enumerate() {
            let numbers = &numbers[..exact.dim()];
            // Not `all`, which stops at the first and so goes through them one by one.
            if !numbers.iter().fold(true, |fits, x| fits & (x.abs() <= largest)) {
                let value =
                    numbers.iter().copied().find(|x| x.is_nan() || x.abs() > largest).unwrap_or(f32::NAN);
                return Err(Fault::Number { row, value });
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        codec: &ExactCodec,
        page: &mut PageMut,
        first: usize,
        rows: Range<usize>,
    ) -> Result<(), Fault> {
        let numbers = &self.numbers[rows.start * self.stride..];
        Ok(page.edit(|bytes| codec.write(numbers, self.stride, first, rows.len(), bytes))?)
    }

    fn encode(
        &mut self,
        codecs: &SideCodecs,
        exact: AnyPage<'_>,
        have: usize,
        page: &mut PageMut,
    ) -> Result<(), Fault> {
        let (dim, tokens) = (codecs.codec().dim(), codecs.page_tokens());
        let mut rows = vec![0.0; tokens * dim]; // (tokens, dim)
        codecs.exact().decode(&exact.canonical(), &mut rows)?;
        for token in have..tokens {
            rows.copy_within((have - 1) * dim..have * dim, token * dim);
        }
        Ok(page.edit(|bytes| codecs.codec().encode(&rows, bytes))?)
    }
}

/// What a device has to do with the rows of a chunk, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageWork {
    /// Write rows of the chunk as the tokens from `first` on of the page of the sinks.
    Sinks {
        /// Where.
        page: PageId,
        /// Token of the page.
        first: usize,
        /// Rows of the chunk.
        rows: Range<usize>,
    },
    /// The same, of an exact page.
    Exact {
        /// Where.
        page: PageId,
        /// Token of the page.
        first: usize,
        /// Rows of the chunk.
        rows: Range<usize>,
    },
    /// Encode an exact page. The last token that is there stands for those that are not.
    Encode {
        /// From.
        exact: PageId,
        /// Tokens that are there.
        tokens: usize,
        /// To.
        page: PageId,
    },
}

/// Notes what a device has to do.
pub(crate) struct Noted<'a> {
    pub sinks: usize,
    pub note: &'a mut dyn FnMut(PageWork),
}

impl Fill for Noted<'_> {
    fn check(&self, _: &ExactCodec) -> Result<(), Fault> {
        Ok(())
    }

    fn write(
        &mut self,
        _: &ExactCodec,
        page: &mut PageMut,
        first: usize,
        rows: Range<usize>,
    ) -> Result<(), Fault> {
        let page = page.id().ok_or(Fault::NotDevice)?;
        (self.note)(if rows.end <= self.sinks {
            PageWork::Sinks { page, first, rows }
        } else {
            PageWork::Exact { page, first, rows }
        });
        Ok(())
    }

    fn encode(
        &mut self,
        _: &SideCodecs,
        exact: AnyPage<'_>,
        have: usize,
        page: &mut PageMut,
    ) -> Result<(), Fault> {
        let (exact, page) = (exact.id().ok_or(Fault::NotDevice)?, page.id().ok_or(Fault::NotDevice)?);
        (self.note)(PageWork::Encode { exact, tokens: have, page });
        Ok(())
    }
}
