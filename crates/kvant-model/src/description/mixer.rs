//! Mixers with recurrent state, and attention over latents, as plain data.
//!
//! Formulas here are definitions, token by token. What a recurrent slot holds is part of them, because files and backends
//! share it: a *state* at the start of a chunk of [`STATE_CHUNK`](kvant_cache::STATE_CHUNK) tokens, and a *row* for each token
//! of the open chunk. A state begins with the tail of the convolution, its last `kernel − 1` inputs
//! `(kernel − 1, channels)`, oldest first and zero before the first token; a row begins with the convolution's input
//! `(channels)`. What follows stands at each `state_shape`.

use super::tree::tree;
use super::{Activation, Matrix, QueryGain, RopeId, Vector};
use kvant_cache::{KvSlot, LatentShape, RecurrentShape, StateSlot};

/// A causal convolution of every channel by itself: `y[t, c] = act(b[c] + Σᵢ w[c, i] · x[t − (kernel − 1) + i, c])`, where inputs
/// before the first token are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Convolution {
    /// Channels of its input and of its output.
    pub channels: usize,
    /// Taps; the last one is the current token's.
    pub kernel: usize,
    /// `(channels, kernel)`.
    pub weight: Vector,
    /// `(channels)`.
    pub bias: Option<Vector>,
    /// Applied to what it gives.
    pub activation: Option<Activation>,
}

tree! {
    /// A gated short convolution (LFM2): `output(C ⊙ conv(B ⊙ x))`, with B, C and x from the residual stream.
    pub struct ShortConv {
        /// Its state.
        pub slot: StateSlot,
        /// To `(3, channels)`: B, C, x.
        pub input: W::Linear,
        /// Of `B ⊙ x`.
        pub conv: W::Convolution,
        /// From its channels back to the residual stream.
        pub output: W::Linear,
    }
}

impl ShortConv {
    /// What its slot holds: the tail, and the convolution's inputs.
    pub fn state_shape(channels: usize, kernel: usize) -> RecurrentShape {
        RecurrentShape { state: tail(channels, kernel), row: channels }
    }
}

/// How the rates `A < 0` of decay are stored, one per head.
#[derive(Debug, Clone, PartialEq)]
pub enum DecayRate {
    /// As `ln(−A)`, the `A_log` of Hugging Face checkpoints.
    Log(Vector),
    /// As A, in GGUF files.
    Plain(Vector),
}

/// The sizes of a Mamba-2 mixer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Dims {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C: head h is of group `h / (heads / groups)`.
    pub groups: usize,
    /// Numbers of the state of a channel, which is the width of B and of C.
    pub state: usize,
    /// Taps of the convolution.
    pub kernel: usize,
}

impl Mamba2Dims {
    /// Width of z, x and y.
    pub fn inner(&self) -> usize {
        product(&[self.heads, self.head_dim])
    }

    /// Width of x, B and C together, which go through the convolution.
    pub fn conv_channels(&self) -> usize {
        self.inner().saturating_add(product(&[2, self.groups, self.state]))
    }

    /// Width of the input layer's output.
    pub fn projected(&self) -> usize {
        self.inner().saturating_add(self.conv_channels()).saturating_add(self.heads)
    }

    /// What its slot holds. After the tail, the state's S `(heads, head_dim, state)`. After the convolution's input, a row's
    /// `dt ⊙ x` `(heads, head_dim)`, B `(groups, state)`, and `L` `(heads)`, the sum of `dt · A` from the chunk's first token on:
    /// with these, `S[t] = exp(L[t]) · S + Σ_{j ≤ t} exp(L[t] − L[j]) · (dt ⊙ x)[j] ⊗ B[j]`.
    pub fn state_shape(&self) -> RecurrentShape {
        let channels = self.conv_channels();
        let matrix = product(&[self.heads, self.head_dim, self.state]);
        let row = [self.inner(), product(&[self.groups, self.state]), self.heads];
        RecurrentShape {
            state: tail(channels, self.kernel).saturating_add(matrix),
            row: row.iter().fold(channels, |sum, &part| sum.saturating_add(part)),
        }
    }
}

