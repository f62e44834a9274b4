//! Prompt attention by tiles (`kernels/attention_tile.cu`) gives a token the bits that the kernels of few queries give it.

use super::{Loaded, cache, card, count, is_short, llama, load, read, shape, tokens};
use kvant_cache::PageStore;
use kvant_codec::Side;
use kvant_conformance::wide::described;
use kvant_model::synth::{self, Shape};
use kvant_model::{Checkpoint, Chunk, Pass};

/// One layer of few channels: what these tests are about is its attention.
fn small(heads: usize, kv_heads: usize, dim: usize) -> Checkpoint {
    llama(&Shape { layers: 1, hidden: 128, ffn: 128, ..shape(heads, kv_heads, dim) }, synth::WeightType::F16)
}

/// One layer of four heads to one, with a window of 70 tokens, or under soft caps.
fn masked(kind: &str) -> Checkpoint {
    let mut config = serde_json::json!({
        "model_type": kind, "hidden_size": 128, "num_hidden_layers": 1, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
        "sliding_window": 70, "tie_word_embeddings": true
    });
    if kind == "gemma2" {
        config["hidden_activation"] = "gelu_pytorch_tanh".into();
        config["attn_logit_softcapping"] = 2.5.into();
        config["final_logit_softcapping"] = 3.0.into();
        config["query_pre_attn_scalar"] = 24.into();
        config["layer_types"] = serde_json::json!(["full_attention"]);
    }
    described(&format!("{kind}-tiles"), config)
}

#[test]
fn tiles_have_the_bits_of_few_queries() {
    let card = card();
    // 4 closed pages are one of each chain, 9 and more are two splits and chains of several pages.
    let n = count(1500, 300);
    let mut cases = vec![
        ("int4", "4 heads to 1", small(4, 1, 128)),
        ("k8v4;sinks=0", "a head to each", small(2, 2, 128)),
        ("int8;recent=70", "8 heads to 1", small(8, 1, 128)),
        ("int4", "a window", masked("mistral")),
        ("k8v4", "soft caps", masked("gemma2")),
        ("int4", "64 channels", small(4, 1, 64)),
    ];
    if !is_short() {
        cases.extend([
            ("k8v4", "4 heads to 1", small(8, 2, 128)),
            ("int8", "a window", masked("mistral")),
            ("int4;sinks=30", "7 heads to 1", small(7, 1, 128)),
            ("int4", "soft caps", masked("gemma2")),
            ("k8v4", "64 channels", small(4, 1, 64)),
            ("int8", "64 channels", small(3, 1, 64)),
            // Their kernels are those of few queries.
            ("int4", "256 channels", small(4, 1, 256)),
            ("f16", "exact", small(4, 1, 128)),
        ]);
    }
    for (policy, what, checkpoint) in cases {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(n, model.vocabulary());
        let logits = |chunks: &[usize]| {
            read(&model, &mut cache(&model, policy, Some(backend.store()), n + 64), &ids, chunks)
        };
        let whole = logits(&[n]);
        assert!(whole.iter().all(|logit| logit.is_finite()), "{policy}, {what}");
        assert!(whole == logits(&[n - 5, 1]), "{policy}, {what}: tokens alone");
        assert!(whole == logits(&[n - 45, 3]), "{policy}, {what}: chunks of 3");
        let others: &[&[usize]] =
            if is_short() { &[&[63, 65]] } else { &[&[1], &[7], &[63, 64, 65], &[200], &[1000]] };
        for chunks in others {
            assert!(whole == logits(chunks), "{policy}, {what}: chunks of {chunks:?}");
        }
    }
}

#[test]
fn tiles_have_the_same_bits_in_batches_and_read_every_byte() {
    let card = card();
    for policy in ["int4", "k8v4", "int8"].into_iter().take(count(3, 2)) {
        let Loaded { backend, model } = load(&card, &small(4, 1, 128));
        let (n, width) = (count(400, 200), model.vocabulary());
        let ids = tokens(n + 64, width);
        let mut here = cache(&model, policy, Some(backend.store()), n + 128);
        read(&model, &mut here, &ids[..n], &[n]);
        let fork = || here.over(here.sequence().fork().unwrap());
        let alone = read(&model, &mut fork(), &ids[n..], &[64]);
        // Beside a shorter sequence that brings a chunk too, and one of a token.
        let prefix = |tokens: usize| here.over(here.sequence().prefix(tokens).unwrap());
        let (mut one, mut two, mut three) = (fork(), prefix(132), prefix(68));
        let at = [one.len(), two.len(), three.len()];
        let chunks = [(at[1], 50), (at[0], 64), (at[2], 1)]
            .map(|(first, tokens)| Chunk::new(&ids[first..first + tokens], 0..tokens));
        let mut batch = [&mut two, &mut one, &mut three].map(|cache| cache.sequence_mut());
        let all = model.forward(Pass::new(&chunks), &mut batch).unwrap().into_logits();
        assert!(all.data()[50 * width..114 * width] == alone, "{policy}: in a batch");
        let slot = model.slots().kv_slots().next().unwrap();
        for side in [Side::Key, Side::Value] {
            let page = here.sequence().side(slot, 0, side).unwrap().pages().next().unwrap();
            let (id, bytes) = (page.id().unwrap(), page.canonical().into_owned());
            for at in [1, bytes.len() / 5, bytes.len() / 2, bytes.len() - 3] {
                let mut flipped = bytes.clone();
                flipped[at] ^= 0x35;
                backend.pages().write(id, &flipped);
                assert!(alone != read(&model, &mut fork(), &ids[n..], &[64]), "{policy} {side:?} byte {at}");
                backend.pages().write(id, &bytes);
            }
        }
        assert!(alone == read(&model, &mut fork(), &ids[n..], &[64]), "{policy}: as before");
    }
}
