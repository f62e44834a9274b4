//! The bases of pages on a card: matrices for queries and sums, and what an encoder needs to do what the CPU does.

use crate::buffer::Buffer;
use crate::device::{CudaGpu, OpenError};
use crate::params::Address;
use kvant_codec::format::{BasisFormat, Linear};
use kvant_codec::{AngleBook, Basis, Rotation, Side, Tier};
use std::sync::Arc;

/// How an encoder goes into a basis, by its number in `form.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BasisKind {
    Model = 0,
    Hadamard = 1,
    Dense = 2,
}

/// Addresses of a basis; 0 for what it does not have.
#[derive(Clone, Copy)]
pub(super) struct Matrices {
    pub kind: BasisKind,
    /// Hadamard blocks have power · odd channels.
    pub power: usize,
    pub odd: usize,
    pub mean: Address,
    pub signs: Address,
    pub hartley: Address,
    /// (dim, dim): what channel j of the model adds to those of the basis, without λ.
    pub forward: Address,
    pub inverse_lambda: Address,
    /// (dim, dim): what channel j of the basis adds to those of the model.
    pub backward: Address,
}

/// The bases of a layout: layers and heads share them.
pub(crate) struct Bases {
    card: Arc<CudaGpu>,
    known: Vec<(BasisFormat, Matrices)>,
    turns: Vec<(Side, usize, Vec<BasisFormat>, Address)>,
    tables: Option<Address>,
    buffers: Vec<Buffer>,
}

impl Bases {
    pub(crate) fn new(card: &Arc<CudaGpu>) -> Bases {
        let (known, turns, buffers) = (Vec::new(), Vec::new(), Vec::new());
        Bases { card: Arc::clone(card), known, turns, tables: None, buffers }
    }

    fn floats(&mut self, numbers: &[f32]) -> Result<Address, OpenError> {
        if numbers.is_empty() {
            return Ok(0);
        }
        let buffer = Buffer::of_floats(&self.card, numbers)?;
        let address = buffer.address();
        self.buffers.push(buffer);
        Ok(address)
    }

    /// The tables of trellis codes.
    pub(super) fn trellis_tables(&mut self) -> Result<Address, OpenError> {
        if let Some(address) = self.tables {
            return Ok(address);
        }
        let buffer = Buffer::of(&self.card, &super::form::trellis_tables())?;
        let address = buffer.address();
        self.buffers.push(buffer);
        self.tables = Some(address);
        Ok(address)
    }

    /// Directions of polar codes, 32 to a level.
    pub(super) fn angles(&mut self, book: &AngleBook) -> Result<Address, OpenError> {
        let level = |angles: &Vec<[f32; 2]>| {
            let mut level = angles.clone();
            level.resize(32, [0.0; 2]);
            level.into_iter().flatten()
        };
        self.floats(&book.iter().flat_map(level).collect::<Vec<f32>>())
    }

