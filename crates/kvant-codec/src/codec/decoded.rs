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
