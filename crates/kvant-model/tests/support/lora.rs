//! LoRA adapters of the tiny model, for the tests of the crates above.

use kvant_model::Tensor;
use kvant_model::gguf::{Writer, WriterValue};

/// The bytes of a GGUF adapter that changes what the tiny model says; each seed gives another.
pub fn adapter_bytes(seed: usize) -> Vec<u8> {
    let mut writer = Writer::new("qwen2");
    writer.set("general.type", WriterValue::String("adapter".into()));
    writer.set("adapter.type", WriterValue::String("lora".into()));
    writer.set("adapter.lora.alpha", WriterValue::F32(8.0));
    let shapes = [
        ("attn_q", 64, 64),
        ("attn_v", 32, 64),
        ("attn_output", 64, 64),
        ("ffn_gate", 88, 64),
        ("ffn_down", 64, 88),
    ];
    for layer in 0..2 {
        for (part, outputs, inputs) in shapes {
            let mut side = |side: &str, shape: [usize; 2], place: usize| {
                let wave = |i: usize| 0.3 * ((i * (2 * seed + 3) + place) as f32 * 0.7).sin();
                let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(wave).collect();
                let name = format!("blk.{layer}.{part}.weight.lora_{side}");
                writer.tensor(Tensor::from_f32(name, shape.to_vec(), &numbers).unwrap());
            };
            side("a", [4, inputs], layer + inputs);
            side("b", [outputs, 4], layer + outputs);
        }
    }
    writer.to_bytes().unwrap()
}
