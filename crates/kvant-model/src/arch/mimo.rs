//! MiMo-7B: Qwen 2 with a head that guesses further tokens.

use crate::arch::{Scope, mtp, qwen2};
use crate::description::Description;
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    qwen2::described(scope, Some(&mtp::MIMO))
}
