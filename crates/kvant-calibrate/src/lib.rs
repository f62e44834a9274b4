//! Calibration: what a model computes on some text, and the changes of basis that follow from it.
//!
//! # Statistics
//!
//! [`Statistics`] look on while passes run ([`kvant_cache::AttentionObserver`]) and add up, for every slot and kv head, the [`Moments`] of keys (after
//! their rotation), of the queries of the group and of values, and the [`Extent`] of keys and values in a rotated basis. What they
//! hold does not grow with the text: four d×d matrices a head, and where something is to be learned a [`Reservoir`] of rows.
//!
//! # Bases
//!
//! A key that is off by e changes a score by q·e. Over the queries of the group the square of that is eᵀ Σq e on average, with
//! Σq = E[q qᵀ]: an error costs by where it points. Everything in [`basis`] follows from this sum and from Σk, the covariance
//! of the keys:
//!
//! | name | what it is | for whom |
//! |---|---|---|
//! | [`mean`](basis::mean) | μ = E x | any codec: a fixed part of a vector need not be stored |
//! | [`Extent`] | the least and the largest number of each channel after a rotation, from which λ follows | a fixed scale per channel |
//! | [`balanced`](basis::balanced) | T = (Σk⁻¹ # Σq)^½: keys and queries get the same covariance | codecs that treat all directions alike |
//! | [`klt`](basis::klt) | the eigenvectors of Σq^½ Σk Σq^½, sorted by eigenvalue | codecs with a width and a scale per channel |
//! | [`learned`] | a diagonal or a rotation, trained to make the error of rows least | the one codec it was trained for |
//!
//! A value that is off by e changes what attention adds to the residual stream by W e, with the columns W of the output weights that
//! the heads of the group read it with: its square is eᵀ WᵀW e. So for values WᵀW stands where Σq does for keys.
//!
//! All of it is computed in f64 and rounded to f32 once, at the end. The tests hold every one against its definition.
#![deny(missing_docs)]

pub mod basis;
mod error;
pub mod learned;
pub mod matrix;
mod moments;
mod observed;
mod planned;
mod reservoir;

pub use error::CalibrationError;
pub use moments::{Extent, Moments};
pub use observed::{HeadStatistics, Positions, Statistics};
pub use planned::planned_head;
pub use reservoir::Reservoir;
