//! Qwen 3.5, text side: Qwen3-Next with the DeltaNets' projections apart, and a dense feed-forward part.

use crate::arch::{Scope, common, qwen3_next};
use crate::config::Dims;
use crate::description::{Activation, Description, Ffn};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let (hidden, inner) = (Dims::read(config)?.hidden, config.size(common::INNER)?);
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    qwen3_next::described(scope, false, |layer, _| {
        Ok(Ffn::Dense(common::gated_mlp(layer, hidden, inner, activation, false)?))
    })
}
