//! A model as plain data: blocks, slots, and tensors by name.
//!
//! A file of [`crate::arch`] turns a configuration into a [`Description`]; a [`crate::Backend`] compiles it together with the
//! weights into something that runs. Nothing here computes, and nothing here knows which device will: `kvant inspect --layers`
//! prints a description, memory estimates add it up for models that are not here, and a backend is free to fuse as it likes.
//!
//! The granularity is the block, not the tensor operation. A layer is a list of [`Residual`]s, each `x += after(Σ branches)`,
//! and a [`Branch`] is `after(mixer(norm(x)))`. That covers norms before, after and on both sides of a block, blocks that stand
//! side by side, and layers that are a single mixer.
//!
//! **Invariant:** a description holds no weights, and every tensor it names was in the checkpoint it was made from, in that
//! shape; where there was no checkpoint, their number is bounded.

mod attention;
mod encoder;
mod ffn;
mod halves;
mod mixer;
mod mtp;
mod rope;
mod show;
mod streams;
mod tensor;
mod tree;
mod visit;

pub use attention::{Attention, NormPlace, OutputGate, Projection, QueryGain, ScoreTraits};
pub use encoder::{Classifier, Encoder, EncoderLayer, SelfAttention};
pub use ffn::{
    Activation, ClampedSwiglu, ExpertGroups, Ffn, Inner, Mlp, Moe, Renormalise, Router, RouterScore,
    SharedExpert,
};
pub use mixer::{
    Convolution, DecayRate, DeltaDims, DeltaProjection, GateOrder, GatedDeltaNet, GatedNorm, HeadOrder,
    LatentAttention, LatentHeads, LatentQuery, Mamba2, Mamba2Dims, ShortConv,
};
pub use mtp::{Mtp, MtpLayer};
pub use rope::{Pairing, Rope, RopeScaling};
pub use show::LayerSummary;
pub use streams::{AltUp, Laurel, PerLayerEmbedding, PerLayerInput, Streams};
pub(crate) use tensor::assumed_type;
pub use tensor::{Linear, Matrix, Norm, NormKind, Precision, RowRange, TensorRef, Vector};
pub use tree::{Lower, Named, Node, Weights};

use kvant_cache::Slots;
use tree::tree;

/// A rotary embedding of the description's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub usize);

/// A model.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The name of the architecture in configurations.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids, which is the width of logits.
    pub vocabulary: usize,
    /// The context the model was made for, where its file says.
    pub context: Option<usize>,
    /// Before the first layer.
    pub embedding: Embedding,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// After the last.
    pub head: Head,
    /// What a sequence keeps between passes.
    pub slots: Slots,
    /// The head of the file that guesses further tokens, or why it cannot be described; `None` where the file has none. A model runs
    /// without.
    pub mtp: Option<Result<Box<Mtp>, String>>,
    /// What an encoder has in place of layers, slots and a head: those are then empty, and the head is the table once more.
    pub encoder: Option<Box<Encoder>>,
    /// Sides of a multimodal checkpoint that are not described: the model reads and writes text.
    pub left_out: Vec<&'static str>,
}

/// From token ids to the first activations.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// `(vocabulary, hidden)`.
    pub table: TensorRef,
    /// Multiplier of its rows.
    pub scale: f32,
    /// Learned positions, `(positions, hidden)`, of models without rotary embedding.
    pub positions: Option<TensorRef>,
    /// Inputs of each layer's own.
    pub per_layer: Option<PerLayerEmbedding>,
    /// The streams of a model that has several.
    pub streams: Option<Streams>,
}

tree! {
    /// From the last activations to logits.
    pub struct Head {
        /// After the last layer.
        pub norm: W::Norm,
        /// To the vocabulary; the embedding's table once more where the two are tied.
        pub output: W::Linear,
        /// Multiplier of the logits.
        pub scale: f32,
        /// Logits `z` become `cap · tanh(z / cap)`.
        pub soft_cap: Option<f32>,
    }
}

tree! {
    /// One layer: its residuals, one after another.
    pub struct Layer {
        /// What is added to the residual stream.
        pub residuals: Vec<Residual<W>>,
        /// One number that the stream is multiplied by in the end.
        pub scale: Option<W::Vector>,
        /// What it does with several streams; none where there is one.
        pub altup: Option<Box<AltUp<W>>>,
    }
}

