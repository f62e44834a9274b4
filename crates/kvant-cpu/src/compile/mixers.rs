//! Mixers with recurrent state, and latent attention.

use super::Weights;
use crate::blocks::{
    Convolution, DeltaProjection, GatedDeltaNet, GatedNorm, LatentAttention, LatentQuery, Linear, Mamba2,
    Norm, ShortConv,
};
use kvant_model::Tensor;
use kvant_model::description::{self, DecayRate, Matrix, Vector};
use kvant_model::error::{LoadError, Result};

impl Weights<'_> {
    pub(super) fn short_conv(&self, of: &description::ShortConv) -> Result<ShortConv> {
        Ok(ShortConv {
            slot: of.slot,
            input: self.linear(&of.input)?,
            conv: self.convolution(&of.conv)?,
            output: self.linear(&of.output)?,
        })
    }

    pub(super) fn mamba2(&self, of: &description::Mamba2) -> Result<Mamba2> {
        let (heads, inner) = (of.dims.heads, of.dims.inner());
        let norm = |norm: &description::GatedNorm| {
            if norm.width == 0 || !inner.is_multiple_of(norm.width) {
                return Err(LoadError::mismatch(format!("a norm of {} in {inner} channels", norm.width)));
            }
            Ok(GatedNorm {
                norm: Norm::rms(vec![1.0; norm.width], norm.eps),
                weight: self.vector(&norm.weight, inner)?,
                order: norm.order,
            })
        };
        Ok(Mamba2 {
            slot: of.slot,
            dims: of.dims,
            input: self.linear(&of.input)?,
            part_scales: of.part_scales,
            conv: self.convolution(&of.conv)?,
            dt_bias: self.vector(&of.dt_bias, heads)?,
            dt_limit: of.dt_limit,
            rates: self.rates(&of.decay, heads)?,
            skip: self.vector(&of.skip, heads)?,
            norm: of.norm.as_ref().map(norm).transpose()?,
            output: self.linear(&of.output)?,
        })
    }

    pub(super) fn delta_net(&self, of: &description::GatedDeltaNet) -> Result<GatedDeltaNet> {
        let projection = match &of.projection {
            description::DeltaProjection::Apart { qkv, z, b, a } => DeltaProjection::Apart {
                qkv: self.linear(qkv)?,
                z: self.linear(z)?,
                b: self.linear(b)?,
                a: self.linear(a)?,
            },
            description::DeltaProjection::ByKeyHead { qkvz, ba } => {
                DeltaProjection::ByKeyHead { qkvz: self.linear(qkvz)?, ba: self.linear(ba)? }
            }
        };
        Ok(GatedDeltaNet {
            slot: of.slot,
            dims: of.dims,
            projection,
            conv: self.convolution(&of.conv)?,
            qk_eps: of.qk_eps,
            rates: self.rates(&of.decay, of.dims.value_heads)?,
            dt_bias: self.vector(&of.dt_bias, of.dims.value_heads)?,
            norm: self.norm(&of.norm)?,
            output: self.linear(&of.output)?,
        })
    }

    pub(super) fn latent_attention(&self, of: &description::LatentAttention) -> Result<LatentAttention> {
        let query = match &of.query {
            description::LatentQuery::Direct(q) => LatentQuery::Direct(self.linear(q)?),
            description::LatentQuery::LowRank { down, norm, up } => LatentQuery::LowRank {
                down: self.linear(down)?,
                norm: self.norm(norm)?,
                up: self.linear(up)?,
            },
        };
        let value_up = |matrix: &Matrix| Ok(Linear::new(self.product(matrix.read(self.checkpoint)?)?, None));
        Ok(LatentAttention {
            slot: of.slot,
            heads: of.heads,
            nope_dim: of.nope_dim,
            rope_dim: of.rope_dim,
            latent_dim: of.latent_dim,
            value_dim: of.value_dim,
            query,
            latent: self.linear(&of.latent)?,
            latent_norm: self.norm(&of.latent_norm)?,
            query_to_latent: of.key_up.iter().map(|matrix| self.turned(matrix)).collect::<Result<_>>()?,
            value_up: of.value_up.iter().map(value_up).collect::<Result<_>>()?,
            rope: of.rope,
            query_gain: of.query_gain,
            scale: of.scale,
            output: self.linear(&of.output)?,
        })
    }

    /// The product with the transpose of a matrix, in plain numbers.
    fn turned(&self, matrix: &Matrix) -> Result<Linear> {
        let stored = matrix.read(self.checkpoint)?;
        let (rows, columns) = (stored.rows(), stored.columns());
        let values = stored.to_f32()?;
        let turned: Vec<f32> =
            (0..columns).flat_map(|column| values[column..].iter().step_by(columns).copied()).collect();
        stored.bytes().release();
        Ok(Linear::new(self.product(Tensor::from_f32(stored.name(), vec![columns, rows], &turned)?)?, None))
    }

    fn convolution(&self, of: &description::Convolution) -> Result<Convolution> {
        if of.kernel == 0 {
            return Err(LoadError::mismatch("a convolution without taps"));
        }
        let weight = self.vector(&of.weight, of.channels * of.kernel)?;
        let bias = of.bias.as_ref().map(|bias| self.vector(bias, of.channels)).transpose()?;
        Ok(Convolution::new((of.channels, of.kernel), &weight, bias, of.activation))
    }

    /// A, one for each head.
    fn rates(&self, of: &DecayRate, heads: usize) -> Result<Vec<f32>> {
        Ok(match of {
            DecayRate::Log(logs) => self.vector(logs, heads)?.into_iter().map(|log| -log.exp()).collect(),
            DecayRate::Plain(rates) => self.vector(rates, heads)?,
        })
    }

    /// A list of `count` numbers.
    fn vector(&self, of: &Vector, count: usize) -> Result<Vec<f32>> {
        let numbers = of.read(self.checkpoint)?;
        if numbers.len() != count {
            let name = &of.tensor.name;
            let found = numbers.len();
            return Err(LoadError::mismatch(format!(
                "tensor {name:?}: {count} numbers are needed, {found} are there"
            )));
        }
        Ok(numbers)
    }
}
