//! Matrices packed as integers with scales in a tensor of their own: `NAME_packed`, `NAME_scale` and `NAME_shape`, the
//! `pack-quantized` format of compressed-tensors with symmetric codes. `docs/convert.md` has the layout.
//!
//! A scale serves a group of 16, 32 or 64 weights of a row, or of another multiple of 32, up to the whole row (the strategy
//! `channel`). Blocks have a scale for 16, 32 or 64 weights, so that other groups repeat their scale: the numbers are the same.

use super::Safetensors;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use half::{bf16, f16};

/// Weights in a run of codes.
const BLOCK: usize = 32;

/// The matrix called `name`, put together from its parts; `None` when it is not packed.
pub(super) fn tensor(file: &Safetensors, name: &str) -> Result<Option<Tensor>> {
    let part = |suffix: &str| file.stored(&format!("{name}{suffix}"));
    let Some(packed) = part("_packed")? else { return Ok(None) };
    let refuse = |why: String| LoadError::unsupported(format!("tensor {name:?} is packed, and {why}"));
    let needed = |suffix: &str| part(suffix)?.ok_or_else(|| refuse(format!("{name}{suffix} is missing")));
    let (scale, shape) = (needed("_scale")?, needed("_shape")?.to_i64()?);
    if part("_zero_point")?.is_some() {
        return Err(refuse("has zero points; only symmetric codes are read".into()));
    }
    if part("_g_idx")?.is_some() {
        return Err(refuse(
            "has a group for each column (act-order); only groups of neighbours are read".into(),
        ));
    }
    let shape: Option<Vec<usize>> = shape.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let shape = shape.ok_or_else(|| refuse("has a shape with a negative extent".into()))?;
    let (rows, columns) = match shape.split_last() {
        Some((&columns, outer)) => {
            (outer.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)), columns)
        }
        None => (None, 0),
    };
    let bits = [4, 8].into_iter().find(|&bits| columns.checked_mul(bits) == packed.columns().checked_mul(32));
    // Weights under one scale, and under one of ours.
    let group = columns.checked_div(scale.columns()).unwrap_or(0);
    let own = match group {
        16 | 64 => group,
        _ => BLOCK,
    };
    let fits = rows == Some(packed.rows())
        && rows == Some(scale.rows())
        && group > 0
        && group.is_multiple_of(own)
        && group * scale.columns() == columns
        && packed.dtype() == DType::I32;
    let dtype =
        bits.and_then(|bits| DType::own(bits, own)).filter(|dtype| dtype.row_bytes(columns).is_some());
    let Some(dtype) = dtype.filter(|_| fits) else {
        return Err(refuse(format!(
            "its codes {:?} and scales {:?} are not groups of 16, of {BLOCK}, or of several times {BLOCK}, in 4 or 8 bits of {shape:?}",
            packed.shape(),
            scale.shape()
        )));
    };
    let scales = halves(&scale).ok_or_else(|| refuse("has a scale that f16 does not hold".into()))?;
    let bytes = blocks(dtype, packed.bytes(), &scales, group / own);
    packed.bytes().release();
    Tensor::new(name, dtype, shape, bytes.into()).map(Some)
}

/// The scales as f16; `None` when one would change.
fn halves(scale: &Tensor) -> Option<Vec<f16>> {
    let bytes = scale.bytes().as_chunks::<2>().0;
    match scale.dtype() {
        DType::F16 => Some(bytes.iter().map(|&b| f16::from_le_bytes(b)).collect()),
        DType::BF16 => {
            let exact = |wide: f32| Some(f16::from_f32(wide)).filter(|half| half.to_f32() == wide);
            bytes.iter().map(|&b| exact(bf16::from_le_bytes(b).to_f32())).collect()
        }
        _ => None,
    }
}

