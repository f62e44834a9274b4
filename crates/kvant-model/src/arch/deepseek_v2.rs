//! DeepSeek V2: latent attention, experts behind a softmax router whose shares are not scaled to one.

use crate::arch::{Scope, deepseek_v3, latent};
use crate::config::{Dims, Key};
use crate::description::{Description, ExpertGroups, Router};
use crate::error::{LoadError, Result};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    const METHOD: Key = Key("topk_method", "");
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let dense = config.count(deepseek_v3::DENSE)?.unwrap_or(0);
    let method = config.text(METHOD)?.unwrap_or_else(|| "greedy".to_owned());
    let is_grouped = match method.as_str() {
        "greedy" => false,
        "group_limited_greedy" => true,
        other => {
            return Err(LoadError::unsupported(format!(
                "config.json: key {:?}: {other:?} is not supported",
                METHOD.0
            )));
        }
    };
    latent::described(
        scope,
        |index| index < dense,
        |layer| {
            let router = latent::softmax_router(layer, "mlp.gate", hidden)?;
            // A group counts as its best expert; no released model scales shares to one.
            let groups =
                router.groups.filter(|_| is_grouped).map(|groups| ExpertGroups { best: 1, ..groups });
            latent::experts(layer, Router { groups, renormalise: None, ..router })
        },
    )
}
