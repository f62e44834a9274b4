//! Attention over latents: how its slots are kept, how it is compiled, and how a pass goes through it.
//!
//! MLA: W_uk and W_uv are absorbed: queries meet the latents themselves, and what weights sum up is latents. Both are products of a head by itself,
//! so the heads of a pass are multiplied as experts are, in groups of rows of one head. Gemma 4's global layers have latents of several kv heads, for
//! their keys are made of values: `folded.rs`. Pages of latents are canonical on the card: a kernel turns a page into f16 in shared memory once, for
//! all columns that read it (`kernels/latent.cuh`).

mod by_head;
mod folded;
mod pages;
mod run;

pub(crate) use by_head::ByHead;
pub(crate) use folded::{Folded, check_folded, latents_of};
pub(crate) use pages::{LatentPages, latent_slot};

use crate::compile::{Compiler, Source, check_norm};
use crate::moe::ExpertMatrix;
use crate::program::{Linear, Norm, Reading, Widths};
use half::f16;
use kvant_model::description;
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use std::ops::Deref;

/// Channels of a latent and of a rotated part that `kernels/latent.cuh` has room for.
const MOST: (usize, usize) = (512, 128);

/// Columns of the widest kernel.
const COLUMNS: usize = 64;

/// Query tokens that share the columns of a kv head of so many query heads.
pub(crate) fn columns_tile(heads: usize) -> usize {
    (COLUMNS / heads).max(1)
}

/// How queries come out of the residual stream.
pub(crate) enum LatentQuery {
    Direct(Linear),
    /// `up(norm(down(x)))`.
    LowRank {
        down: Linear,
        norm: Norm,
        up: Linear,
    },
}

/// Latent attention: numbers as described, weights on the card.
pub(crate) struct LatentAttention {
    pub described: description::LatentAttention,
    pub query: LatentQuery,
    /// To the latent and the part that is rotated.
    pub latent: Linear,
    pub latent_norm: Norm,
    /// W_ukᵀ and W_uv of all heads.
    pub query_to_latent: ExpertMatrix,
    pub value_up: ExpertMatrix,
    pub output: Linear,
}

impl Deref for LatentAttention {
    type Target = description::LatentAttention;

    fn deref(&self) -> &description::LatentAttention {
        &self.described
    }
}

impl LatentAttention {
    /// What a pass has to know of it.
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            slot: self.slot,
            heads: self.heads,
            width: self.latent_dim,
            window: self.window,
            rope: self.rope,
            tile: columns_tile(self.heads),
            wide_tile: 0,
            by_head: true,
            latents: true,
            gain: self.query_gain,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let query = match &self.query {
            LatentQuery::Direct(q) => q.bytes(),
            LatentQuery::LowRank { down, up, .. } => down.bytes() + up.bytes(),
        };
        let heads = self.query_to_latent.matrix.bytes() + self.value_up.matrix.bytes();
        query + self.latent.bytes() + heads + self.output.bytes()
    }
}

/// Whether kernels have room for a latent and a rotated part of these widths.
fn check_widths(latent: usize, rotated: usize) -> std::result::Result<(), String> {
    let is_whole = |channels: usize, of: usize, most: usize| {
        channels.is_multiple_of(of) && (of..=most).contains(&channels)
    };
    match is_whole(latent, 64, MOST.0) && is_whole(rotated, 16, MOST.1) {
        true => Ok(()),
        false => Err(format!(
            "latents of {latent} and {rotated} channels, where whole 64s up to {} and whole 16s up to {} run",
            MOST.0, MOST.1
        )),
    }
}

