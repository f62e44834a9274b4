//! GLM 4.7 Flash: DeepSeek V3 with other names for its dense layers.

use crate::arch::{Scope, deepseek_v3, latent};
use crate::config::{Dims, Key};
use crate::description::Description;
use crate::error::{LoadError, Result};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let first = config.count(deepseek_v3::DENSE)?.unwrap_or(1);
    let dense: Vec<bool> = match config.texts(Key("mlp_layer_types", ""), dims.layers)? {
        None => (0..dims.layers).map(|index| index < first).collect(),
        Some(kinds) => {
            let is_dense = |kind: String| match kind.as_str() {
                "dense" => Ok(true),
                "sparse" => Ok(false),
                other => Err(LoadError::unsupported(format!(
                    "key \"mlp_layer_types\": {other:?} is not supported"
                ))),
            };
            kinds.into_iter().map(is_dense).collect::<Result<_>>()?
        }
    };
    latent::described(
        scope,
        |index| dense.get(index).copied().unwrap_or(false),
        |layer| latent::experts(layer, latent::sigmoid_router(layer, "mlp.gate", dims.hidden)?),
    )
}
