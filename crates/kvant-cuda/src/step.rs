//! What decides the launches of a decode step. A step that is like one before has its graph, and nothing is noted anew: of a step of 2 ms the host
//! would take 0.07 for that.

use crate::params::Address;
use crate::pass::PassPlan;
use crate::recurrent::StateOffsets;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that nothing else has: whoever holds memory of the card has one, for addresses come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn new() -> Generation {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Generation(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The numbers that the launches of a step are made of, beside the model and its options.
///
/// **Invariant:** whatever a launch of a step is told is decided by these. A list of launches is found by them without being made.
#[derive(PartialEq)]
pub(crate) struct StepKey {
    pub plan: PassPlan,
    pub states: StateOffsets,
    /// Rows whose logits are wanted.
    pub wanted: usize,
    /// Length of lists, where their temperatures lie, and whether masses are wanted.
    pub top: Option<(usize, u64, bool)>,
    /// Activations, and what a layout has on the card.
    pub generations: [Generation; 2],
    /// Memory that grows by itself: what passes share, and tables with their strides.
    pub places: Vec<(Address, usize)>,
}
