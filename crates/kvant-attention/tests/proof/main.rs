//! The proof: attention against its definition in f64, over pages decoded one by one, with the visibility rule written out
//! plainly; and the same bits however the work was cut.

mod bits;
mod codecs;
mod distort;
mod matrix;
mod model;
mod oracle;
mod refusals;
mod rollback;
mod touched;
mod visible;
