//! Quantising weights to kvant's own types: groups of 32 along a row with an f16 scale, or of 16 or 64.
//!
//! *int8*: `d = max|x| / 127`, `q = round(x / d)` in −127 to 127, value `d·q`.
//!
//! *int4*: `d = m / −8` with `m` the value of largest magnitude, sign kept, so that `m` itself is code 0 and
//! all sixteen codes are in use; `q = round(x / d) + 8` in 0 to 15, value `d·(q − 8)`. Against a symmetric ±7
//! this costs half a step at the end opposite to `m` and makes every other step an eighth smaller.
//!
//! The scale is rounded to f16 first and the codes are chosen for the rounded scale. The bytes of groups of 32 are those of
//! Q8_0 and Q4_0, so that kernels can be shared; where scales and codes of the others lie, `grouped` says.

use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use half::f16;
use kvant_threads::for_each_chunk;
use std::sync::{Mutex, PoisonError};

/// Encodes a row (or any whole number of blocks) as one of kvant's own types into `out`.
/// Refuses other types, lengths that do not fit, and values that are not finite or too large for an f16 scale.
pub fn quantize_row(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<()> {
    let (group, len) = (dtype.own_group(), dtype.block_len());
    if group == 0 {
        return Err(LoadError::unsupported(format!("weights are not quantised to {dtype}, only decoded")));
    }
    let is_wide = DType::own(8, group) == Some(dtype);
    if dtype.row_bytes(values.len()) != Some(out.len()) {
        return Err(LoadError::mismatch(format!(
            "{} values do not fill {} bytes of {dtype} (groups of {group})",
            values.len(),
            out.len()
        )));
    }
    let blocks = values.chunks_exact(len).zip(out.chunks_exact_mut(dtype.block_bytes()));
    for (index, (values, block)) in blocks.enumerate() {
        let (scales, codes) = block.split_at_mut(2 * (len / group));
        codes.fill(0);
        for (number, (group_values, stored)) in
            values.chunks_exact(group).zip(scales.chunks_exact_mut(2)).enumerate()
        {
            let places = number * group..(number + 1) * group;
            let encoded = match is_wide {
                true => int8(group_values, stored, &mut codes[places]),
                false => int4(group_values, stored, places.start, codes),
            };
            encoded.ok_or_else(|| {
                let first = index * len + number * group;
                LoadError::malformed(format!(
                    "values {first}..{} are not finite or too large for {dtype}",
                    first + group
                ))
            })?;
        }
    }
    Ok(())
}

/// A copy of `tensor` in one of kvant's own types, made row by row; the mapped pages of the
/// original are released afterwards.
pub fn quantize_tensor(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let in_tensor = |e: LoadError| LoadError::new(e.kind(), format!("tensor {:?}: {e}", tensor.name()));
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let row_bytes = dtype.row_bytes(columns).ok_or_else(|| {
        in_tensor(LoadError::mismatch(format!(
            "rows of {columns} are not whole groups of {} for {dtype}",
            dtype.block_len()
        )))
    })?;
    let mut bytes = vec![0; rows * row_bytes]; // (rows, row_bytes)
    let failure = Mutex::new(None);
    for_each_chunk(&mut bytes, row_bytes.max(1), |row, out| {
        let mut values = vec![0.0; columns];
        let quantised = tensor.row_f32(row, &mut values).and_then(|()| {
            quantize_row(dtype, &values, out)
                .map_err(|e| in_tensor(LoadError::new(e.kind(), format!("row {row}: {e}"))))
        });
        if let Err(error) = quantised {
            // Of several the first row's, whichever thread has it.
            let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|(known, _)| row < *known) {
                *first = Some((row, error));
            }
        }
    });
    if let Some((_, error)) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    tensor.bytes().release();
    Tensor::new(tensor.name(), dtype, tensor.shape().to_vec(), bytes.into())
}

/// The value of largest magnitude, with its sign; `None` when one is not finite.
fn extreme(group: &[f32]) -> Option<f32> {
    group.iter().try_fold(0.0f32, |m, &x| x.is_finite().then_some(if x.abs() > m.abs() { x } else { m }))
}

/// A scale as stored, and its reciprocal; zero for a group whose scale vanishes in f16. `None` on overflow.
fn scale(exact: f32) -> Option<(f16, f32)> {
    let stored = f16::from_f32(exact);
    let d = stored.to_f32();
    d.is_finite().then(|| (stored, if d == 0.0 { 0.0 } else { 1.0 / d }))
}

fn int8(group: &[f32], stored_scale: &mut [u8], codes: &mut [u8]) -> Option<()> {
    let (stored, inverse) = scale(extreme(group)?.abs() / 127.0)?;
    stored_scale.copy_from_slice(&stored.to_le_bytes());
    for (&x, code) in group.iter().zip(codes) {
        *code = ((x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned();
    }
    Some(())
}

/// The group's first code is number `first` of the block.
fn int4(group: &[f32], stored_scale: &mut [u8], first: usize, codes: &mut [u8]) -> Option<()> {
    let (stored, inverse) = scale(extreme(group)? / -8.0)?;
    stored_scale.copy_from_slice(&stored.to_le_bytes());
    for (i, &x) in (first..).zip(group) {
        let code = ((x * inverse).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
        codes[i / 32 * 16 + i % 16] |= code << if i % 32 < 16 { 0 } else { 4 };
    }
    Some(())
}
