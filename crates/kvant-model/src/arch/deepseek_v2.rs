//! DeepSeek V2: latent attention, experts behind a softmax router whose shares are not scaled to one. GGUF files of DeepSeek V3 and
//! of GLM 4.7 Flash have its name too; their router tells them apart.

use crate::arch::{Scope, deepseek_v3, latent};
use crate::config::{Dims, Key};
use crate::description::{Description, ExpertGroups, Router};
use crate::error::{LoadError, Result};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    const METHOD: Key = Key("topk_method", "");
    let config = scope.config();
    if config.is_gguf() && has_sigmoid_router(scope)? {
        return deepseek_v3::describe(scope);
    }
    let hidden = Dims::read(config)?.hidden;
    let dense = config.count(deepseek_v3::DENSE)?.unwrap_or(0);
    let method = config.text(METHOD)?;
    let is_grouped = match method.as_deref() {
        // GGUF files have groups where they count.
        None => config.is_gguf(),
        Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(other) => {
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

/// Whether a GGUF file's router has sigmoid scores: it says so, or there is the bias that only such routers have.
fn has_sigmoid_router(scope: &Scope<'_>) -> Result<bool> {
    const FUNCTION: Key = Key("", "expert_gating_func");
    let config = scope.config();
    match config.count(FUNCTION)? {
        Some(1) => Ok(false),
        Some(2) => Ok(true),
        Some(other) => {
            Err(config.refused(FUNCTION, format!("{other} is not supported (1 softmax, 2 sigmoid)")))
        }
        None => {
            let first = config.count(deepseek_v3::DENSE)?.unwrap_or(0);
            scope.has_tensor(("", &format!("blk.{first}.exp_probs_b.bias")))
        }
    }
}
