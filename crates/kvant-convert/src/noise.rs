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
use kvant_model::gguf::Writer;
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
    Described::new(config, seed)?.write_outline(folder)?;
    let checkpoint = Checkpoint::open(folder)?;
    let ConfigSource::Config(config) = checkpoint.config() else {
        return Err(ConvertError::Refused("an outline is a folder".into()));
    };
    let twin = to_gguf::of(&checkpoint, config, weights, None)?;
    let (mut writer, mut noise) = (twin.writer, Noise::new(seed));
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::gguf::Gguf;
    use kvant_model::synth::KNOWN;
    use kvant_model::Description;

    #[test]
    fn every_known_structure_is_a_file_with_the_weights_that_were_asked_for() {
        for known in KNOWN {
            let folder = tempfile::tempdir().unwrap();
            let mut config = known.config();
            // Layers repeat, and vocabularies are long.
            let fewer = config["num_hidden_layers"].as_u64().unwrap().min(8);
            config["num_hidden_layers"] = fewer.into();
            config["vocab_size"] = 1000.into();
            if let Some(kinds) = config["layer_types"].as_array_mut() {
                kinds.truncate(fewer as usize);
            }
            let writer = noise(config.clone(), Weights::Int4, 1, folder.path()).unwrap_or_else(|e| panic!("{}: {e}", known.name));
            assert!(writer.tensor_bytes() > 0, "{}", known.name);
            let outline = Checkpoint::open(folder.path()).unwrap();
            assert_eq!(Description::of(&outline).unwrap().layers.len() as u64, fewer, "{}", known.name);
        }
    }

    #[test]
    fn a_file_of_noise_loads_and_is_the_same_again() {
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,
            "moe_intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
            "tie_word_embeddings": false
        });
        for (weights, dtype) in [
            (Weights::Int4, DType::Q4_0),
            (Weights::Int8, DType::Q8_0),
            (Weights::Mxfp4, DType::MXFP4),
            (Weights::F16, DType::F16),
        ] {
            let made = |seed| {
                let folder = tempfile::tempdir().unwrap();
                noise(config.clone(), weights, seed, folder.path()).unwrap().to_bytes().unwrap()
            };
            let bytes = made(1);
            assert!(bytes == made(1) && bytes != made(2), "{weights}");
            let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap());
            assert_eq!(checkpoint.tensor("blk.1.ffn_gate_exps.weight").unwrap().dtype(), dtype);
            let norm = checkpoint.tensor("blk.0.attn_norm.weight").unwrap().to_f32().unwrap();
            assert!(norm.iter().all(|x| *x == 1.0), "{weights}");
            Description::of(&checkpoint).unwrap();
        }
    }
}
