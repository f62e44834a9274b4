//! Qwen 3.5 with experts, text side.

use crate::arch::{Scope, common, qwen3_next};
use crate::config::Dims;
use crate::description::{Activation, Description, Ffn};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    qwen3_next::described(scope, false, |layer, _| {
        Ok(Ffn::Experts(Box::new(qwen3_next::experts(layer, hidden, activation)?)))
    })
}
