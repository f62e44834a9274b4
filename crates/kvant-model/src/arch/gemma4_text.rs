//! Gemma 4 (text): scores that are not scaled, norms on queries, keys and values, heads of their own width on global layers, and
//! a factor on what every layer leaves. The E models add an input of each layer's own to the stream, and their upper layers attend
//! to the keys and values of lower ones; the large ones have keys equal to values on global layers; one has experts beside its
//! MLPs.

use crate::arch::gemma_shared::{self, SharedSlots};
use crate::arch::{Scope, common, gemma, gemma2};
use crate::config::{Dims, Key, ModelConfig, RopeKeys};
use crate::description::{
    Activation, Attention, Branch, Description, Ffn, Inner, Layer, Linear, Matrix, Mixer, Mlp, Moe, Norm,
    Pairing, Projection, Renormalise, Residual, Rope, RopeId, Router, Vector,
};
use crate::error::Result;
use kvant_cache::LatentShape;

const EQUAL: Key = Key("attention_k_eq_v", "");
const CHOSEN: Key = Key("top_k_experts", "expert_used_count");
const KV_HEADS: Key = Key("num_key_value_heads", "attention.head_count_kv");
const FULL_ROPE: RopeKeys = RopeKeys { default_theta: 1_000_000.0, ..RopeKeys::usual(Pairing::Halves) };
const SLIDING_ROPE: RopeKeys = RopeKeys {
    layer_type: "sliding_attention",
    theta: Key("", "rope.freq_base_swa"),
    dims: Key("", "rope.dimension_count_swa"),
    scaled: false,
    ..RopeKeys::usual(Pairing::Halves)
};

/// What all layers share.
struct Family {
    hidden: usize,
    eps: f32,
    activation: Activation,
    full_rope: Option<(RopeId, Rope)>,
    sliding_rope: Option<RopeId>,
    slots: SharedSlots,
}

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let layers = config.size(Dims::LAYERS)?;
    let windows = gemma_shared::windows(config, layers, 6)?;
    let dims = layer_dims(config, &windows)?;
    let slots = SharedSlots::read(config, layers)?;
    let inner = inner_widths(config, layers, slots.first_shared)?;
    let first = |slides: bool| windows.iter().position(|window| window.is_some() == slides);
    let full_rope = match first(false) {
        Some(layer) => {
            let rope = scope.read_rope(&FULL_ROPE, dims[layer].head_dim)?;
            Some((scope.add_rope(rope.clone()), rope))
        }
        None => None,
    };
    let sliding_rope =
        first(true).map(|layer| scope.rope(&SLIDING_ROPE, dims[layer].head_dim)).transpose()?;
    let family = Family {
        hidden: dims[0].hidden,
        eps: config.positive(common::RMS_EPS)? as f32,
        activation: gemma::activation(config)?,
        full_rope,
        sliding_rope,
        slots,
    };
    let input_width = config.count(gemma_shared::INPUT_WIDTH)?;

    let layers = common::layers(scope, layers, |layer, index| {
        let attention = family.attention(layer, index, &dims[index], windows[index])?;
        let before = family.norm(layer, ("input_layernorm", "attn_norm"))?;
        let after = family.norm(layer, ("post_attention_layernorm", "post_attention_norm"))?;
        let mixer = Mixer::Attention(Box::new(attention));
        let mut residuals = vec![Residual::of(Branch::new(Some(before), mixer, Some(after)))];
        residuals.push(family.feed_forward(layer, inner[index])?);
        if let Some(width) = input_width {
            let input = gemma_shared::layer_input(layer, index, family.hidden, width, family.activation)?;
            let after = family.norm(layer, ("post_per_layer_input_norm", "post_norm"))?;
            residuals.push(Residual::of(Branch::new(
                None,
                Mixer::PerLayerInput(Box::new(input)),
                Some(after),
            )));
        }
        let name = ("layer_scalar", "layer_output_scale.weight");
        // The first files in GGUF lack it where all are 1.
        let is_there = !config.is_gguf() || layer.has_tensor(name)?;
        let scale = is_there.then(|| layer.tensor(name, &[1]).map(Vector::whole)).transpose()?;
        Ok(Layer { scale, ..Layer::new(residuals) })
    })?;
    let count = layers.len();
    let mut description = common::decoder(scope, &dims[0], layers, 0.0)?;
    description.embedding.scale = (family.hidden as f32).sqrt();
    description.embedding.per_layer = input_width
        .map(|width| gemma_shared::layer_inputs(scope, count, family.hidden, width, family.eps))
        .transpose()?;
    description.head.soft_cap = gemma2::final_cap(config)?;
    Ok(description)
}

