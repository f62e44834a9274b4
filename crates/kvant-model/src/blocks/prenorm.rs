//! The commonest layer: norm before attention, norm before the feed-forward part.

use crate::blocks::{Attention, Block, Ffn, Norm, Pass, Rows};

/// `x += attention(norm(x)); x += ffn(norm(x))`.
pub struct PreNorm {
    /// Before attention.
    pub attention_norm: Norm,
    /// The attention.
    pub attention: Attention,
    /// Before the feed-forward part.
    pub ffn_norm: Norm,
    /// The feed-forward part.
    pub ffn: Ffn,
    /// Multiplier of both contributions; 1 in most models.
    pub residual_scale: f32,
}

impl Block for PreNorm {
    fn forward(&self, x: &mut Rows, pass: &mut Pass<'_, '_>) {
        let attended = self.attention.forward(&self.attention_norm.forward(x), pass);
        x.add_scaled(&attended, self.residual_scale);
        let fed = self.ffn.forward(&self.ffn_norm.forward(x));
        x.add_scaled(&fed, self.residual_scale);
    }

    fn attention(&self) -> Option<&Attention> {
        Some(&self.attention)
    }
}
