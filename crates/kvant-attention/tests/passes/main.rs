//! Passes over one sequence and over many, through the interface that models use.

mod batches;
mod failures;
mod model;
mod single;
#[path = "../../../kvant-cache/tests/store/toy.rs"]
mod toy;
