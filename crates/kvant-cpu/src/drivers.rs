//! Attention drivers of a network, which passes take and give back: their buffers are kept, so that a step allocates nothing.

use kvant_attention::Attention;
use kvant_simd::Tier;
use std::sync::{Mutex, PoisonError};

/// Drivers that no pass has at the moment.
pub struct Drivers {
    tier: Tier,
    free: Mutex<Vec<Attention>>,
}

impl Drivers {
    /// None yet, of this instruction set.
    pub fn new(tier: Tier) -> Self {
        Self { tier, free: Mutex::default() }
    }

    /// Calls `work` with a driver that nobody else has.
    pub fn with<R>(&self, work: impl FnOnce(&mut Attention) -> R) -> R {
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = free().pop();
        let mut driver = taken.unwrap_or_else(|| Attention::with_tier(self.tier));
        let done = work(&mut driver);
        free().push(driver);
        done
    }
}
