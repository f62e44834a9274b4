//! Mistral 4, text side: latent attention with queries that grow with their position, experts in one tensor.

use crate::arch::qwen3_moe::EXPERT_INNER;
use crate::arch::{Scope, common, deepseek_v3, latent};
use crate::config::Dims;
use crate::description::{Activation, Description, Inner, Linear, Matrix, Mlp, Moe, TensorRef};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let dense = config.count(deepseek_v3::DENSE)?.unwrap_or(0);
    latent::described(scope, |index| index < dense, |layer| experts(layer, hidden))
}

fn experts(layer: &Scope<'_>, hidden: usize) -> Result<Moe> {
    let config = layer.config();
    if config.is_gguf() {
        return latent::experts(layer, latent::softmax_router(layer, "", hidden)?);
    }
    let router = latent::softmax_router(layer, "mlp.gate", hidden)?;
    let (count, inner) = (router.linear.outputs(), config.size(EXPERT_INNER)?);
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let both = layer.tensor(("mlp.experts.gate_up_proj", ""), &[count, 2 * inner, hidden])?;
    let down = layer.tensor(("mlp.experts.down_proj", ""), &[count, hidden, inner])?;
    let of = |tensor: &TensorRef, expert| {
        Linear::new(Matrix { expert: Some(expert), ..Matrix::whole(tensor.clone()) })
    };
    let experts = (0..count)
        .map(|index| Mlp::new(Inner::GatedFused(of(&both, index)), activation, of(&down, index)))
        .collect();
    Ok(Moe { router, experts, shared: latent::shared(layer, hidden, inner, activation)?, latent: None })
}
