//! The proof: every codec against naive f64 code that shares nothing with it, on every instruction set of this machine,
//! through the public interface only.

#[path = "../../examples/codecs/activations.rs"]
mod activations;
mod bits;
mod bound;
mod case;
mod corruption;
mod decoded;
mod error_bounds;
mod format;
mod golden;
mod kernels;
#[path = "../../examples/codecs/measure.rs"]
mod measure;
mod oracle;
mod random;
mod refusals;
mod round_trip;
mod spec;
mod trellis;
mod trial;
mod unbiased;
