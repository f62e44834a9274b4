//! ERNIE 4.5: Llama whose rotated pairs are neighbouring channels, also in its own files.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{Key, RopeKeys};
use crate::description::{Attention, Description, Ffn, Pairing, RopeId};
use crate::error::Result;

/// A bias on every linear layer of attention and MLPs.
pub const BIAS: Key = Key("use_bias", "");

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let common = Common::read(config)?;
    let Common { dims, inner, eps, activation } = common;
    let bias = config.flag(BIAS, false)?;
    let rope = rope(scope, &common)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let attention = attention(layer, index, &common, rope, bias)?;
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, bias)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}

/// The family's rotation.
pub fn rope(scope: &Scope<'_>, common: &Common) -> Result<RopeId> {
    let keys = RopeKeys { default_theta: 500_000.0, ..RopeKeys::usual(Pairing::Neighbours) };
    Ok(scope.add_rope(scope.read_rope(&keys, common.dims.head_dim)?.paired(Pairing::Neighbours)))
}

/// The family's attention.
pub fn attention(
    layer: &Scope<'_>,
    index: usize,
    common: &Common,
    rope: RopeId,
    bias: bool,
) -> Result<Attention> {
    let mut attention = common::attention(layer, index, &common.dims, None, (bias, bias))?;
    attention.rope = Some(rope);
    Ok(attention)
}
