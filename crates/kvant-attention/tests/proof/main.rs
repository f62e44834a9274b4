//! The proof: attention against its definition in f64, over pages decoded one by one, with the visibility rule written out
//! plainly; and the same bits however the work was cut.

/// The verbs that a codec around another, its `inner`, has in common with it.
macro_rules! as_inner {
    () => {
        fn side(&self) -> kvant_codec::Side {
            self.inner.side()
        }
        fn dim(&self) -> usize {
            self.inner.dim()
        }
        fn page_tokens(&self) -> usize {
            self.inner.page_tokens()
        }
        fn page_bytes(&self) -> usize {
            self.inner.page_bytes()
        }
        fn kernels(&self) -> kvant_codec::KernelReport {
            self.inner.kernels()
        }
        fn finish(
            &self,
            sums: &kvant_codec::Accumulator,
            out: &mut [f32],
        ) -> Result<(), kvant_codec::CodecError> {
            self.inner.finish(sums, out)
        }
    };
}

mod bits;
mod codecs;
mod distort;
mod latent;
mod matrix;
mod model;
mod oracle;
mod refusals;
mod rollback;
mod touched;
mod visible;