/// What of latent attention does not run.
pub(crate) fn check_latent(
    of: &description::LatentAttention,
    ropes: &[description::Rope],
) -> std::result::Result<(), String> {
    let (latent, rotated) = (of.latent_dim, of.rope_dim);
    check_widths(latent, rotated)?;
    if !of.nope_dim.is_multiple_of(64) || !of.value_dim.is_multiple_of(16) || of.heads == 0 {
        return Err(format!(
            "{} heads of {} and {} channels beside latents, not whole 64s and 16s",
            of.heads, of.nope_dim, of.value_dim
        ));
    }
    let turned = of.rope.and_then(|rope| ropes.get(rope.0)).map_or(0, description::Rope::dims);
    if turned > rotated {
        return Err("a rotation of more channels than latents have beside them".to_owned());
    }
    check_norm(&of.latent_norm, latent)?;
    match &of.query {
        description::LatentQuery::LowRank { down, norm, .. } => check_norm(norm, down.outputs()),
        description::LatentQuery::Direct(_) => Ok(()),
    }
}

impl Compiler<'_> {
    /// Of a branch with this multiplier.
    pub(crate) fn latent_attention(
        &self,
        of: &description::LatentAttention,
        widths: &mut Widths,
        scale: f32,
    ) -> Result<LatentAttention> {
        let query = match &of.query {
            description::LatentQuery::Direct(q) => LatentQuery::Direct(self.linear(&[q], 1.0)?),
            description::LatentQuery::LowRank { down, norm, up } => {
                widths.first = widths.first.max(down.outputs());
                widths.inner = widths.inner.max(down.outputs());
                LatentQuery::LowRank {
                    down: self.linear(&[down], 1.0)?,
                    norm: self.norm(norm, 1.0)?,
                    up: self.linear(&[up], 1.0)?,
                }
            }
        };
        let (heads, latent, rotated) = (of.heads, of.latent_dim, of.rope_dim);
        widths.projected = widths.projected.max(heads * (of.nope_dim + rotated));
        widths.first = widths.first.max(latent + rotated);
        widths.queries = widths.queries.max(heads * (latent + rotated).max(of.nope_dim).max(of.value_dim));
        widths.by_head = widths.by_head.max(heads * latent.max(of.value_dim));
        Ok(LatentAttention {
            described: of.clone(),
            query,
            latent: self.linear(&[&of.latent], 1.0)?,
            latent_norm: self.norm(&of.latent_norm, 1.0)?,
            query_to_latent: self.by_head(&of.up.key, (latent, of.nope_dim), true)?,
            value_up: self.by_head(&of.up.value, (of.value_dim, latent), false)?,
            output: self.linear(&[&of.output], scale)?,
        })
    }

    /// A matrix `(rows, channels)` for every head, transposed or as it is stored.
    fn by_head(
        &self,
        matrices: &[description::Matrix],
        (rows, channels): (usize, usize),
        turn: bool,
    ) -> Result<ExpertMatrix> {
        let matrix = match self.source() {
            Source::Noise(kind) => self.noise(kind, rows * matrices.len(), channels)?,
            Source::File(checkpoint, _) => {
                let read = |matrix: &description::Matrix| {
                    let stored = matrix.read(checkpoint)?;
                    if turn { turned(&stored) } else { Ok(stored) }
                };
                let tensors = matrices.iter().map(read).collect::<Result<Vec<_>>>()?;
                if tensors.iter().any(|tensor| (tensor.rows(), tensor.columns()) != (rows, channels)) {
                    return Err(LoadError::mismatch(format!("a head's matrix is not {rows} × {channels}")));
                }
                self.upload(&tensors)?
            }
        };
        Ok(ExpertMatrix { matrix, rows, bias: None, scale: 1.0, gating: None })
    }
}

/// The transpose of a matrix. Plain numbers stay what they are; those of packed weights, which have no transpose, are rounded to f16.
fn turned(stored: &Tensor) -> Result<Tensor> {
    let (rows, columns) = (stored.rows(), stored.columns());
    let values = stored.to_f32()?;
    let numbers = (0..columns).flat_map(|column| values[column..].iter().step_by(columns).copied());
    stored.bytes().release();
    let (name, shape) = (stored.name(), vec![columns, rows]);
    if matches!(stored.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        return Tensor::from_f32(name, shape, &numbers.collect::<Vec<f32>>());
    }
    let bytes: Vec<u8> = numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
    Tensor::new(name, DType::F16, shape, bytes.into())
}