    /// What an encoder needs of a basis.
    pub(super) fn matrices(&mut self, of: &BasisFormat) -> Result<Matrices, OpenError> {
        if let Some((_, known)) = self.known.iter().find(|(format, _)| format == of) {
            return Ok(*known);
        }
        let dim = of.dim;
        let (kind, power, odd, signs) = match &of.linear {
            Linear::Rotation { kind: Rotation::Srht, seed } => {
                let power = 1 << dim.trailing_zeros();
                (BasisKind::Hadamard, power, dim / power, crate::cache::signs(dim, *seed))
            }
            Linear::Rotation { kind: Rotation::Hadamard64, .. } if dim.is_multiple_of(64) => {
                (BasisKind::Hadamard, 64, 1, vec![0.125; dim])
            }
            Linear::Rotation { kind: Rotation::Identity | Rotation::Hadamard64, .. } => {
                (BasisKind::Model, 1, 1, Vec::new())
            }
            Linear::Rotation { kind: Rotation::Srft | Rotation::Haar, .. } | Linear::Dense(_) => {
                (BasisKind::Dense, 1, 1, Vec::new())
            }
        };
        let entry = |n: usize| {
            let angle = std::f64::consts::TAU * (n / odd * (n % odd) % odd) as f64 / odd as f64;
            (angle.sin() + angle.cos()) as f32
        };
        let hartley: Vec<f32> = if odd > 1 { (0..odd * odd).map(entry).collect() } else { Vec::new() };
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        if kind == BasisKind::Dense {
            (forward, backward) = (unit_rows(dim), unit_rows(dim));
            let plain = linear(of);
            plain.apply(&mut forward, Tier::Scalar).expect("whole vectors");
            plain.undo(&mut backward, Tier::Scalar).expect("whole vectors");
        }
        let inverse_lambda: Vec<f32> = of.lambda.iter().map(|lambda| 1.0 / lambda).collect();
        let made = Matrices {
            kind,
            power,
            odd,
            mean: self.floats(&of.mean)?,
            signs: self.floats(&signs)?,
            hartley: self.floats(&hartley)?,
            forward: self.floats(&forward)?,
            inverse_lambda: self.floats(&inverse_lambda)?,
            backward: self.floats(&backward)?,
        };
        self.known.push((of.clone(), made));
        Ok(made)
    }

    /// What turns queries into the basis of keys, (dim, width), or sums of values back, (width, dim); 0 where nothing turns.
    pub(super) fn turn(
        &mut self,
        side: Side,
        of: &[BasisFormat],
        width: usize,
    ) -> Result<Address, OpenError> {
        // Means are added apart.
        let of: Vec<BasisFormat> = of
            .iter()
            .map(|basis| {
                let mut basis = basis.clone();
                basis.mean.clear();
                basis
            })
            .collect();
        let is_plain = |basis: &BasisFormat| {
            let kind = match &basis.linear {
                Linear::Rotation { kind: Rotation::Hadamard64, .. } => !basis.dim.is_multiple_of(64),
                Linear::Rotation { kind, .. } => *kind == Rotation::Identity,
                Linear::Dense(_) => false,
            };
            kind && basis.lambda.is_empty()
        };
        if let [only] = &of[..]
            && is_plain(only)
        {
            return Ok(0);
        }
        let known = |(known, own, bases, _): &&(Side, usize, Vec<BasisFormat>, Address)| {
            (*known, *own, bases) == (side, width, &of)
        };
        if let Some((.., address)) = self.turns.iter().find(known) {
            return Ok(*address);
        }
        // Row j: what channel j of all bases adds to the model's.
        let dim = of.first().map_or(0, |basis| basis.dim);
        let mut rows = vec![0.0; width * dim];
        for (part, basis) in of.iter().enumerate() {
            let own = &mut rows[part * dim * dim..][..dim * dim];
            own.copy_from_slice(&unit_rows(dim));
            with_lambda(basis).undo(own, Tier::Scalar).expect("whole vectors");
        }
        let numbers = match side {
            Side::Key => (0..dim * width).map(|n| rows[n % width * dim + n / width]).collect(),
            Side::Value => rows,
        };
        let address = self.floats(&numbers)?;
        self.turns.push((side, width, of, address));
        Ok(address)
    }
}

/// The rows of an identity matrix.
fn unit_rows(dim: usize) -> Vec<f32> {
    (0..dim * dim).map(|n| f32::from(u8::from(n % dim == n / dim))).collect()
}

/// T alone.
fn linear(of: &BasisFormat) -> Basis {
    match &of.linear {
        Linear::Rotation { kind, seed } => Basis::new(*kind, of.dim, *seed),
        Linear::Dense(dense) => Basis::dense(Arc::clone(dense)),
    }
}

/// T with λ.
fn with_lambda(of: &BasisFormat) -> Basis {
    match &of.lambda[..] {
        [] => linear(of),
        lambda => linear(of).with_lambda(lambda).unwrap_or_else(|| linear(of)),
    }
}
