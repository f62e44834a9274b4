//! Types of weights that a device has no kernels of its own for, taken apart into a form that it has.
//!
//! All of them are small integers under scales. Here they become signed bytes with a scale in f32 for every sixteen values, and a minimum
//! where the type has one: `value = scale · code − minimum`. No number is rounded: products of the scales that a file has, in eleven bits and
//! at most six, fit f32, and so do those with a code. The price is memory: ten bits a weight, twelve with minima.
//!
//! | type | code | scale | minimum |
//! |---|---|---|---|
//! | Q5_0 | `q − 16` | `d` | |
//! | Q5_1 | `q` | `d` | `−m` |
//! | Q2_K | `q` | `d·s` | `dmin·m` |
//! | Q3_K | `q − 4` | `d·(s − 32)` | |
//! | Q8_K | `q` | `d` | |
//! | IQ4_NL, IQ4_XS | the level | `d`, `d·(s − 32)` | |
//! | IQ3_XXS, IQ3_S | the point with its sign | `d·(s + ½)/2`, `d·(2s + 1)` | |
//! | IQ2_XXS, IQ2_XS, IQ2_S | the same | `d·(s + ½)/4` | |
//! | NVFP4 | twice the float | `s/2` | |

use half::f16;
use kvant_model::DType;
use kvant_model::error::{LoadError, Result};
use kvant_model::quant::dequantize_row;

/// Values under one scale.
pub const RELAID_GROUP: usize = 16;

/// A row of weights as bytes under scales.
#[derive(Debug, Clone, PartialEq)]
pub struct RelaidRow {
    /// A code for every value.
    pub codes: Vec<i8>,
    /// A scale for every sixteen of them.
    pub scales: Vec<f32>,
    /// What is subtracted, for every sixteen; empty where the type has no minima.
    pub minima: Vec<f32>,
}

/// What a type becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelaidForm {
    /// Blocks of 32 whose scale is one number of 16 bits: Q8_0.
    Q8_0,
    /// Scales in f32 for every sixteen.
    Scaled,
    /// The same with minima.
    Minima,
}

/// What a type becomes; `None` for those that are not small integers under scales, or have kernels everywhere.
pub fn relaid_form(dtype: DType) -> Option<RelaidForm> {
    match dtype {
        DType::Q5_0 | DType::IQ4_NL => Some(RelaidForm::Q8_0),
        DType::Q5_1 | DType::Q2_K => Some(RelaidForm::Minima),
        DType::Q3_K
        | DType::Q8_K
        | DType::IQ4_XS
        | DType::IQ3_S
        | DType::IQ3_XXS
        | DType::IQ2_S
        | DType::IQ2_XS
        | DType::IQ2_XXS
        | DType::NVFP4 => Some(RelaidForm::Scaled),
        _ => None,
    }
}

