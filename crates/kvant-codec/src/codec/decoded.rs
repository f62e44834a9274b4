//! Any codec without its kernels: the same pages, decoded to f32 before they are scored and summed up. Kernels round queries and weights to bytes;
//! against this codec it shows what that changes.

use super::{Compound, KernelReport, PageCodec, Rounding};
use crate::error::CodecError;
use crate::format::{PageFormat, Side};
use std::sync::Arc;

/// A codec that decodes pages where the one it is made of has kernels.
pub struct DecodedCodec(Arc<dyn PageCodec>);

impl DecodedCodec {
    /// Reads and writes the pages of a codec.
    pub fn new(codec: Arc<dyn PageCodec>) -> DecodedCodec {
        DecodedCodec(codec)
    }
}

impl PageCodec for DecodedCodec {
    fn side(&self) -> Side {
        self.0.side()
    }

    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn page_tokens(&self) -> usize {
        self.0.page_tokens()
    }

    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    fn kernels(&self) -> KernelReport {
        KernelReport { scores: "decode", accumulate: "decode", ..self.0.kernels() }
    }

    fn format(&self) -> Option<PageFormat> {
        self.0.format()
    }

    fn compound(&self) -> Option<Compound<'_>> {
        self.0.compound()
    }

    fn rounding(&self) -> Option<Rounding> {
        self.0.rounding()
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        self.0.encode(rows, page)
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        self.0.decode(page, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accumulator, KvSpec, Query};

    #[test]
    fn scores_and_sums_are_those_of_the_decoded_rows() {
        let (dim, tokens) = (64, 64);
        let spec: KvSpec = "int4".parse().unwrap();
        let number = |n: usize| ((n * 37 % 101) as f32 - 50.0) / 25.0;
        let rows: Vec<f32> = (0..tokens * dim).map(number).collect();
        let query: Vec<f32> = (0..dim).map(|n| number(3 * n + 1)).collect();
        for side in [Side::Key, Side::Value] {
            let own = match side {
                Side::Key => spec.key.build(side, dim).unwrap(),
                Side::Value => spec.value.build(side, dim).unwrap(),
            };
            let own: Arc<dyn PageCodec> = Arc::from(own);
            let codec = DecodedCodec::new(Arc::clone(&own));
            assert_eq!(codec.format(), own.format());
            let (mut page, mut same) = (vec![0; codec.page_bytes()], vec![0; own.page_bytes()]);
            codec.encode(&rows, &mut page).unwrap();
            own.encode(&rows, &mut same).unwrap();
            assert_eq!(page, same);
            let mut back = vec![0.0; rows.len()];
            own.decode(&page, &mut back).unwrap();
            let dot =
                |row: &[f32]| row.iter().zip(&query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
            let (mut prepared, mut scores) = (Query::new(), vec![0.0; tokens]);
            codec.prepare(&query, &mut prepared).unwrap();
            codec.scores(&prepared, &page, &mut scores).unwrap();
            for (score, row) in scores.iter().zip(back.chunks_exact(dim)) {
                assert!((f64::from(*score) - dot(row)).abs() < 1e-4, "{side:?}");
            }
            let weights: Vec<f32> = (0..tokens).map(|n| number(n).abs()).collect();
            let (mut sums, mut out) = (Accumulator::new(1, dim), vec![0.0; dim]);
            codec.accumulate(&weights, &page, &mut sums).unwrap();
            codec.finish(&sums, &mut out).unwrap();
            for (channel, sum) in out.iter().enumerate() {
                let terms = weights.iter().zip(back.chunks_exact(dim));
                let want: f64 = terms.map(|(w, row)| f64::from(*w) * f64::from(row[channel])).sum();
                assert!((f64::from(*sum) - want).abs() < 1e-3, "{side:?} {sum} {want}");
            }
        }
    }
}
