//! Recurrent state beside keys and values: a gated linear attention whose bits do not depend on how its tokens came.

mod budget;
mod hybrid;
mod mixer;
mod narrow;
mod prefixes;
mod sameness;
#[path = "../store/toy.rs"]
mod toy;
