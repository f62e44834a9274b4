//! Models with random weights, for measuring speed: every shape and every context without a download.
//!
//! [`model`] makes a Llama in a GGUF file like any other, [`Described`] a folder of any architecture from its configuration, with a vocabulary of bytes padded to the size asked for.
//! `kvant_convert::noise` makes GGUF files of those architectures, in any type of weights.
//! What it says is noise, but how long that takes is what a trained model of the same shape takes. Weights are made row
//! by row while the file is written, and each is a function of the seed and its place, so the file is the same on every
//! machine and with any number of threads.
//!
//! Weights have a standard deviation of 1/√(inputs) and norms are ones: queries, keys and logits then come out near unit
//! variance, as they do in a trained model, whatever the depth.

mod described;
mod known;
mod noise;
mod shape;
mod vocabulary;

pub use described::Described;
pub use known::{KNOWN, Known};
pub use noise::{Noise, TensorNoise};
pub use shape::Shape;
pub use vocabulary::LEAST_VOCABULARY;

use crate::dtype::DType;
use crate::error::Result;
use crate::gguf::{Writer, WriterValue};
use crate::quant::quantize_row;
use crate::tensor::Tensor;
use half::f16;

/// How the weights of a synthetic model are stored. Norms are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightType {
    /// Q4_0, with scales as kvant's int4 chooses them.
    #[default]
    Int4,
    /// Q8_0, with scales as kvant's int8 chooses them.
    Int8,
    /// Half precision.
    F16,
}

impl WeightType {
    fn stored(self) -> DType {
        match self {
            Self::Int4 => DType::Q4_0,
            Self::Int8 => DType::Q8_0,
            Self::F16 => DType::F16,
        }
    }

    /// Stores a row of finite weights.
    fn encode(self, weights: &[f32], out: &mut [u8]) {
        // kvant's own types have the bytes of their ggml twins.
        let own = match self {
            Self::Int4 => DType::Int4G32,
            Self::Int8 => DType::Int8G32,
            Self::F16 => {
                for (bytes, &weight) in out.as_chunks_mut().0.iter_mut().zip(weights) {
                    *bytes = f16::from_f32(weight).to_le_bytes();
                }
                return;
            }
        };
        quantize_row(own, weights, out).expect("weights are finite and the shape was checked");
    }
}

/// A synthetic model, ready to be written: [`Writer::write_with`] makes the weights.
///
/// # Errors
/// If no model has that shape, or rows do not divide into the blocks of the weight type.
pub fn model(shape: &Shape, weights: WeightType, seed: u64) -> Result<Writer> {
    shape.check(weights.stored().block_len())?;
    let mut writer = Writer::new("llama");
    metadata(&mut writer, shape);
    vocabulary::write(&mut writer, shape.vocabulary);

    let mut noise = Noise::new(seed);
    let mut matrix = |writer: &mut Writer, name: &str, rows: usize, columns: usize| -> Result<()> {
        let noise = noise.next_tensor();
        writer.made(name, weights.stored(), &[rows, columns], move |row, bytes| {
            let mut values = vec![0.0; columns];
            noise.fill_row(row, &mut values);
            weights.encode(&values, bytes);
        })?;
        Ok(())
    };
    let ones = |writer: &mut Writer, name: &str| -> Result<()> {
        writer.tensor(Tensor::from_f32(name, vec![shape.hidden], &vec![1.0; shape.hidden])?);
        Ok(())
    };
    let (hidden, queries, keys) =
        (shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    matrix(&mut writer, "token_embd.weight", shape.vocabulary, hidden)?;
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        ones(&mut writer, &name("attn_norm"))?;
        matrix(&mut writer, &name("attn_q"), queries, hidden)?;
        matrix(&mut writer, &name("attn_k"), keys, hidden)?;
        matrix(&mut writer, &name("attn_v"), keys, hidden)?;
        matrix(&mut writer, &name("attn_output"), hidden, queries)?;
        ones(&mut writer, &name("ffn_norm"))?;
        matrix(&mut writer, &name("ffn_gate"), shape.ffn, hidden)?;
        matrix(&mut writer, &name("ffn_up"), shape.ffn, hidden)?;
        matrix(&mut writer, &name("ffn_down"), hidden, shape.ffn)?;
    }
    ones(&mut writer, "output_norm.weight")?;
    if !shape.tied {
        matrix(&mut writer, "output.weight", shape.vocabulary, hidden)?;
    }
    Ok(writer)
}

fn metadata(writer: &mut Writer, shape: &Shape) {
    let text = |text: &str| WriterValue::String(text.to_owned());
    writer.set("general.name", text("synthetic"));
    writer.set("general.description", text("random weights, for measuring speed"));
    let sizes = [
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("block_count", shape.layers),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocabulary),
    ];
    for (key, size) in sizes {
        // `Shape::check` keeps every size far below 2³².
        writer.set(&format!("llama.{key}"), WriterValue::U32(size as u32));
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", WriterValue::F32(1e-5));
    writer.set("llama.rope.freq_base", WriterValue::F32(shape.rope_base));
}
