//! What the architectures of encoders have in common.

use crate::arch::{Name, Scope, common};
use crate::config::{Dims, Key};
use crate::description::{
    Activation, Classifier, Description, Embedding, Encoder, Head, Linear, Matrix, Norm, NormKind,
    Projection, RopeId, SelfAttention, TensorRef, Vector,
};
use crate::error::{LoadError, Result};

/// From the token table, learned positions where there are any, and what comes after them.
pub fn description(
    scope: &Scope<'_>,
    dims: &Dims,
    (table, positions): (TensorRef, Option<TensorRef>),
    encoder: Encoder,
) -> Result<Description> {
    const CONTEXT: Key = Key("max_position_embeddings|n_positions", "context_length");
    if !scope.rope_override().is_empty() {
        return Err(LoadError::unsupported(
            "the positions of an encoder stay as they were trained; leave out the --rope-… and --yarn-… options",
        ));
    }
    let (slots, ropes) = scope.take_draft();
    let norm = Norm { kind: NormKind::Layer, width: dims.hidden, weight: None, bias: None, eps: 1e-5 };
    let output = Linear::new(Matrix::whole(table.clone()));
    let context = scope.config().size_if(CONTEXT)?;
    Ok(Description {
        architecture: "",
        hidden: dims.hidden,
        vocabulary: table.shape[0],
        context: context.map(|context| context.saturating_sub(encoder.first_position).max(1)),
        embedding: Embedding { table, scale: 1.0, positions, per_layer: None, streams: None },
        ropes,
        layers: Vec::new(),
        head: Head { norm, output, scale: 1.0, soft_cap: None },
        slots,
        mtp: None,
        encoder: Some(Box::new(encoder)),
        left_out: Vec::new(),
    })
}

/// A layer norm that may have no bias.
pub fn norm(scope: &Scope<'_>, name: Name, width: usize, eps: f32, biased: bool) -> Result<Norm> {
    if biased {
        return scope.layer_norm(name, width, eps);
    }
    let weight = Vector::whole(scope.weight(name, &[width])?);
    Ok(Norm { kind: NormKind::Layer, width, weight: Some(weight), bias: None, eps })
}

/// Attention of as many keys as queries.
pub fn attention(
    dims: &Dims,
    (reach, rope): (Option<usize>, Option<RopeId>),
    projection: Projection,
    output: Linear,
) -> SelfAttention {
    SelfAttention { heads: dims.heads, head_dim: dims.head_dim, reach, projection, rope, output }
}

/// The head of a sequence classifier: two linear layers with something between them. A class is a row of the second.
pub fn classifier(
    (dense, activation): (Linear, Option<Activation>),
    (of_mean, norm): (bool, Option<Norm>),
    output: Linear,
) -> Classifier {
    Classifier { of_mean, dense, activation, norm, output }
}

/// How many rows a part's weights have, where it is in the file.
pub fn rows(scope: &Scope<'_>, name: Name) -> Result<Option<usize>> {
    Ok(scope.shape(name)?.and_then(|shape| match *shape {
        [rows, _] => Some(rows),
        // A single row may be stored as a vector.
        [_] => Some(1),
        _ => None,
    }))
}

/// Refuses configurations in which `model_type` names a decoder made of an encoder's parts.
pub fn refuse_decoder(scope: &Scope<'_>) -> Result<()> {
    const IS_DECODER: Key = Key("is_decoder", "");
    match scope.config().flag(IS_DECODER, false)? {
        true => Err(scope
            .config()
            .refused(IS_DECODER, "a decoder of this family is not supported; its encoders are")),
        false => Ok(()),
    }
}

/// Numbers of every encoder.
pub struct Sizes {
    pub dims: Dims,
    /// Width of the feed-forward part.
    pub inner: usize,
    /// Of the norms.
    pub eps: f32,
}

impl Sizes {
    pub fn read(scope: &Scope<'_>) -> Result<Self> {
        let config = scope.config();
        let dims = Dims::read(config)?;
        if dims.kv_heads != dims.heads || dims.query_width() != dims.hidden {
            return Err(LoadError::unsupported(
                "an encoder whose heads share keys, or are wider than its stream",
            ));
        }
        const EPS: Key = Key("layer_norm_eps|norm_eps|layer_norm_epsilon", "attention.layer_norm_epsilon");
        let eps = config.positive_if(EPS)?.unwrap_or(1e-12) as f32;
        Ok(Self { dims, inner: config.size(common::INNER)?, eps })
    }
}
