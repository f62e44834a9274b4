//! BERT and RoBERTa: learned positions, norms after each sum, exact GELU. XLM-R is RoBERTa with another vocabulary.

use crate::arch::encoder::{self, Sizes};
use crate::arch::{Name, Scope, common};
use crate::config::Key;
use crate::description::{
    Activation, Classifier, Description, Encoder, EncoderLayer, Inner, Mlp, Projection,
};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    family(scope, "bert", 0)
}

/// Positions begin after the number that stands for padding.
pub fn describe_roberta(scope: &Scope<'_>) -> Result<Description> {
    let padding = scope.config().integer(Key("pad_token_id", ""))?.unwrap_or(1);
    let first = usize::try_from(padding + 1)
        .map_err(|_| scope.config().refused(Key("pad_token_id", ""), "a number from 0 on is needed"))?;
    family(scope, "roberta", first)
}

fn family(scope: &Scope<'_>, prefix: &'static str, first_position: usize) -> Result<Description> {
    encoder::refuse_decoder(scope)?;
    let config = scope.config();
    const POSITIONS: Key = Key("position_embedding_type", "");
    if let Some(kind) = config.text(POSITIONS)?.filter(|kind| kind != "absolute") {
        return Err(config.refused(POSITIONS, format!("{kind:?} is not supported; absolute is")));
    }
    let Sizes { dims, inner, eps } = Sizes::read(scope)?;
    let hidden = dims.hidden;
    let activation = config.activation(common::ACTIVATION, Activation::Gelu)?;
    // Models for embeddings are saved without the name of the whole.
    let word = ("embeddings.word_embeddings", "token_embd");
    let body = if scope.inside((prefix, "")).has(word)? {
        scope.inside((prefix, ""))
    } else {
        scope.inside(("", ""))
    };

    let layer = |index: usize| {
        let layer = body.inside((&format!("encoder.layer.{index}"), &format!("blk.{index}")));
        let square = |name: Name| layer.linear(name, hidden, hidden, true);
        let norm = |name: Name| layer.layer_norm(name, hidden, eps);
        let projection = Projection::Apart {
            q: square(("attention.self.query", "attn_q"))?,
            k: square(("attention.self.key", "attn_k"))?,
            v: square(("attention.self.value", "attn_v"))?,
        };
        let output = square(("attention.output.dense", "attn_output"))?;
        let up = layer.linear(("intermediate.dense", "ffn_up"), inner, hidden, true)?;
        let down = layer.linear(("output.dense", "ffn_down"), hidden, inner, true)?;
        Ok(EncoderLayer {
            attention_norm: None,
            attention: encoder::attention(&dims, (None, None), projection, output),
            after_attention: Some(norm(("attention.output.LayerNorm", "attn_output_norm"))?),
            mlp_norm: None,
            mlp: Mlp::new(Inner::Plain(up), activation, down),
            after_mlp: Some(norm(("output.LayerNorm", "layer_output_norm"))?),
        })
    };
    let layers = (0..dims.layers).map(layer).collect::<Result<_>>()?;
    let table = common::token_table(&body, word.0, &dims)?;
    let context = config.size(Key("max_position_embeddings", "context_length"))?;
    if context <= first_position {
        let why = format!("{context} positions, of which the first {first_position} belong to no token");
        return Err(config.refused(Key("max_position_embeddings", "context_length"), why));
    }
    let positions = body.weight(("embeddings.position_embeddings", "position_embd"), &[context, hidden])?;
    const SEGMENTS: Name = ("embeddings.token_type_embeddings", "token_types");
    let segments = match encoder::rows(&body, SEGMENTS)? {
        Some(rows) => Some(body.weight(SEGMENTS, &[rows, hidden])?),
        None if scope.has_weights() => None,
        None => {
            Some(body.weight(SEGMENTS, &[config.size_if(Key("type_vocab_size", ""))?.unwrap_or(2), hidden])?)
        }
    };
    let encoder = Encoder {
        first_position,
        segments,
        embedding_norm: Some(body.layer_norm(("embeddings.LayerNorm", "token_embd_norm"), hidden, eps)?),
        layers,
        norm: None,
        classifier: classifier(scope, &body, hidden)?.map(Box::new),
    };
    encoder::description(scope, &dims, (table, Some(positions)), encoder)
}

/// RoBERTa's classifier, or BERT's pooler with a linear layer after it.
fn classifier(scope: &Scope<'_>, body: &Scope<'_>, hidden: usize) -> Result<Option<Classifier>> {
    const DENSE: Name = ("classifier.dense", "cls");
    const OUTPUT: Name = ("classifier.out_proj", "cls.output");
    const POOLER: Name = ("pooler.dense", "");
    const PLAIN: Name = ("classifier", "");
    let (dense, output) = match (encoder::rows(scope, OUTPUT)?, encoder::rows(scope, PLAIN)?) {
        (Some(classes), _) => {
            (scope.linear(DENSE, hidden, hidden, true)?, scope.linear(OUTPUT, classes, hidden, true)?)
        }
        (None, Some(classes)) => {
            (body.linear(POOLER, hidden, hidden, true)?, scope.linear(PLAIN, classes, hidden, true)?)
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(encoder::classifier((dense, None), (false, None), output)))
}
