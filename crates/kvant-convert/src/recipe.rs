//! Which tensor gets which type.
//!
//! | part of a model | `int4`, `q4_0`, `mxfp4` | `q4_k` | `q6_k`, `int8`, `q8_0` | `f16` | `f32` |
//! |---|---|---|---|---|---|
//! | matrices of linear layers, experts | the type asked for | Q4_K | Q6_K or Q8_0 | F16 | F32 |
//! | token embeddings, output | Q8_0 | Q6_K | Q8_0 | F16 | F32 |
//! | positions | F16 | F16 | F16 | F16 | F32 |
//! | norms, biases, routers, gates, convolutions, recurrent vectors | F32 | F32 | F32 | F32 | F32 |
//!
//! A row that blocks of 256 do not fill is stored as Q8_0, one that blocks of 32 do not fill as F16. In safetensors embeddings,
//! output and positions are F16, and what is F32 above stays as the source has it.

use kvant_model::DType;
use std::fmt;
use std::str::FromStr;

/// The type that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Groups of 32 codes of 4 bits with an f16 scale: Q4_0 in GGUF.
    Int4,
    /// Groups of 32 codes of 8 bits with an f16 scale: Q8_0 in GGUF.
    Int8,
    /// GGUF's name for the first.
    Q4_0,
    /// GGUF's name for the second.
    Q8_0,
    /// Super-blocks of 256 with scales and minima, 4.5 bits per value.
    Q4K,
    /// Super-blocks of 256 with scales, 6.6 bits per value.
    Q6K,
    /// Groups of 32 floats of 4 bits with a power of two.
    Mxfp4,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

const NAMES: [(&str, Weights); 9] = [
    ("int4", Weights::Int4),
    ("int8", Weights::Int8),
    ("q4_0", Weights::Q4_0),
    ("q8_0", Weights::Q8_0),
    ("q4_k", Weights::Q4K),
    ("q6_k", Weights::Q6K),
    ("mxfp4", Weights::Mxfp4),
    ("f16", Weights::F16),
    ("f32", Weights::F32),
];

impl FromStr for Weights {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        NAMES
            .iter()
            .find(|(own, _)| *own == name.to_ascii_lowercase())
            .map(|(_, weights)| *weights)
            .ok_or_else(|| {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("`{name}` is not a type that is written; there are {}", names.join(", "))
            })
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, weights)| weights == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// What a tensor is for, as far as its type is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A matrix of a linear layer.
    Matrix,
    /// Token embeddings, tied or not.
    Embedding,
    /// The output layer.
    Output,
    /// Learned positions.
    Positions,
    /// Small and decisive: norms, biases, routers, gates, convolutions.
    Exact,
}

impl Weights {
    /// The type in a GGUF file.
    fn in_gguf(self) -> DType {
        match self {
            Self::Int4 | Self::Q4_0 => DType::Q4_0,
            Self::Int8 | Self::Q8_0 => DType::Q8_0,
            Self::Q4K => DType::Q4_K,
            Self::Q6K => DType::Q6_K,
            Self::Mxfp4 => DType::MXFP4,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }

    /// The type of embeddings and output.
    fn wider(self) -> DType {
        match self {
            Self::Int4 | Self::Q4_0 | Self::Mxfp4 | Self::Int8 | Self::Q8_0 | Self::Q6K => DType::Q8_0,
            Self::Q4K => DType::Q6_K,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }

    /// `general.file_type` of a GGUF file whose matrices mostly have this type.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Int4 | Self::Q4_0 => 2,
            Self::Int8 | Self::Q8_0 => 7,
            // "Small": every matrix in the same type.
            Self::Q4K => 14,
            Self::Q6K => 18,
            Self::Mxfp4 => 38,
        }
    }

    /// The type of a tensor in a GGUF file.
    pub(crate) fn gguf_type(self, role: Role, columns: usize) -> DType {
        let wanted = match role {
            Role::Matrix => self.in_gguf(),
            Role::Embedding | Role::Output => self.wider(),
            Role::Positions if self != Self::F32 => DType::F16,
            Role::Positions | Role::Exact => DType::F32,
        };
        fitting([wanted, DType::Q8_0, DType::F16], columns)
    }

    /// The type of a tensor in a safetensors file; none where it stays as it is, or where there is no such type.
    pub(crate) fn safetensors_type(self, role: Role, columns: usize) -> Option<DType> {
        let wanted = match self {
            Self::Int4 => DType::Int4G32,
            Self::Int8 => DType::Int8G32,
            Self::F32 => DType::F32,
            _ => DType::F16,
        };
        match role {
            Role::Exact => None,
            Role::Matrix => Some(fitting([wanted, DType::F16, DType::F16], columns)),
            Role::Embedding | Role::Output | Role::Positions if self == Self::F32 => Some(DType::F32),
            Role::Embedding | Role::Output | Role::Positions => Some(DType::F16),
        }
    }

    /// Whether safetensors files can hold it.
    pub(crate) fn in_safetensors(self) -> bool {
        matches!(self, Self::Int4 | Self::Int8 | Self::F16 | Self::F32)
    }
}

/// The first type whose blocks fill a row; the last does.
fn fitting(types: [DType; 3], columns: usize) -> DType {
    types.into_iter().find(|dtype| dtype.row_bytes(columns).is_some()).unwrap_or(DType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for (name, weights) in NAMES {
            assert_eq!(name.parse(), Ok(weights));
            assert_eq!(weights.to_string(), name);
        }
        assert!("q5_k".parse::<Weights>().unwrap_err().contains("q4_k"));
    }

    #[test]
    fn what_decides_much_stays_wide_and_rows_decide_the_block() {
        let weights = Weights::Q4K;
        assert_eq!(weights.gguf_type(Role::Matrix, 512), DType::Q4_K);
        assert_eq!(weights.gguf_type(Role::Matrix, 288), DType::Q8_0);
        assert_eq!(weights.gguf_type(Role::Matrix, 40), DType::F16);
        assert_eq!(weights.gguf_type(Role::Embedding, 512), DType::Q6_K);
        assert_eq!(weights.gguf_type(Role::Exact, 512), DType::F32);
        assert_eq!(Weights::Int4.gguf_type(Role::Output, 64), DType::Q8_0);
        assert_eq!(Weights::Int4.safetensors_type(Role::Matrix, 64), Some(DType::Int4G32));
        assert_eq!(Weights::Int4.safetensors_type(Role::Exact, 64), None);
        assert!(!Weights::Mxfp4.in_safetensors());
    }
}
