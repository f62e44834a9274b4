//! Which tensor gets which type.
//!
//! | part of a model | `int4`, `q4_0`, `mxfp4`, `iq4_nl` | `q2_k` to `q5_k`, `iq4_xs` | `q6_k`, `int8`, `q8_0` | `f16` | `f32` |
//! |---|---|---|---|---|---|
//! | matrices of linear layers, experts | the type asked for | the type asked for | Q6_K or Q8_0 | F16 | F32 |
//! | token embeddings, output | Q8_0 | Q6_K | Q8_0 | F16 | F32 |
//! | positions | F16 | F16 | F16 | F16 | F32 |
//! | norms, biases, routers, gates, convolutions, recurrent vectors | F32 | F32 | F32 | F32 | F32 |
//!
//! The mixes give values of attention and the last matrix of feed-forward layers more bits, where errors cost most ([`Mix`]):
//!
//! | mix | matrices | with more bits |
//! |---|---|---|
//! | `q3_k_s` | Q3_K | |
//! | `q3_k_m` | Q3_K | values and the output of attention Q4_K; the last of feed-forward layers Q4_K in decisive layers |
//! | `q3_k_l` | Q3_K | values, the output of attention and the last of feed-forward layers Q5_K |
//! | `q4_k_s` | Q4_K | both Q5_K in the first eighth of the layers |
//! | `q4_k_m` | Q4_K | both Q6_K in decisive layers |
//! | `q5_k_s` | Q5_K | |
//! | `q5_k_m` | Q5_K | both Q6_K in decisive layers |
//!
//! Decisive layers are the first and the last eighth, and every third between.
//!
//! A row that blocks of 256 do not fill is stored as Q8_0, one that blocks of 32 do not fill as F16. In safetensors embeddings,
//! output and positions are F16, and what is F32 above stays as the source has it.

use crate::error::ConvertError;
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
    /// The same with groups of 16, in safetensors alone.
    Int4G16,
    /// With groups of 64, in safetensors alone.
    Int4G64,
    /// Codes of 8 bits with groups of 16, in safetensors alone.
    Int8G16,
    /// With groups of 64, in safetensors alone.
    Int8G64,
    /// GGUF's name for `Int4`.
    Q4_0,
    /// GGUF's name for `Int8`.
    Q8_0,
    /// Super-blocks of 256 with scales and minima, 4.5 bits per value.
    Q4K,
    /// Super-blocks of 256 with scales, 6.6 bits per value.
    Q6K,
    /// Super-blocks of 256 with scales and minima, 2.6 bits per value.
    Q2K,
    /// Super-blocks of 256 with scales, 3.4 bits per value.
    Q3K,
    /// Super-blocks of 256 with scales and minima, 5.5 bits per value.
    Q5K,
    /// A mix of super-blocks.
    Mixed(Mix),
    /// Groups of 32 codes of 4 bits that name levels, with an f16 scale.
    Iq4Nl,
    /// The same in super-blocks of 256, 4.25 bits per value.
    Iq4Xs,
    /// Groups of 32 floats of 4 bits with a power of two.
    Mxfp4,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// A mix of types, as llama.cpp's names have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// 3 bits, small.
    Q3KS,
    /// 3 bits, medium.
    Q3KM,
    /// 3 bits, large.
    Q3KL,
    /// 4 bits, small.
    Q4KS,
    /// 4 bits, medium.
    Q4KM,
    /// 5 bits, small.
    Q5KS,
    /// 5 bits, medium.
    Q5KM,
}

/// The place of a matrix: its layer, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place<'n> {
    /// Its name in a GGUF file.
    pub name: &'n str,
    /// Layers of the model.
    pub layers: usize,
}

