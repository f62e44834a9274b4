//! Bases that are learned: trained for one codec, on rows that a model has computed.
//!
//! A codec rotates a row and rounds it. What is learned stands between the two: y = L R x, with the codec's own rotation R (none,
//! for a codec without one) and
//!
//! | option | L | numbers trained |
//! |---|---|---|
//! | `scaled` | a diagonal matrix: every channel is divided by its own number e^θ | d |
//! | `cayley` | (I − A)(I + A)⁻¹ with A = −Aᵀ: every rotation that turns nothing by half a circle | d(d − 1)/2 |
//! | `householder` | a product of d/2 reflections I − 2vvᵀ/‖v‖² | d²/2 |
//!
//! All start as the identity, so that training starts from the codec without them. What is made small, by Adam, is the mean square
//! of L⁻¹(Q(y) − y), which is the error of the row itself, because R keeps lengths.
//!
//! # How rounding is trained through
//!
//! Q rounds y/s to a whole number, and s follows from the largest numbers of a group. Rounding has no derivative to speak of, so it is
//! passed straight through: the rounding residual r of a number counts as fixed while y changes. Then Q(y) − y = s·r, and only s is
//! left to be trained: the loss falls when the numbers that set the scales get smaller, weighed by what is rounded under them.
//! Passing the whole of Q straight through would train nothing: no rotation changes the length of a row, and the derivative of
//! the error would be zero in every direction that stays a rotation. (The rounding of scales to 16 bits is left out.)
//!
//! **Invariant:** what is learned depends on the rows, the codec and the seed alone; one training is one thread's work.

mod adam;
mod rounding;
mod training;
mod turn;

pub use training::{Learning, learn, learnable};
