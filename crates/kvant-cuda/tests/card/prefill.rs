//! A token's products have the same bits in every kernel: alone, in chunks of any length, by cubins (wgmma on Hopper) and by PTX (mma.sync).

use super::{cache, card, count, is_short, read, tokens};
use kvant_cuda::kernels::Form;
use kvant_cuda::{CudaBackend, CudaGpu, WeightType};
use kvant_model::error::Result;
use kvant_model::{Backend, Checkpoint, DType, Description, Model, Network};
use std::sync::Arc;

/// Weights that mean nothing, of any type.
struct Noise<'a>(&'a CudaBackend, WeightType);

impl Backend for Noise<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn compile(&self, description: &Description, _: &Checkpoint) -> Result<Box<dyn Network>> {
        Ok(Box::new(self.0.noise(description, self.1)?))
    }
}

/// One layer whose channels are more than a segment and not whole ones, and whose rows are not whole tiles.
fn outline(hidden: usize, inner: usize) -> Checkpoint {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 1, "intermediate_size": inner,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 301,
        "tie_word_embeddings": false
    });
    Checkpoint::from_config(config, DType::Q4_0).unwrap()
}

fn logits(
    card: &Arc<CudaGpu>,
    outline: &Checkpoint,
    kind: WeightType,
    ids: &[u32],
    chunks: &[usize],
) -> Vec<f32> {
    let backend = CudaBackend::new(card).unwrap();
    let model = Model::load(&Noise(&backend, kind), outline).unwrap();
    read(&model, &mut cache(&model, "f16", Some(backend.store()), ids.len() + 64), ids, chunks)
}

#[test]
fn tokens_have_the_same_bits_alone_in_chunks_and_by_every_kernel() {
    let card = card();
    let ptx = CudaGpu::open_as(0, Some(Form::Ptx)).map(Arc::new).unwrap();
    let kinds = [
        WeightType::Q4_0,
        WeightType::Q8_0,
        WeightType::F16,
        WeightType::Q4K,
        WeightType::Q6K,
        WeightType::Q4_1,
        WeightType::Q5K,
        WeightType::Mxfp4,
    ];
    // Channels of the first are a multiple of 128, of the second only of 64. A driver that stands in for a card gets less than a segment.
    let of_blocks = outline(count(1280, 256), count(2304, 512));
    let of_halves = outline(count(1088, 320), count(1088, 320));
    for (number, kind) in kinds.into_iter().enumerate() {
        let shapes = [&of_blocks, &of_halves];
        let own = if kind.device_block().0 == 64 && (number == 0 || !is_short()) { 2 } else { 1 };
        for outline in &shapes[..own] {
            let ids = tokens(count(1100, 20), 301);
            let chunks: &[usize] = if is_short() { &[1, 9, 2, 8] } else { &[1, 7, 64, 2, 9, 1000, 1] };
            let whole = logits(&card, outline, kind, &ids, &[ids.len()]);
            assert!(whole.iter().all(|logit| logit.is_finite()), "{kind:?}");
            assert!(whole == logits(&card, outline, kind, &ids, chunks), "{kind:?}: in chunks");
            assert!(whole == logits(&ptx, outline, kind, &ids, chunks), "{kind:?}: by mma.sync");
            let some = &ids[..count(300, 4)];
            let first = &whole[..some.len() * 301];
            assert!(first == logits(&card, outline, kind, some, &[1]), "{kind:?}: alone");
        }
    }
    let every = count(300, 20);
    let ids = tokens(every, 301);
    let whole = logits(&card, &of_blocks, WeightType::Q4_0, &ids, &[every]);
    for chunk in (2..=every).step_by(count(1, 9)) {
        let found = logits(&card, &of_blocks, WeightType::Q4_0, &ids, &[chunk]);
        assert!(whole == found, "chunks of {chunk}");
    }
}

/// Down products of few rows and long ones: on Hopper 4 to 64 tokens take a tile for every segment.
#[test]
fn matrices_of_few_rows_have_the_same_bits_by_segments() {
    let card = card();
    let outline = outline(256, count(14336, 512));
    for kind in [WeightType::Q4_0, WeightType::F16, WeightType::Q6K].into_iter().take(count(3, 1)) {
        let ids = tokens(count(130, 12), 301);
        let alone = logits(&card, &outline, kind, &ids, &[1]);
        assert!(alone.iter().all(|logit| logit.is_finite()), "{kind:?}");
        let chunks: &[&[usize]] =
            if is_short() { &[&[5]] } else { &[&[3], &[4, 5, 8], &[16], &[33, 64], &[130]] };
        for chunks in chunks {
            assert!(alone == logits(&card, &outline, kind, &ids, chunks), "{kind:?}: chunks of {chunks:?}");
        }
    }
}
