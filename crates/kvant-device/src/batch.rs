//! The sequences of a pass: all of them in the device's own store, and of one layout.

use kvant_cache::{CacheError, CacheLayout, PageStore, Sequence, StateError, StateErrorKind, Store};
use std::sync::Arc;

/// The sequences of a pass, as they are looked at one by one.
#[derive(Default)]
pub struct Batch {
    lineages: Vec<u64>,
    layout: Option<Arc<CacheLayout>>,
}

impl Batch {
    /// Adds the next sequence.
    ///
    /// # Errors
    /// When its pages lie in another store than `own`, or its layout is not that of the others.
    pub fn add(&mut self, sequence: &Sequence, own: &dyn PageStore) -> Result<(), StateError> {
        let index = self.lineages.len();
        let is_own = match sequence.store() {
            Store::Device(store) => std::ptr::addr_eq(Arc::as_ptr(store), std::ptr::from_ref(own)),
            Store::Host(_) => false,
        };
        if !is_own {
            return Err(StateError::new(index, CacheError::NotDevice));
        }
        if self.layout.as_ref().is_some_and(|layout| !Arc::ptr_eq(layout, sequence.layout())) {
            let what = "the sequences of a pass have caches of their own making: fork them from one";
            return Err(StateError::new(index, StateErrorKind::Pass { what }));
        }
        self.layout.get_or_insert_with(|| Arc::clone(sequence.layout()));
        self.lineages.push(sequence.lineage());
        Ok(())
    }

    /// [`Sequence::lineage`] of each, and the layout of all.
    ///
    /// # Errors
    /// When there are none.
    pub fn finish(self) -> Result<(Vec<u64>, Arc<CacheLayout>), StateError> {
        let nobody = StateErrorKind::Pass { what: "a pass of no sequences" };
        Ok((self.lineages, self.layout.ok_or_else(|| StateError::new(0, nobody))?))
    }
}
