//! OLMo 2: norms after attention and MLP instead of before, and over all heads of queries and of keys. GGUF files of
//! OLMo 3 have its name too, and a window.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, olmo3};
use crate::config::{Dims, RopeKeys};
use crate::description::{Attention, Branch, Description, Ffn, Layer, Mixer, Mlp, Pairing, Residual};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    if scope.config().count(common::WINDOW)?.is_some() {
        return olmo3::describe(scope);
    }
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, (bias, bias))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.query_width(), dims.kv_width()), eps, 0.0)?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        post_norm(layer, &dims, eps, attention, mlp)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}

/// A layer with norms after its parts alone: `x += norm(attention(x)); x += norm(mlp(x))`.
pub fn post_norm(layer: &Scope<'_>, dims: &Dims, eps: f32, attention: Attention, mlp: Mlp) -> Result<Layer> {
    let after = |name, mixer| {
        let after = Some(layer.rms_norm(name, dims.hidden, eps, 0.0)?);
        Ok(Residual::of(Branch::new(None, mixer, after)))
    };
    let residuals = vec![
        after(("post_attention_layernorm", "post_attention_norm"), Mixer::Attention(Box::new(attention)))?,
        after(("post_feedforward_layernorm", "post_ffw_norm"), Mixer::Ffn(Ffn::Dense(mlp)))?,
    ];
    Ok(Layer::new(residuals))
}
