//! Which basis the numbers of a packed page lie in: a description, whose arithmetic is `transform`'s.

use super::Dense;
use crate::error::BuildError;
use std::sync::Arc;

/// Which rotation, by name; a [`crate::Basis`] makes the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rotation {
    /// No change.
    Identity,
    /// Sign diagonal, then Walsh–Hadamard; for d = 2ᵏ·m with odd m the Kronecker product with an m-point
    /// Hartley transform, so that every output mixes every input.
    Srht,
    /// Sign diagonal, then the real-packed orthonormal DFT; any even d.
    Srft,
    /// Plain 64-wide Hadamard blocks without signs, as llama.cpp rotates its cache; identity where 64 does not
    /// divide d, as there.
    Hadamard64,
    /// Uniformly distributed over all rotations; a dense matrix.
    Haar,
}

impl Rotation {
    /// Refuses dimensions that the rotation is not defined for.
    pub(crate) fn serves(self, dim: usize) -> Result<(), BuildError> {
        if self == Rotation::Srft && dim % 2 == 1 {
            return Err(BuildError::Dim {
                dim,
                reason: "SRFT needs an even number of channels; SRHT takes any",
            });
        }
        Ok(())
    }
}

/// The linear part T of a change of basis.
#[derive(Clone, Debug, PartialEq)]
pub enum Linear {
    /// A rotation that its name and seed determine.
    Rotation {
        /// Which.
        kind: Rotation,
        /// Of its random signs or rows; zero where there are none.
        seed: u64,
    },
    /// A matrix of a plan, with its inverse.
    Dense(Arc<Dense>),
}

/// The change of basis y = Λ⁻¹ T (x − μ) of a codec. A reader goes back: x = T⁻¹ Λ y + μ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BasisFormat {
    /// Channels.
    pub dim: usize,
    /// T.
    pub linear: Linear,
    /// The diagonal of Λ, positive, one number per channel; empty where Λ is the identity.
    pub lambda: Vec<f32>,
    /// μ, in the model's basis, one number per channel; empty where it is zero.
    pub mean: Vec<f32>,
}

impl BasisFormat {
    /// A rotation, without λ and mean.
    pub(crate) fn rotation(kind: Rotation, dim: usize, seed: u64) -> BasisFormat {
        let seed = match kind {
            Rotation::Identity | Rotation::Hadamard64 => 0,
            Rotation::Srht | Rotation::Srft | Rotation::Haar => seed,
        };
        BasisFormat { dim, linear: Linear::Rotation { kind, seed }, lambda: Vec::new(), mean: Vec::new() }
    }

    /// A plan's matrix, without λ and mean.
    pub(crate) fn dense(matrix: Arc<Dense>) -> BasisFormat {
        BasisFormat { dim: matrix.dim(), linear: Linear::Dense(matrix), lambda: Vec::new(), mean: Vec::new() }
    }
}