tree! {
    /// A Mamba-2 state space model (Granite 4, Nemotron-H, Falcon-H1).
    ///
    /// 1. `input` gives z, x, B, C and dt, each multiplied by its part of `part_scales`; x, B and C go through the convolution.
    /// 2. `dt = softplus(dt + dt_bias)`, clamped to `dt_limit`.
    /// 3. For each head `S ← exp(dt · A) · S + dt · x ⊗ B` and `y = S · C + D · x`.
    /// 4. y is gated with silu(z) and normed, in the order that `norm` says; then `output`.
    pub struct Mamba2 {
        /// Its state.
        pub slot: StateSlot,
        /// Its sizes.
        pub dims: Mamba2Dims,
        /// To z `(heads, head_dim)`, x of the same shape, B and C `(groups, state)`, and dt `(heads)`.
        pub input: W::Linear,
        /// Multipliers of these five; all 1 in most models.
        pub part_scales: [f32; 5],
        /// Of x, B and C.
        pub conv: W::Convolution,
        /// `(heads)`.
        pub dt_bias: W::Vector,
        /// Least and largest dt.
        pub dt_limit: Option<(f32, f32)>,
        /// A.
        pub decay: W::Decay,
        /// D, `(heads)`.
        pub skip: W::Vector,
        /// A norm beside the gate.
        pub norm: Option<W::GatedNorm>,
        /// Back to the residual stream.
        pub output: W::Linear,
    }
}

/// An RMS norm over groups of channels, beside a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedNorm {
    /// A multiplier for each channel of all groups.
    pub weight: Vector,
    /// Channels that are normed together.
    pub width: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Which comes first.
    pub order: GateOrder,
}

/// Whether a gate stands before its norm or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOrder {
    /// `rms(y ⊙ silu(z)) ⊙ w`.
    GateFirst,
    /// `rms(y) ⊙ w ⊙ silu(z)`.
    NormFirst,
}

/// The order of value heads where several of them read one key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Those of a key head together: head h reads key head `h / (value_heads / key_heads)`.
    Grouped,
    /// One of each key head in turn: head h reads key head `h % key_heads`. GGUF files of Qwen 3.5 have it.
    Tiled,
}

/// The sizes of a gated DeltaNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaDims {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each of which reads one key head.
    pub value_heads: usize,
    /// Which one.
    pub order: HeadOrder,
    /// Channels of a query and of a key.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub kernel: usize,
}

impl DeltaDims {
    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// Width of all queries, and of all keys.
    pub fn key_width(&self) -> usize {
        product(&[self.key_heads, self.key_dim])
    }

    /// Width of all values, and of z.
    pub fn value_width(&self) -> usize {
        product(&[self.value_heads, self.value_dim])
    }

    /// Width of q, k and v together, which go through the convolution.
    pub fn conv_channels(&self) -> usize {
        self.key_width().saturating_mul(2).saturating_add(self.value_width())
    }

    /// What its slot holds. After the tail, the state's S `(value_heads, key_dim, value_dim)`. After the convolution's input, a
    /// row's k `(key_heads, key_dim)` of length 1, u `(value_heads, value_dim)`, and G `(value_heads)`, the sum of g from the
    /// chunk's first token on: with these, `S[t] = exp(G[t]) · S + Σ_{j ≤ t} exp(G[t] − G[j]) · k[j] ⊗ u[j]`.
    pub fn state_shape(&self) -> RecurrentShape {
        let channels = self.conv_channels();
        let matrix = product(&[self.value_heads, self.key_dim, self.value_dim]);
        let row = [self.key_width(), self.value_width(), self.value_heads];
        RecurrentShape {
            state: tail(channels, self.kernel).saturating_add(matrix),
            row: row.iter().fold(channels, |sum, &part| sum.saturating_add(part)),
        }
    }
}

tree! {
    /// A gated DeltaNet (Qwen3-Next, Qwen3.5): linear attention whose state forgets, and corrects what it holds.
    ///
    /// 1. The projection gives q, k, v, z, b and a; q, k and v go through the convolution.
    /// 2. Every head of q and of k is divided by `√(Σ x² + qk_eps)`; q also by `√key_dim`.
    /// 3. `β = sigmoid(b)` and `g = A · softplus(a + dt_bias)`, one number each per value head.
    /// 4. For each value head `S ← exp(g) · S`, then `u = β · (v − Sᵀk)`, `S ← S + k ⊗ u`, `o = Sᵀq`.
    /// 5. `norm(o) ⊙ silu(z)`, then `output`.
    pub struct GatedDeltaNet {
        /// Its state.
        pub slot: StateSlot,
        /// Its sizes.
        pub dims: DeltaDims,
        /// From the residual stream to heads.
        pub projection: DeltaProjection<W>,
        /// Of q, k and v: all queries, then all keys, then all values.
        pub conv: W::Convolution,
        /// Added to the square of a length.
        pub qk_eps: f32,
        /// A.
        pub decay: W::Decay,
        /// `(value_heads)`.
        pub dt_bias: W::Vector,
        /// Of each value head's output.
        pub norm: W::Norm,
        /// Back to the residual stream.
        pub output: W::Linear,
    }
}

