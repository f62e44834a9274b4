//! Beside the residual stream: inputs of each layer's own, and several streams side by side, as plain data.

use super::Activation;
use super::tree::tree;

tree! {
    /// From token ids and first activations to an input for each layer (Gemma 3n, Gemma 4), of `width` channels:
    /// `scale · (norm(projection_scale · projection(x)) + table_scale · table[id])`, layer after layer. `x` are the first
    /// activations; the norm acts on each layer's part. Ids beyond the table have its first row.
    pub struct PerLayerEmbedding {
        /// Channels of a layer's input.
        pub width: usize,
        /// `(ids, layers · width)`.
        pub table: W::Table,
        /// Multiplier of its rows.
        pub table_scale: f32,
        /// To `(layers, width)`.
        pub projection: W::Linear,
        /// Multiplier of what it gives.
        pub projection_scale: f32,
        /// Over `width` channels.
        pub norm: W::Norm,
        /// Multiplier of the sum.
        pub scale: f32,
    }
}

tree! {
    /// `output(act(gate(x)) · input)` with a layer's part of the [`PerLayerEmbedding`].
    pub struct PerLayerInput {
        /// Which part.
        pub layer: usize,
        /// To the width of a part.
        pub gate: W::Linear,
        /// The non-linear function.
        pub activation: Activation,
        /// Back to the residual stream.
        pub output: W::Linear,
    }
}

tree! {
    /// A linear layer of low rank around which its input is added (Gemma 3n's LAuReL): `x + norm(right(left(x)))`.
    pub struct Laurel {
        /// Into the narrow space.
        pub left: W::Linear,
        /// Out of it.
        pub right: W::Linear,
        /// Of what comes out.
        pub norm: W::Norm,
    }
}

tree! {
    /// How the streams of a model with several are opened and joined. The first is the embedding `x`; every further one is a linear
    /// layer of `x`, rescaled token by token to the root mean square of `x`. In the end every further one goes through a linear
    /// layer, is rescaled to the first, and the mean of all is what the head gets. A mean square counts as at least
    /// [`LEAST_MEAN_SQUARE`](Self::LEAST_MEAN_SQUARE) where it divides.
    pub struct Streams {
        /// From the embedding to each further stream.
        pub open: Vec<W::Linear>,
        /// From each further stream back.
        pub join: Vec<W::Linear>,
    }
}

impl Streams {
    /// What a divisor's mean square counts as at least.
    pub const LEAST_MEAN_SQUARE: f32 = 1e-5;
}

tree! {
    /// A layer over several streams (Gemma 3n's AltUp): it predicts all of them, its residuals change the active one alone, and
    /// what they changed corrects the others.
    ///
    /// 1. `route(u) = tanh(router(router_scale · router_norm(u)))`.
    /// 2. `predicted[to] = stream[to] + Σ c[to, from] · stream[from]` with `c = prediction(route(stream[active]))`.
    /// 3. The residuals turn `predicted[active]` into `out`.
    /// 4. `stream[i] = predicted[i] + (out − predicted[active]) · (1 + correction(route(out))[i])`.
    /// 5. `input_norm(input(output_scale ⊙ stream[active]))` is added to every stream but the first.
    pub struct AltUp {
        /// The stream that the residuals change.
        pub active: usize,
        /// To `(streams)`.
        pub router: W::Linear,
        /// To `(streams, streams)`: to, from.
        pub prediction: W::Linear,
        /// To `(streams)`.
        pub correction: W::Linear,
        /// Before the router.
        pub router_norm: W::Norm,
        /// Multiplier of the router's input.
        pub router_scale: f32,
        /// Of what it gives.
        pub input_norm: W::Norm,
        /// Multiplier of each channel before the layer's own input.
        pub output_scale: Option<W::Vector>,
        /// The layer's own input.
        pub input: PerLayerInput<W>,
    }
}