/// A row of a type that [`relaid_form`] knows.
///
/// # Errors
/// When it is of another type, or its bytes are not whole blocks.
pub fn relaid_row(dtype: DType, row: &[u8]) -> Result<RelaidRow> {
    let Some(form) = relaid_form(dtype) else {
        return Err(LoadError::unsupported(format!("{dtype} is not made of integers under scales")));
    };
    let blocks = row.chunks_exact(dtype.block_bytes());
    if !blocks.remainder().is_empty() {
        return Err(LoadError::mismatch(format!("{} bytes are not whole blocks of {dtype}", row.len())));
    }
    let (count, each) = (blocks.len(), dtype.block_len() / RELAID_GROUP);
    let scales: Vec<f32> =
        blocks.clone().flat_map(|block| (0..each).map(move |group| scale(dtype, block, group))).collect();
    if form == RelaidForm::Minima {
        let minima =
            blocks.clone().flat_map(|block| (0..each).map(move |group| minimum(dtype, block, group)));
        let codes = blocks
            .clone()
            .flat_map(|block| (0..dtype.block_len()).map(move |index| code(dtype, block, index)));
        return Ok(RelaidRow { codes: codes.collect(), minima: minima.collect(), scales });
    }
    let mut values = vec![0.0; count * dtype.block_len()];
    dequantize_row(dtype, row, &mut values)?;
    // A value is its scale times a code, exactly: the quotient is the code.
    let pairs = values.chunks_exact(RELAID_GROUP).zip(&scales);
    let codes = pairs.flat_map(|(values, scale)| values.iter().map(|v| (v / *scale).round() as i8)).collect();
    Ok(RelaidRow { codes, scales, minima: Vec::new() })
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Nibble `i` of a list.
fn nibble(list: &[u8], i: usize) -> f32 {
    f32::from(list[i / 2] >> (4 * (i % 2)) & 15)
}

/// The scale of sixteen values of a block.
fn scale(dtype: DType, block: &[u8], group: usize) -> f32 {
    match dtype {
        DType::Q2_K => half_at(block, 80) * f32::from(block[group] & 15),
        DType::Q3_K => {
            let scales = &block[96..108];
            let low = scales[group % 8] >> (4 * (group / 8)) & 15;
            let upper = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
            half_at(block, 108) * (f32::from(low | upper << 4) - 32.0)
        }
        DType::Q8_K => f32::from_bits(word_at(block, 0)),
        DType::IQ4_XS => {
            let (high, group) = (u16::from_le_bytes([block[2], block[3]]), group / 2);
            let low = u16::from(block[4 + group / 2] >> (4 * (group % 2)) & 15);
            half_at(block, 0) * (f32::from(low | (high >> (2 * group) & 3) << 4) - 32.0)
        }
        DType::IQ3_S => half_at(block, 0) * (1.0 + 2.0 * nibble(&block[106..], group / 2)),
        DType::IQ3_XXS => {
            half_at(block, 0) * (0.5 + (word_at(block, 66 + 4 * (group / 2)) >> 28) as f32) * 0.5
        }
        DType::IQ2_S => half_at(block, 0) * (0.5 + nibble(&block[74..], group)) * 0.25,
        DType::IQ2_XS => half_at(block, 0) * (0.5 + nibble(&block[66..], group)) * 0.25,
        DType::IQ2_XXS => {
            half_at(block, 0) * (0.5 + (word_at(block, 2 + 8 * (group / 2) + 4) >> 28) as f32) * 0.25
        }
        DType::NVFP4 => {
            let code = block[group];
            // An 8-bit float without its sign, whose exponent is moved by a product; its NaN stands for zero.
            let size = f32::from_bits(u32::from(code & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
            if code == 0x7f { 0.0 } else { 0.5 * size }
        }
        _ => half_at(block, 0),
    }
}

fn minimum(dtype: DType, block: &[u8], group: usize) -> f32 {
    match dtype {
        DType::Q2_K => half_at(block, 82) * f32::from(block[group] >> 4),
        _ => -half_at(block, 2),
    }
}

/// A code of a type with minima.
fn code(dtype: DType, block: &[u8], index: usize) -> i8 {
    let code = match dtype {
        DType::Q2_K => {
            let (half, run, lane) = (index / 128, index % 128 / 32, index % 32);
            block[16 + 32 * half + lane] >> (2 * run) & 3
        }
        _ => {
            let high = (word_at(block, 4) >> index & 1) as u8;
            block[8 + index % 16] >> (4 * (index / 16)) & 15 | high << 4
        }
    };
    code.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of random bytes under scales of usual and of odd sizes: what a relaid row stands for is the type's own value to the bit, and with
    /// a minimum to its one rounding.
    #[test]
    fn no_value_changes() {
        let mut state = 7u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let relaid: Vec<DType> =
            DType::ALL.into_iter().filter(|dtype| relaid_form(*dtype).is_some()).collect();
        assert_eq!(relaid.len(), 13);
        for dtype in relaid {
            for scale in [0.02f32, -3.0, 6e-8, 0.0] {
                let mut row: Vec<u8> = (0..8 * dtype.block_bytes()).map(|_| byte()).collect();
                for block in row.chunks_exact_mut(dtype.block_bytes()) {
                    let d = f16::from_f32(scale).to_le_bytes();
                    let at = match dtype {
                        DType::Q2_K => Some(80),
                        DType::Q3_K => Some(108),
                        DType::NVFP4 => None,
                        _ => Some(0),
                    };
                    if let Some(at) = at {
                        block[at..at + 2].copy_from_slice(&d);
                    }
                    match dtype {
                        DType::Q8_K => block[..4].copy_from_slice(&scale.to_le_bytes()),
                        DType::Q2_K => block[82..84].copy_from_slice(&d),
                        DType::Q5_1 => block[2..4].copy_from_slice(&d),
                        _ => {}
                    }
                }
                let mut truth = vec![0.0; 8 * dtype.block_len()];
                dequantize_row(dtype, &row, &mut truth).unwrap();
                let found = relaid_row(dtype, &row).unwrap();
                assert_eq!(found.codes.len(), truth.len(), "{dtype}");
                for (index, truth) in truth.iter().enumerate() {
                    let group = index / RELAID_GROUP;
                    let product = found.scales[group] * f32::from(found.codes[index]);
                    let value = product - found.minima.get(group).copied().unwrap_or(0.0);
                    assert!(value == *truth, "{dtype} of {scale}, value {index}: {value} for {truth}");
                }
                if relaid_form(dtype) == Some(RelaidForm::Q8_0) {
                    let pairs = found.scales.chunks_exact(2);
                    assert!(pairs.clone().all(|pair| pair[0] == pair[1]), "{dtype}");
                    assert!(
                        pairs.into_iter().all(|pair| f16::from_f32(pair[0]).to_f32() == pair[0]),
                        "{dtype}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_of_parts_of_blocks_are_refused() {
        assert!(relaid_row(DType::Q3_K, &[0; 109]).is_err());
        assert!(relaid_row(DType::Q4_K, &[0; 144]).is_err());
    }
}
