//! Encoders, as plain data: models whose tokens see the whole text, what comes after them included. They give a vector of each token, or
//! scores of a text, and say nothing.

use super::tree::tree;
use super::{Activation, Mlp, Projection, RopeId};

tree! {
    /// What an encoder does with the embeddings of a text's tokens.
    pub struct Encoder {
        /// The row of the learned positions that the first token of a text has.
        pub first_position: usize,
        /// Added to the tokens of the first text, and of the second one of a pair: `(segments, hidden)`.
        pub segments: Option<W::Table>,
        /// Of the sum of all embeddings.
        pub embedding_norm: Option<W::Norm>,
        /// The layers.
        pub layers: Vec<EncoderLayer<W>>,
        /// After the last.
        pub norm: Option<W::Norm>,
        /// Scores a text, or a pair of them.
        pub classifier: Option<Box<Classifier<W>>>,
    }
}

tree! {
    /// `x = after_attention(x + attention(attention_norm(x)))`, and the same with the MLP. A norm is before a block or after the sum.
    pub struct EncoderLayer {
        /// Before attention.
        pub attention_norm: Option<W::Norm>,
        /// Attention to the whole text.
        pub attention: SelfAttention<W>,
        /// Of the sum.
        pub after_attention: Option<W::Norm>,
        /// Before the MLP.
        pub mlp_norm: Option<W::Norm>,
        /// The feed-forward half.
        pub mlp: Mlp<W>,
        /// Of the sum.
        pub after_mlp: Option<W::Norm>,
    }
}

tree! {
    /// Softmax attention in both directions.
    pub struct SelfAttention {
        /// Heads, of queries, keys and values alike.
        pub heads: usize,
        /// Channels of each.
        pub head_dim: usize,
        /// How many tokens before and after it a token sees; `None` for all.
        pub reach: Option<usize>,
        /// From the residual stream to heads.
        pub projection: Projection<W>,
        /// Rotation of queries and keys by position.
        pub rope: Option<RopeId>,
        /// From heads back to the residual stream.
        pub output: W::Linear,
    }
}

tree! {
    /// `output(norm(act(dense(x))))`, of the first token or of the mean of all.
    pub struct Classifier {
        /// Whether `x` is the mean.
        pub of_mean: bool,
        /// From the residual stream to as many channels.
        pub dense: W::Linear,
        /// What follows; the hyperbolic tangent where there is none.
        pub activation: Option<Activation>,
        /// Before the output.
        pub norm: Option<W::Norm>,
        /// One number for each class.
        pub output: W::Linear,
    }
}

impl Classifier {
    /// How many classes there are; a model that ranks texts has one.
    pub fn classes(&self) -> usize {
        self.output.outputs()
    }
}

impl Encoder {
    /// What it gives, for people.
    pub fn gives(&self) -> String {
        match self.classifier.as_ref().map(|classifier| classifier.classes()) {
            None => "vectors of texts (an encoder: attention in both directions, no cache)".to_owned(),
            Some(1) => "scores of pairs of texts (a cross-encoder: it reranks)".to_owned(),
            Some(classes) => format!("logits of {classes} classes, which nothing here asks for"),
        }
    }
}
