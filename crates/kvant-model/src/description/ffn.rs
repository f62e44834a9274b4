//! Feed-forward layers and mixtures of experts, as plain data.

use super::Linear;
use super::tree::tree;

/// A non-linear function, applied value by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// `x · Φ(x)` with the exact normal distribution function.
    Gelu,
    /// The tanh approximation of the same.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
}

impl Activation {
    /// The function that configurations call `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" | "gelu_python" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            "relu2" => Some(Self::ReluSquared),
            _ => None,
        }
    }

    /// Its name, as configurations have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Relu => "relu",
            Self::ReluSquared => "relu2",
        }
    }
}

tree! {
    /// The feed-forward half of a layer.
    pub enum Ffn {
        /// The same for every token.
        Dense(Mlp<W>),
        /// A few experts out of many, chosen for each token.
        Experts(Box<Moe<W>>),
    }
}

tree! {
    /// How the inner values of an MLP are made.
    pub enum Inner {
        /// `act(gate(x)) · up(x)`.
        Gated {
            /// To the inner width, through the activation.
            gate: W::Linear,
            /// To the inner width.
            up: W::Linear,
        },
        /// The same with gate and up in one layer, gate first.
        GatedFused(W::Linear),
        /// `act(up(x))`.
        Plain(W::Linear),
    }
}

tree! {
    /// An MLP: inner values and the way back.
    pub struct Mlp {
        /// To the inner width.
        pub inner: Inner<W>,
        /// The non-linear function.
        pub activation: Activation,
        /// gpt-oss: gate and up are clamped, `gate · sigmoid(alpha · gate) · (up + 1)`.
        pub clamp: Option<ClampedSwiglu>,
        /// Multiplier of the gate before its activation.
        pub gate_scale: f32,
        /// Gemma 3n: gates count from the mean of their row and this many of its deviations on, those below are zero.
        pub sparsity: Option<f32>,
        /// Back to the residual stream.
        pub down: W::Linear,
        /// Multiplier of the result.
        pub down_scale: f32,
    }
}

impl Mlp {
    /// An MLP without peculiarities.
    pub fn new(inner: Inner, activation: Activation, down: Linear) -> Self {
        Self { inner, activation, clamp: None, gate_scale: 1.0, sparsity: None, down, down_scale: 1.0 }
    }
}

/// The bounds of a clamped SwiGLU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClampedSwiglu {
    /// Gates are at most this, ups within ± this.
    pub limit: f32,
    /// Multiplier inside the sigmoid.
    pub alpha: f32,
}

tree! {
    /// A mixture of experts: a router picks a few small MLPs for each token.
    pub struct Moe {
        /// Which experts a token visits, and with which weights.
        pub router: Router<W>,
        /// The experts.
        pub experts: Vec<Mlp<W>>,
        /// An expert that every token visits.
        pub shared: Option<SharedExpert<W>>,
        /// Experts work in a narrower space: into it before them, out of it after their weighted sum.
        pub latent: Option<(W::Linear, W::Linear)>,
    }
}

tree! {
    /// An expert that every token visits.
    pub struct SharedExpert {
        /// The expert.
        pub mlp: Mlp<W>,
        /// The layer whose sigmoid weighs it; none where it is added as it is.
        pub gate: Option<W::Linear>,
    }
}

/// How logits of experts become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen experts alone.
    SoftmaxOfChosen,
    /// A sigmoid for each.
    Sigmoid,
}

/// Experts in groups, of which only the best stay eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equal size.
    pub count: usize,
    /// Groups that stay.
    pub kept: usize,
    /// A group's score is the sum of this many of its best experts; 1 is its maximum.
    pub best: usize,
}

tree! {
    /// Chooses experts.
    pub struct Router {
        /// Applied to the router's input first.
        pub norm: Option<W::Norm>,
        /// The router's input is the residual stream, not the normed input of the experts.
        pub reads_residual: bool,
        /// To one logit per expert.
        pub linear: W::Linear,
        /// Multiplier of each channel of its input.
        pub input_scale: Option<W::Vector>,
        /// Multiplier of the logits.
        pub logit_scale: f32,
        /// From logits to scores.
        pub score: RouterScore,
        /// Added to scores when experts are chosen, and then only.
        pub bias: Option<W::Vector>,
        /// Groups of experts.
        pub groups: Option<ExpertGroups>,
        /// Experts per token.
        pub chosen: usize,
        /// Whether the chosen experts' scores are divided by their sum, and how.
        pub renormalise: Option<Renormalise>,
        /// Multiplier of all weights.
        pub scale: f32,
        /// Multiplier of each expert's weight.
        pub expert_scale: Option<W::Vector>,
    }
}

/// The divisor of chosen experts' scores: `max(sum, least) + epsilon`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Renormalise {
    /// Added at the end.
    pub epsilon: f32,
    /// The sum counts as at least this.
    pub least: f32,
}

impl Router {
    /// Softmax over all experts, the best `chosen` of them.
    pub fn softmax(linear: Linear, chosen: usize, renormalise: bool) -> Self {
        Self {
            norm: None,
            reads_residual: false,
            input_scale: None,
            linear,
            logit_scale: 1.0,
            score: RouterScore::Softmax,
            bias: None,
            groups: None,
            chosen,
            renormalise: renormalise.then(Renormalise::default),
            scale: 1.0,
            expert_scale: None,
        }
    }
}
