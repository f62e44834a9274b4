//! Models of random weights as GGUF files, in any type: for measuring speed.
//!
//! What a file of an architecture says, which tensors it has and in which types, is what a conversion of the same checkpoint would
//! write; matrices are noise in place of the checkpoint's numbers. So a checkpoint does: its vectors, and holes where matrices would be.

use crate::encode::encode_row;
use crate::error::{ConvertError, Result};
use crate::recipe::Weights;
use crate::rows::{Made, Rows};
use crate::to_gguf;
use half::f16;
use kvant_model::checkpoint::ConfigSource;
use kvant_model::error::LoadError;
use kvant_model::gguf::{Writer, WriterValue};
use kvant_model::synth::{Described, Noise, TensorNoise};
use kvant_model::{Checkpoint, DType};
use serde_json::Value;
use std::path::Path;

/// The GGUF file of a configuration, ready to be written: rows are made by the pool that the writing thread has entered. `folder` is a place
/// for an outline, which is read until the file is written.
///
/// # Errors
/// If the configuration is of no architecture kvant knows, a GGUF file could not say what it says, or the folder cannot be written.
pub fn noise(config: Value, weights: Weights, seed: u64, folder: &Path) -> Result<Writer> {
    if !weights.in_gguf_files() {
        return Err(weights.not_in_gguf());
    }
    Described::new(config, seed)?.write_outline(folder)?;
    let checkpoint = Checkpoint::open(folder)?;
    let ConfigSource::Config(config) = checkpoint.config() else {
        return Err(ConvertError::Refused("an outline is a folder".into()));
    };
    let twin = to_gguf::of(&checkpoint, config, weights, None)?;
    let (mut writer, mut noise) = (twin.writer, Noise::new(seed));
    // Not the folder's name, which is another each time.
    writer.set("general.name", WriterValue::String("synthetic".to_owned()));
    for made in twin.tensors {
        let (dtype, columns, noise) = (made.dtype, made.columns(), noise.next_tensor());
        let (name, shape) = (made.name.clone(), made.shape.clone());
        match &made.rows {
            Rows::Matrices(_) | Rows::Turned(_) => {
                // One row tells whether the type has codes for it.
                make_row(dtype, columns, noise, 0, &mut vec![0; row_bytes(&made)?])?;
                writer.made(&name, dtype, &shape, move |row, out| {
                    // It did for the first row.
                    let _ = make_row(dtype, columns, noise, row, out);
                })?;
            }
            Rows::Same(_) | Rows::Numbers(_) => {
                made.store(0, &mut Vec::new(), &mut vec![0; row_bytes(&made)?])?;
                writer.made(&name, dtype, &shape, move |row, out| {
                    // As above: vectors are f32.
                    let _ = made.store(row, &mut Vec::new(), out);
                })?;
            }
        }
    }
    Ok(writer)
}

fn row_bytes(made: &Made) -> Result<usize> {
    let impossible = || LoadError::mismatch(format!("tensor {:?} has no rows of {}", made.name, made.dtype));
    Ok(made.dtype.row_bytes(made.columns()).ok_or_else(impossible)?)
}

fn make_row(
    dtype: DType,
    columns: usize,
    noise: TensorNoise,
    row: usize,
    out: &mut [u8],
) -> std::result::Result<(), LoadError> {
    if noise.fill_blocks(dtype, row, columns, out) {
        return Ok(());
    }
    let mut numbers = vec![0.0; columns];
    noise.fill_row(row, &mut numbers);
    if dtype == DType::F16 {
        let out = out.as_chunks_mut().0.iter_mut();
        out.zip(&numbers).for_each(|(out, &x)| *out = f16::from_f32(x).to_le_bytes());
        return Ok(());
    }
    encode_row(dtype, &numbers, None, out)
}
