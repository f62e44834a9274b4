//! What weights that are packed on load cost: the packed bytes, and not the file's as well. This file holds one
//! test, because it looks at the memory of its whole process.
#![cfg(target_os = "linux")]

use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, DType, Pass};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;
const HIDDEN: usize = 512;
const INNER: usize = 2048;
const LAYERS: usize = 4;
const VOCABULARY: usize = 1024;
/// For threads, code, tokens and what the allocator keeps.
const SLACK: u64 = 12 * MIB;

/// A llama with random f32 weights, written without holding them in memory; returns its bytes.
fn write_checkpoint(folder: &Path) -> u64 {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("lm_head.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts = [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ];
        tensors.extend(
            parts.into_iter().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)),
        );
    }
    let mut header = String::from("{");
    let mut end = 0u64;
    for (name, shape) in &tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>() as u64;
        let comma = if start == 0 { "" } else { "," };
        write!(
            header,
            "{comma}{name:?}:{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        )
        .unwrap();
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = BufWriter::new(fs::File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = 1u32;
    for _ in 0..end / 4 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
        file.write_all(&(0.05 * value).to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": {INNER},
            "num_hidden_layers": {LAYERS}, "num_attention_heads": 8, "vocab_size": {VOCABULARY},
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 512,
            "tie_word_embeddings": false}}"#
    );
    fs::write(folder.join("config.json"), config).unwrap();
    end
}

/// Bytes of a line of `/proc/self/status`.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn packed_weights_take_the_place_of_the_mapped_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_checkpoint(folder.path());
    let table = 4 * (VOCABULARY * HIDDEN) as u64;
    let largest = 4 * (INNER * HIDDEN) as u64;
    // 18 of 128 bytes for each group of 32; the token table stays as it is, in the file.
    let packed = (file - table) * 18 / 128;

    // From here on the peak is that of loading.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (anonymous, mapped, resident) = (status("RssAnon"), status("RssFile"), status("VmRSS"));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions { weights: Some(DType::Int4G32), ..LoadOptions::default() };
    let model = kvant_cpu::load(&checkpoint, options).unwrap();
    let peak = status("VmHWM").saturating_sub(resident);
    assert!(peak < packed + largest + SLACK, "loading {file} bytes took {peak}, {packed} of them packed");

    let mut cache = KvCache::reference(model.slots(), 16).unwrap();
    model.forward(Pass::new(&[Chunk::new(&[1, 2, 3], 2..3)]), &mut [cache.sequence_mut()]).unwrap();
    let own = status("RssAnon").saturating_sub(anonymous);
    let in_file = status("RssFile").saturating_sub(mapped);
    assert!(own > packed * 9 / 10 && own < packed + SLACK, "{own} bytes of our own for {packed} packed");
    assert!(in_file < SLACK, "{in_file} of {file} bytes of the file are still resident");
}
