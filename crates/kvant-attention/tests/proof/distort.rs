//! A codec that is exact about something else: encoded rows are far from what was given. Whoever reads exact rows where
//! encoded ones are due, or the other way round, is found out at once.

use kvant_codec::{Accumulator, CodecError, KvSpec, PageCodec, Query, Side, Tier};

pub struct Distort {
    inner: Box<dyn PageCodec>,
    how: How,
}

enum How {
    /// Other numbers than the rows that were given.
    Rows,
    /// The rows, with this bit of this byte the other way.
    Byte(usize, u32),
    /// The rows.
    Right,
}

impl Distort {
    pub fn new(side: Side, dim: usize, page: usize, tier: Tier) -> Distort {
        let spec: KvSpec = format!("f32:p{page}").parse().unwrap();
        Distort {
            inner: spec.side(side).build_with(side, dim, &Default::default(), tier).unwrap(),
            how: How::Rows,
        }
    }

    /// Another codec that stores one bit wrongly.
    pub fn bit(inner: Box<dyn PageCodec>, byte: usize) -> Distort {
        Distort { inner, how: How::Byte(byte, byte as u32 % 8) }
    }

    /// Another codec that stores the highest bit of a byte wrongly, if of any.
    pub fn high_bit(inner: Box<dyn PageCodec>, byte: Option<usize>) -> Distort {
        Distort { inner, how: byte.map_or(How::Right, |byte| How::Byte(byte, 7)) }
    }
}

impl PageCodec for Distort {
    as_inner!();
    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        match self.how {
            How::Rows => {
                let other: Vec<f32> =
                    rows.iter().enumerate().map(|(i, x)| 0.3 - 0.7 * x + 0.1 * (i % 7) as f32).collect();
                self.inner.encode(&other, page)
            }
            How::Byte(byte, bit) => {
                self.inner.encode(rows, page)?;
                page[byte] ^= 1 << bit;
                Ok(())
            }
            How::Right => self.inner.encode(rows, page),
        }
    }
    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        self.inner.decode(page, rows)
    }
    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        self.inner.prepare(queries, query)
    }
    fn scores_ahead(
        &self,
        q: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        self.inner.scores_ahead(q, page, next, scores)
    }
    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        self.inner.accumulate_ahead(weights, page, next, sums)
    }
}
