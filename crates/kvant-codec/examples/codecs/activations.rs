//! Keys, values and queries of a real model, as floats.

use half::f16;
use safetensors::SafeTensors;
use std::path::Path;

/// One layer of SmolLM2-135M over 512 tokens.
pub struct Layer {
    /// Per kv head, (tokens, dim), after RoPE.
    pub keys: Vec<Vec<f32>>,
    /// Per kv head, (tokens, dim).
    pub values: Vec<Vec<f32>>,
    /// Per kv head, (queries, dim): the last 32 positions of the heads that share it, after RoPE.
    pub queries: Vec<Vec<f32>>,
}

/// Channels of a head.
pub const DIM: usize = 64;
/// What scores are multiplied with before the softmax.
pub const SCALE: f64 = 0.125;
const LAYERS: [usize; 4] = [0, 9, 19, 29];

/// Reads the four layers kept in `tests/data`.
pub fn layers() -> Result<Vec<Layer>, Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/smollm2_kv_4layers_512.safetensors");
    let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let heads = |name: String, heads: usize| -> Result<Vec<Vec<f32>>, safetensors::SafeTensorError> {
        let data = file.tensor(&name)?.data().to_vec();
        let floats: Vec<f32> =
            data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
        Ok(floats.chunks_exact(floats.len() / heads).map(<[f32]>::to_vec).collect())
    };
    LAYERS
        .iter()
        .map(|layer| {
            let keys = heads(format!("k.{layer}"), 3)?;
            let values = heads(format!("v.{layer}"), 3)?;
            // Nine query heads, three to a kv head, neighbours in memory.
            let queries = heads(format!("q.{layer}"), 3)?;
            Ok(Layer { keys, values, queries })
        })
        .collect()
}