/// Scales and codes of each block together; a scale of the file serves `repeats` of ours.
fn blocks(dtype: DType, codes: &[u8], scales: &[f16], repeats: usize) -> Vec<u8> {
    let (group, len) = (dtype.own_group(), dtype.block_len());
    let is_wide = DType::own(8, group) == Some(dtype);
    let count = scales.len() * repeats * group / len;
    let mut out = Vec::with_capacity(count * dtype.block_bytes());
    for block in 0..count {
        let first = block * (len / group);
        (first..first + len / group).for_each(|own| out.extend(scales[own / repeats].to_le_bytes()));
        for run in block * len / BLOCK..(block + 1) * len / BLOCK {
            if is_wide {
                out.extend(codes[BLOCK * run..][..BLOCK].iter().map(|code| code ^ 128));
                continue;
            }
            let codes = &codes[BLOCK / 2 * run..][..BLOCK / 2];
            let nibble = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            out.extend((0..BLOCK / 2).map(|i| nibble(i) | nibble(i + BLOCK / 2) << 4));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView, serialize};

    fn file(parts: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Safetensors {
        let view = |(name, dtype, shape, bytes): &(&str, Dtype, &[usize], Vec<u8>)| {
            ((*name).to_owned(), TensorView::new(*dtype, shape.to_vec(), bytes.clone().leak()).unwrap())
        };
        let views: Vec<(String, TensorView<'_>)> = parts.iter().map(view).collect();
        Safetensors::from_bytes(serialize(views, None).unwrap()).unwrap()
    }

    fn shape(extents: [i64; 2]) -> Vec<u8> {
        extents.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// Codes 0, 1, 2, … in the order of the format, under a scale of one half.
    #[test]
    fn codes_and_scales_become_numbers() {
        let half = f16::from_f32(0.5).to_le_bytes().to_vec();
        let nibbles: Vec<u8> = (0..16).map(|i| ((2 * i) % 16) | (((2 * i + 1) % 16) << 4)).collect();
        let four = file(&[
            ("w_packed", Dtype::I32, &[1, 4], nibbles),
            ("w_scale", Dtype::F16, &[1, 1], half.clone()),
            ("w_shape", Dtype::I64, &[2], shape([1, 32])),
        ]);
        let found = four.tensor("w").unwrap().unwrap();
        let expected: Vec<f32> = (0..32).map(|i| 0.5 * ((i % 16) as f32 - 8.0)).collect();
        assert_eq!((found.dtype(), found.to_f32().unwrap()), (DType::Int4G32, expected));
        let eight = file(&[
            ("w_packed", Dtype::I32, &[1, 8], (112..144).collect()),
            ("w_scale", Dtype::F16, &[1, 1], half),
            ("w_shape", Dtype::I64, &[2], shape([1, 32])),
        ]);
        let expected: Vec<f32> = (0..32).map(|i| 0.5 * (i as f32 - 16.0)).collect();
        assert_eq!(eight.tensor("w").unwrap().unwrap().to_f32().unwrap(), expected);
        assert!(eight.tensor("v").unwrap().is_none());
    }

    /// Two rows of 128 under a scale for 16, 32 or 64 weights, and under one for the whole row.
    #[test]
    fn groups_have_scales_of_their_own_and_the_largest_repeats_it() {
        let codes: Vec<u8> = (0..128).map(|i| (i * 37 % 256) as u8).collect();
        for (group, dtype) in
            [(16, DType::Int4G16), (32, DType::Int4G32), (64, DType::Int4G64), (128, DType::Int4G32)]
        {
            let scale = |n: usize| f16::from_f32(0.25 * (n as f32 + 1.0));
            let scales: Vec<u8> = (0..256 / group).flat_map(|n| scale(n).to_le_bytes()).collect();
            let stored = file(&[
                ("w_packed", Dtype::I32, &[2, 16], codes.clone()),
                ("w_scale", Dtype::F16, &[2, 128 / group], scales),
                ("w_shape", Dtype::I64, &[2], shape([2, 128])),
            ]);
            let found = stored.tensor("w").unwrap().unwrap();
            assert_eq!(found.dtype(), dtype);
            for (i, number) in found.to_f32().unwrap().into_iter().enumerate() {
                let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                assert_eq!(number, scale(i / group).to_f32() * (f32::from(code) - 8.0), "{group}, {i}");
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_by_name() {
        let scale = |n: usize| vec![0; 2 * n];
        type Stored<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);
        let cases: [&[Stored<'_>]; 6] = [
            &[("w_packed", Dtype::I32, &[1, 4], vec![0; 16]), ("w_shape", Dtype::I64, &[2], shape([1, 32]))],
            &[
                ("w_packed", Dtype::I32, &[1, 4], vec![0; 16]),
                ("w_scale", Dtype::F16, &[1, 3], scale(3)),
                ("w_shape", Dtype::I64, &[2], shape([1, 32])),
            ],
            &[
                ("w_packed", Dtype::I32, &[1, 4], vec![0; 16]),
                ("w_scale", Dtype::F16, &[1, 1], scale(1)),
                ("w_shape", Dtype::I64, &[2], shape([-1, 32])),
            ],
            &[
                ("w_packed", Dtype::I32, &[1, 4], vec![0; 16]),
                ("w_scale", Dtype::F16, &[1, 1], scale(1)),
                ("w_shape", Dtype::I64, &[2], shape([i64::MAX, i64::MAX])),
            ],
            // Groups of 8, and columns that choose their groups.
            &[
                ("w_packed", Dtype::I32, &[1, 8], vec![0; 32]),
                ("w_scale", Dtype::F16, &[1, 8], scale(8)),
                ("w_shape", Dtype::I64, &[2], shape([1, 64])),
            ],
            &[
                ("w_packed", Dtype::I32, &[1, 8], vec![0; 32]),
                ("w_scale", Dtype::F16, &[1, 1], scale(1)),
                ("w_shape", Dtype::I64, &[2], shape([1, 64])),
                ("w_g_idx", Dtype::I32, &[64], vec![0; 256]),
            ],
        ];
        for parts in cases {
            let error = file(parts).tensor("w").unwrap_err().to_string();
            assert!(error.contains("\"w\""), "{error}");
        }
    }
}