/// The heads of every layer. Transformers 5 lists those that differ by layer, version 4 has keys for global layers, GGUF has keys
/// for sliding ones and a list.
fn layer_dims(config: &ModelConfig<'_>, windows: &[Option<usize>]) -> Result<Vec<Dims>> {
    const HEAD_DIM: Key = Key("head_dim|global_head_dim", "attention.key_length");
    const SLIDING_HEAD_DIM: Key = Key("head_dim", "attention.key_length_swa");
    const GLOBAL_HEAD_DIM: Key = Key("global_head_dim", "attention.key_length");
    const GLOBAL_KV_HEADS: Key = Key("num_global_key_value_heads", "");
    let kv_heads = config.layer_sizes_if(KV_HEADS, windows.len())?;
    let by_layer = config.nested_if("per_layer_config")?;
    let of = |(index, window): (usize, &Option<usize>)| {
        let (mut head_dim, mut own_kv_heads) =
            (config.size_if(SLIDING_HEAD_DIM)?, kv_heads.as_ref().map(|heads| heads[index]));
        if window.is_none() {
            head_dim = config.size_if(GLOBAL_HEAD_DIM)?.or(head_dim);
            if config.flag(EQUAL, false)? {
                own_kv_heads = config.size_if(GLOBAL_KV_HEADS)?.or(own_kv_heads);
            }
        }
        if let Some(own) = by_layer.map(|all| all.nested_if(&index.to_string())).transpose()?.flatten() {
            head_dim = own.size_if(HEAD_DIM)?.or(head_dim);
            own_kv_heads = own.size_if(KV_HEADS)?.or(own_kv_heads);
        }
        Dims::of(config, windows.len(), own_kv_heads, head_dim)
    };
    windows.iter().enumerate().map(of).collect()
}

/// The inner width of every layer's MLP.
fn inner_widths(config: &ModelConfig<'_>, layers: usize, first_shared: usize) -> Result<Vec<usize>> {
    let mut widths = config.layer_sizes(common::INNER, layers)?;
    if config.flag(Key("use_double_wide_mlp", ""), false)? {
        widths.iter_mut().skip(first_shared).for_each(|width| *width = width.saturating_mul(2));
    }
    Ok(widths)
}

impl Family {
    fn norm(&self, layer: &Scope<'_>, name: (&'static str, &'static str)) -> Result<Norm> {
        layer.rms_norm(name, self.hidden, self.eps, 0.0)
    }

    fn attention(
        &self,
        layer: &Scope<'_>,
        index: usize,
        dims: &Dims,
        window: Option<usize>,
    ) -> Result<Attention> {
        let (hidden, kv_width) = (dims.hidden, dims.kv_width());
        let q = layer.linear(("self_attn.q_proj", "attn_q"), dims.query_width(), hidden, false)?;
        let output = layer.linear(("self_attn.o_proj", "attn_output"), hidden, dims.query_width(), false)?;
        let rope =
            if window.is_some() { self.sliding_rope } else { self.full_rope.as_ref().map(|(id, _)| *id) };
        let q_norm =
            Some(layer.rms_norm(("self_attn.q_norm", "attn_q_norm"), dims.head_dim, self.eps, 0.0)?);
        if let Some(slot) = self.slots.view(layer, index, window) {
            let attention = common::attention_over(slot, dims, window, Projection::Shared { q }, output);
            return Ok(Attention { q_norm, rope, scale: 1.0, ..attention });
        }
        let k = layer.linear(("self_attn.k_proj", "attn_k"), kv_width, hidden, false)?;
        let v = ("self_attn.v_proj", "attn_v");
        let is_equal = match layer.config().is_gguf() {
            true => !layer.has(v)?,
            false => window.is_none() && layer.config().flag(EQUAL, false)?,
        };
        let projection = match is_equal {
            true => Projection::Equal { q, kv: k },
            false => Projection::Apart { q, k, v: layer.linear(v, kv_width, hidden, false)? },
        };
        let slot = match self.folded(dims, window).filter(|_| is_equal) {
            Some(shape) => layer.slots(|slots| slots.latent(index, shape)),
            None => layer.keys_values(index, common::kv_shape(dims, window)),
        };
        self.slots.opened(window, slot);
        let attention = common::attention_over(slot, dims, window, projection, output);
        let k_norm = layer.rms_norm(("self_attn.k_norm", "attn_k_norm"), dims.head_dim, self.eps, 0.0)?;
        let v_norm = Some(Norm { weight: None, ..k_norm.clone() });
        Ok(Attention { q_norm, k_norm: Some(k_norm), v_norm, rope, scale: 1.0, ..attention })
    }