/// The layers that names in a GGUF file speak of.
pub(crate) fn layers_of<'n>(names: impl Iterator<Item = &'n str>) -> usize {
    names.filter_map(layer_of).max().map_or(0, |last| last + 1)
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

impl Mix {
    /// The type of a matrix.
    fn dtype(self, place: Place<'_>) -> DType {
        let (layer, layers) = (layer_of(place.name).unwrap_or(0), place.layers.max(1));
        let has = |part: &str| place.name.contains(part);
        let (values, down) = (has(".attn_v.") || has(".attn_qkv."), has(".ffn_down"));
        let first = layer < layers / 8;
        let decisive = first || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        match self {
            Self::Q3KM if values || has(".attn_output.") => DType::Q4_K,
            Self::Q3KM if down && decisive => DType::Q4_K,
            Self::Q3KL if values || down || has(".attn_output.") => DType::Q5_K,
            Self::Q3KS | Self::Q3KM | Self::Q3KL => DType::Q3_K,
            Self::Q4KS if first && (values || down) => DType::Q5_K,
            Self::Q4KM if decisive && (values || down) => DType::Q6_K,
            Self::Q4KS | Self::Q4KM => DType::Q4_K,
            Self::Q5KM if decisive && (values || down) => DType::Q6_K,
            Self::Q5KS | Self::Q5KM => DType::Q5_K,
        }
    }
}

const NAMES: [(&str, Weights); 25] = [
    ("int4", Weights::Int4),
    ("int8", Weights::Int8),
    ("int4g16", Weights::Int4G16),
    ("int4g64", Weights::Int4G64),
    ("int8g16", Weights::Int8G16),
    ("int8g64", Weights::Int8G64),
    ("q4_0", Weights::Q4_0),
    ("q8_0", Weights::Q8_0),
    ("q4_k", Weights::Q4K),
    ("q2_k", Weights::Q2K),
    ("q3_k", Weights::Q3K),
    ("q3_k_s", Weights::Mixed(Mix::Q3KS)),
    ("q3_k_m", Weights::Mixed(Mix::Q3KM)),
    ("q3_k_l", Weights::Mixed(Mix::Q3KL)),
    ("q4_k_s", Weights::Mixed(Mix::Q4KS)),
    ("q4_k_m", Weights::Mixed(Mix::Q4KM)),
    ("q5_k", Weights::Q5K),
    ("q5_k_s", Weights::Mixed(Mix::Q5KS)),
    ("q5_k_m", Weights::Mixed(Mix::Q5KM)),
    ("q6_k", Weights::Q6K),
    ("iq4_nl", Weights::Iq4Nl),
    ("iq4_xs", Weights::Iq4Xs),
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
    /// The type of a matrix in a GGUF file.
    fn in_gguf(self, place: Place<'_>) -> DType {
        match self {
            Self::Int4 | Self::Int4G16 | Self::Int4G64 | Self::Q4_0 => DType::Q4_0,
            Self::Int8 | Self::Int8G16 | Self::Int8G64 | Self::Q8_0 => DType::Q8_0,
            Self::Q4K => DType::Q4_K,
            Self::Q6K => DType::Q6_K,
            Self::Q2K => DType::Q2_K,
            Self::Q3K => DType::Q3_K,
            Self::Q5K => DType::Q5_K,
            Self::Mixed(mix) => mix.dtype(place),
            Self::Iq4Nl => DType::IQ4_NL,
            Self::Iq4Xs => DType::IQ4_XS,
            Self::Mxfp4 => DType::MXFP4,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }

    /// The type of embeddings and output.
    fn wider(self) -> DType {
        match self {
            Self::Int4 | Self::Int4G16 | Self::Int4G64 | Self::Q4_0 | Self::Mxfp4 | Self::Iq4Nl => {
                DType::Q8_0
            }
            Self::Int8 | Self::Int8G16 | Self::Int8G64 | Self::Q8_0 | Self::Q6K => DType::Q8_0,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Mixed(_) | Self::Iq4Xs => DType::Q6_K,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }

    /// `general.file_type` of a GGUF file whose matrices mostly have this type.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Int4 | Self::Int4G16 | Self::Int4G64 | Self::Q4_0 => 2,
            Self::Int8 | Self::Int8G16 | Self::Int8G64 | Self::Q8_0 => 7,
            // "Small": every matrix in the same type.
            Self::Q4K | Self::Mixed(Mix::Q4KS) => 14,
            Self::Q2K => 10,
            Self::Q3K | Self::Mixed(Mix::Q3KS) => 11,
            Self::Mixed(Mix::Q3KM) => 12,
            Self::Mixed(Mix::Q3KL) => 13,
            Self::Mixed(Mix::Q4KM) => 15,
            Self::Q5K | Self::Mixed(Mix::Q5KS) => 16,
            Self::Mixed(Mix::Q5KM) => 17,
            Self::Iq4Nl => 25,
            Self::Iq4Xs => 30,
            Self::Q6K => 18,
            Self::Mxfp4 => 38,
        }
    }

    /// The type of a tensor in a GGUF file.
    pub(crate) fn gguf_type(self, role: Role, columns: usize, place: Place<'_>) -> DType {
        let wanted = match role {
            Role::Matrix => self.in_gguf(place),
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
            Self::Int4G16 => DType::Int4G16,
            Self::Int4G64 => DType::Int4G64,
            Self::Int8G16 => DType::Int8G16,
            Self::Int8G64 => DType::Int8G64,
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
        matches!(self, Self::Int4 | Self::Int8 | Self::F16 | Self::F32) || !self.in_gguf_files()
    }

    /// Why a GGUF file cannot hold it.
    pub(crate) fn not_in_gguf(self) -> ConvertError {
        ConvertError::Refused(format!("GGUF has groups of 32 alone: write {self} with --to safetensors"))
    }

    /// Whether GGUF files can hold it: their groups are of 32.
    pub(crate) fn in_gguf_files(self) -> bool {
        !matches!(self, Self::Int4G16 | Self::Int4G64 | Self::Int8G16 | Self::Int8G64)
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
        assert!("q5_x".parse::<Weights>().unwrap_err().contains("q4_k"));
    }

    #[test]
    fn what_decides_much_stays_wide_and_rows_decide_the_block() {
        let weights = Weights::Q4K;
        let place = Place { name: "blk.0.attn_q.weight", layers: 4 };
        assert_eq!(weights.gguf_type(Role::Matrix, 512, place), DType::Q4_K);
        assert_eq!(weights.gguf_type(Role::Matrix, 288, place), DType::Q8_0);
        assert_eq!(weights.gguf_type(Role::Matrix, 40, place), DType::F16);
        assert_eq!(weights.gguf_type(Role::Embedding, 512, place), DType::Q6_K);
        assert_eq!(weights.gguf_type(Role::Exact, 512, place), DType::F32);
        assert_eq!(Weights::Int4.gguf_type(Role::Output, 64, place), DType::Q8_0);
        assert_eq!(Weights::Int4.safetensors_type(Role::Matrix, 64), Some(DType::Int4G32));
        assert_eq!(Weights::Int4.safetensors_type(Role::Exact, 64), None);
        assert_eq!(Weights::Int8G64.safetensors_type(Role::Matrix, 96), Some(DType::F16));
        assert!(!Weights::Mxfp4.in_safetensors() && Weights::Int4G16.in_safetensors());
    }

    #[test]
    fn mixes_give_more_bits_where_errors_cost_most() {
        let dtype = |mix: Mix, name: &str, layer: usize| {
            let name = format!("blk.{layer}.{name}.weight");
            let place = Place { name: &name, layers: 32 };
            Weights::Mixed(mix).gguf_type(Role::Matrix, 512, place)
        };
        let of_six = |mix, name| (0..32).filter(|&layer| dtype(mix, name, layer) == DType::Q6_K).count();
        // Four at each end, and every third of the 24 between.
        assert_eq!(of_six(Mix::Q4KM, "ffn_down"), 16);
        assert_eq!(of_six(Mix::Q5KM, "attn_v"), 16);
        assert_eq!(of_six(Mix::Q4KM, "attn_q"), 0);
        assert_eq!(
            (dtype(Mix::Q4KS, "attn_v", 0), dtype(Mix::Q4KS, "attn_v", 9)),
            (DType::Q5_K, DType::Q4_K)
        );
        assert_eq!(
            (dtype(Mix::Q3KM, "attn_output", 9), dtype(Mix::Q3KM, "ffn_up", 9)),
            (DType::Q4_K, DType::Q3_K)
        );
        assert_eq!(dtype(Mix::Q3KL, "ffn_down_exps", 9), DType::Q5_K);
        assert_eq!(dtype(Mix::Q5KS, "ffn_down", 0), DType::Q5_K);
    }
}