tree! {
    /// `x = keep · x + scale · after(Σ branches)`, all branches of the same `x`.
    pub struct Residual {
        /// In the order in which they are added.
        pub branches: Vec<Branch<W>>,
        /// A norm of their sum.
        pub after: Option<W::Norm>,
        /// Multiplier of what is added; 1 in most models.
        pub scale: f32,
        /// Multiplier of what was there; 1 in most models.
        pub keep: f32,
    }
}

tree! {
    /// `scale · after(mixer(input_scale · norm(x)))`.
    pub struct Branch {
        /// Before the mixer.
        pub norm: Option<W::Norm>,
        /// Multiplier of the mixer's input; 1 in most models.
        pub input_scale: f32,
        /// What it computes.
        pub mixer: Mixer<W>,
        /// After it.
        pub after: Option<W::Norm>,
        /// Multiplier of what it gives; 1 in most models.
        pub scale: f32,
    }
}

tree! {
    /// A block that turns rows of the residual stream into rows of the same width.
    pub enum Mixer {
        /// Softmax attention.
        Attention(Box<Attention<W>>),
        /// Softmax attention over latents (MLA).
        LatentAttention(Box<LatentAttention<W>>),
        /// A gated short convolution.
        ShortConv(Box<ShortConv<W>>),
        /// A Mamba-2 state space model.
        Mamba2(Box<Mamba2<W>>),
        /// Linear attention by the gated delta rule.
        GatedDeltaNet(Box<GatedDeltaNet<W>>),
        /// A feed-forward layer.
        Ffn(Ffn<W>),
        /// The layer's own input, through a gate.
        PerLayerInput(Box<PerLayerInput<W>>),
        /// A linear layer of low rank, around which its input is added.
        Laurel(Box<Laurel<W>>),
    }
}

impl Branch {
    /// A branch without multipliers: `after(mixer(norm(x)))`.
    pub fn new(norm: Option<Norm>, mixer: Mixer, after: Option<Norm>) -> Self {
        Self { norm, input_scale: 1.0, mixer, after, scale: 1.0 }
    }
}

impl Residual {
    /// `x += mixer(norm(x))`.
    pub fn pre_norm(norm: Norm, mixer: Mixer) -> Self {
        Self::of(Branch::new(Some(norm), mixer, None))
    }

    /// A residual of one branch.
    pub fn of(branch: Branch) -> Self {
        Self::sum(vec![branch])
    }

    /// `x += Σ branches`.
    pub fn sum(branches: Vec<Branch>) -> Self {
        Self { branches, after: None, scale: 1.0, keep: 1.0 }
    }
}

impl Layer {
    /// A layer of these residuals.
    pub fn new(residuals: Vec<Residual>) -> Self {
        Self { residuals, scale: None, altup: None }
    }

    /// Its mixers, in order.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.residuals.iter().flat_map(|residual| &residual.branches).map(|branch| &branch.mixer)
    }

    /// Its attentions over keys and values.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.mixers().filter_map(|mixer| match mixer {
            Mixer::Attention(attention) => Some(&**attention),
            Mixer::LatentAttention(_)
            | Mixer::ShortConv(_)
            | Mixer::Mamba2(_)
            | Mixer::GatedDeltaNet(_)
            | Mixer::Ffn(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }
}

impl Description {
    /// The first position that the model has no embedding for; `None` where only quality suffers beyond its context.
    pub fn position_limit(&self) -> Option<usize> {
        let rows = self.embedding.positions.as_ref().and_then(|table| table.shape.first().copied());
        let skipped = self.encoder.as_ref().map_or(0, |encoder| encoder.first_position);
        rows.map(|rows| rows.saturating_sub(skipped))
    }

    /// All attentions over keys and values with the number of their layer.
    pub fn attentions(&self) -> impl Iterator<Item = (usize, &Attention)> {
        self.layers
            .iter()
            .enumerate()
            .flat_map(|(index, layer)| layer.attentions().map(move |one| (index, one)))
    }

    /// How every attention layer makes scores.
    pub fn score_traits(&self) -> Vec<ScoreTraits> {
        self.attentions().map(|(_, attention)| attention.score_traits()).collect()
    }
}