    /// A key is its value times the norm's weights, but for the channels that turn: those and the value are all that is kept.
    fn folded(&self, dims: &Dims, window: Option<usize>) -> Option<LatentShape> {
        let (_, rope) = self.full_rope.as_ref().filter(|_| window.is_none() && !self.slots.is_viewed())?;
        let rope_dim = rope.turning_channels().len();
        let shape = LatentShape { kv_heads: dims.kv_heads, latent_dim: dims.head_dim, rope_dim, window };
        (rope_dim < dims.head_dim).then_some(shape)
    }

    /// An MLP, and experts beside it where the model has them.
    fn feed_forward(&self, layer: &Scope<'_>, inner: usize) -> Result<Residual> {
        let mlp = common::gated_mlp(layer, self.hidden, inner, self.activation, false)?;
        let mlp = Mixer::Ffn(Ffn::Dense(mlp));
        let before = Some(self.norm(layer, ("pre_feedforward_layernorm", "ffn_norm"))?);
        let after = Some(self.norm(layer, ("post_feedforward_layernorm", "post_ffw_norm"))?);
        let config = layer.config();
        let has_experts = match config.is_gguf() {
            true => layer.has(("router.proj", "ffn_gate_inp"))?,
            false => config.flag(Key("enable_moe_block", ""), false)?,
        };
        if !has_experts {
            return Ok(Residual::of(Branch::new(before, mlp, after)));
        }
        let own_after = self.norm(layer, ("post_feedforward_layernorm_1", "post_ffw_norm_1"))?;
        let dense = Branch::new(before, mlp, Some(own_after));
        let moe = Mixer::Ffn(Ffn::Experts(Box::new(self.experts(layer)?)));
        let before = self.norm(layer, ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"))?;
        let own_after = self.norm(layer, ("post_feedforward_layernorm_2", "post_ffw_norm_2"))?;
        let sparse = Branch::new(Some(before), moe, Some(own_after));
        Ok(Residual { after, ..Residual::sum(vec![dense, sparse]) })
    }

    fn experts(&self, layer: &Scope<'_>) -> Result<Moe> {
        let (config, hidden) = (layer.config(), self.hidden);
        let (count, chosen) = (config.size(common::EXPERTS)?, config.size(CHOSEN)?);
        if chosen > count {
            return Err(config.refused(CHOSEN, format!("{chosen} experts per token of {count} in all")));
        }
        let inner = config.size(Key("moe_intermediate_size", "expert_feed_forward_length"))?;
        let vector = |name, width| Ok(Some(Vector::whole(layer.tensor(name, &[width])?)));
        let linear = layer.exact_linear(("router.proj", "ffn_gate_inp"), count, hidden)?;
        let router = Router {
            norm: Some(Norm {
                weight: None,
                ..self.norm(layer, ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"))?
            }),
            reads_residual: true,
            input_scale: vector(("router.scale", "ffn_gate_inp.scale"), hidden)?,
            logit_scale: 1.0 / (hidden as f32).sqrt(),
            renormalise: Some(Renormalise::default()),
            expert_scale: vector(("router.per_expert_scale", "ffn_down_exps.scale"), count)?,
            ..Router::softmax(linear, chosen, true)
        };
        let (gate_up, down) = (
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            layer.tensor(("experts.down_proj", "ffn_down_exps.weight"), &[count, hidden, inner])?,
        );
        let part = |tensor: &_, expert| {
            Linear::new(Matrix { expert: Some(expert), ..Matrix::whole(Clone::clone(tensor)) })
        };
        let inners: Vec<Inner> = if !config.is_gguf() || layer.has_tensor(gate_up)? {
            let both = layer.tensor(gate_up, &[count, 2 * inner, hidden])?;
            (0..count).map(|expert| Inner::GatedFused(part(&both, expert))).collect()
        } else {
            let gates = layer.experts(("", "ffn_gate_exps"), count, inner, hidden)?;
            let ups = layer.experts(("", "ffn_up_exps"), count, inner, hidden)?;
            gates.into_iter().zip(ups).map(|(gate, up)| Inner::Gated { gate, up }).collect()
        };
        let expert = |(expert, inner)| Mlp::new(inner, self.activation, part(&down, expert));
        Ok(Moe {
            router,
            experts: inners.into_iter().enumerate().map(expert).collect(),
            shared: None,
            latent: None,
        })
    }
}
