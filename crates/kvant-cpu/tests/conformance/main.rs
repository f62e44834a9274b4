//! The CPU backend is held to what every backend is: it refuses nothing.

mod exact;

use kvant_conformance::{Bounds, Host, ModelSet, Subject, reference_tolerance};
use std::sync::Arc;

kvant_conformance::conformance!(subject);

/// Half of what the reference may differ by from the oracle.
fn subject() -> Option<Subject> {
    let bounds = Bounds::F32(|architecture| reference_tolerance(architecture) / 2.0);
    Some(Subject { device: Arc::new(Host), models: ModelSet::Fixtures, short: false, bounds, refuses: &[] })
}