tree! {
    /// How a gated DeltaNet's inputs come out of the residual stream.
    pub enum DeltaProjection {
        /// Four linear layers.
        Apart {
            /// To all queries, then all keys, then all values.
            qkv: W::Linear,
            /// To `(value_heads, value_dim)`.
            z: W::Linear,
            /// To `(value_heads)`.
            b: W::Linear,
            /// To `(value_heads)`.
            a: W::Linear,
        },
        /// Two layers, whose outputs lie together by key head. A key head's part has those of its value heads, in their order.
        ByKeyHead {
            /// For each key head: q `(key_dim)`, k `(key_dim)`, v and z of its value heads.
            qkvz: W::Linear,
            /// For each key head: b, then a, of its value heads.
            ba: W::Linear,
        },
    }
}

tree! {
    /// Multi-head latent attention (DeepSeek V2 and V3, GLM 4.7 Flash, Mistral 4): keys and values of all heads are linear in
    /// one latent, which is what a sequence keeps, beside one rotated key that all heads share.
    ///
    /// 1. `query` gives `(heads, nope_dim + rope_dim)`; the second part of every head is rotated.
    /// 2. `latent` gives `(latent_dim + rope_dim)`; the first part is normed with `latent_norm`, the second is rotated.
    /// 3. Head h has the key `up.key[h] · latent | rotated part` and the value `up.value[h] · latent`, and attends with softmax
    ///    over `scale · q · k`; then `output`.
    pub struct LatentAttention {
        /// The slot it writes and reads: latents.
        pub slot: KvSlot,
        /// Query heads.
        pub heads: usize,
        /// Channels of a query and of a key that are not rotated.
        pub nope_dim: usize,
        /// Channels that are.
        pub rope_dim: usize,
        /// Channels of a latent.
        pub latent_dim: usize,
        /// Channels of a value.
        pub value_dim: usize,
        /// Sliding window: how many tokens a query sees, itself included; `None` for all.
        pub window: Option<usize>,
        /// To queries.
        pub query: LatentQuery<W>,
        /// To the latent and the part that is rotated.
        pub latent: W::Linear,
        /// Of the latent.
        pub latent_norm: W::Norm,
        /// From the latent to keys and values.
        pub up: W::LatentHeads,
        /// The rotation.
        pub rope: Option<RopeId>,
        /// Growth of queries with their position.
        pub query_gain: Option<QueryGain>,
        /// Multiplier of `q · k`.
        pub scale: f32,
        /// From `(heads, value_dim)` back to the residual stream.
        pub output: W::Linear,
    }
}

/// The matrices that each head of latent attention has for itself.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentHeads {
    /// For each head from the latent to the part of a key that is not rotated, `(nope_dim, latent_dim)`.
    pub key: Vec<Matrix>,
    /// For each head from the latent to a value, `(value_dim, latent_dim)`.
    pub value: Vec<Matrix>,
}

impl LatentAttention {
    /// What its slot holds.
    pub fn latent_shape(latent_dim: usize, rope_dim: usize, window: Option<usize>) -> LatentShape {
        LatentShape { kv_heads: 1, latent_dim, rope_dim, window }
    }
}

tree! {
    /// How the queries of latent attention come out of the residual stream.
    pub enum LatentQuery {
        /// One linear layer.
        Direct(W::Linear),
        /// Through a narrow space: `up(norm(down(x)))`.
        LowRank {
            /// Into it.
            down: W::Linear,
            /// In it.
            norm: W::Norm,
            /// Out of it, to `(heads, nope_dim + rope_dim)`.
            up: W::Linear,
        },
    }
}

/// Numbers of a convolution's tail.
fn tail(channels: usize, kernel: usize) -> usize {
    product(&[channels, kernel.saturating_sub(1)])
}

/// Sizes come from files that may lie, and where there are no tensors to hold them against nothing else bounds a product.
fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| usize::saturating_mul(product, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_tail_and_matrix_and_what_a_step_reads() {
        assert_eq!(ShortConv::state_shape(64, 3), RecurrentShape { state: 128, row: 64 });
        let mamba = Mamba2Dims { heads: 6, head_dim: 16, groups: 2, state: 12, kernel: 4 };
        assert_eq!((mamba.inner(), mamba.conv_channels(), mamba.projected()), (96, 144, 246));
        let state = 3 * 144 + 6 * 16 * 12;
        assert_eq!(mamba.state_shape(), RecurrentShape { state, row: 144 + 96 + 24 + 6 });
        let order = HeadOrder::Grouped;
        let delta = DeltaDims { key_heads: 2, value_heads: 4, order, key_dim: 16, value_dim: 8, kernel: 4 };
        let state = 3 * 96 + 4 * 16 * 8;
        assert_eq!(delta.state_shape(), RecurrentShape { state, row: 96 + 32 + 32 + 4 });
        let hostile = Mamba2Dims {
            heads: 1 << 24,
            head_dim: 1 << 24,
            groups: 1 << 24,
            state: 1 << 24,
            kernel: 1 << 24,
        };
        assert_eq!(hostile.state_shape().state, usize::MAX);
    }
}
