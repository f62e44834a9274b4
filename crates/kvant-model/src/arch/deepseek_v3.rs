//! DeepSeek V3 and R1: latent attention, experts in groups behind a sigmoid router.

use crate::arch::{Scope, glm4_moe, latent};
use crate::config::{Dims, Key};
use crate::description::Description;
use crate::error::Result;

/// How many layers come before the first with experts.
pub const DENSE: Key = glm4_moe::DENSE_LAYERS;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let dense = config.count(DENSE)?.unwrap_or(0);
    latent::described(
        scope,
        |index| index < dense,
        |layer| latent::experts(layer, latent::sigmoid_router(layer, "mlp.gate", hidden)?),
    )
}
