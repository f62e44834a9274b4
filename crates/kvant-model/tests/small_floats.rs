//! Weights in 4-bit and 8-bit floats whose scales lie beside them, against the same weights as plain numbers.

use half::bf16;
use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::description::{Matrix, RowRange, TensorRef};
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk, DType, LoadErrorKind, Pass, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::Path;

/// A tensor of a file to be.
type Named = (String, Dtype, Vec<usize>, Vec<u8>);

fn floats(name: &str, shape: &[usize], values: &[f32]) -> Named {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name.to_owned(), Dtype::F32, shape.to_vec(), bytes)
}

fn file(tensors: &[Named]) -> Safetensors {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    Safetensors::from_bytes(safetensors::serialize(views, None).unwrap()).unwrap()
}

/// A small generator.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: u64) -> u8 {
        (self.bits() % n) as u8
    }

    /// Numbers between −size and size.
    fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| size * (self.bits() as f32 / (1u64 << 30) as f32 - 1.0)).collect()
    }
}

fn logits(checkpoint: &Checkpoint, options: LoadOptions, vocabulary: u32) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, options).unwrap();
    let ids: Vec<u32> = (0..21).map(|i| i * 7 % vocabulary).collect();
    let mut cache = KvCache::reference(model.slots(), ids.len()).unwrap();
    model
        .forward(Pass::new(&[Chunk::new(&ids, 0..ids.len())]), &mut [cache.sequence_mut()])
        .unwrap()
        .into_logits()
        .data()
        .to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference, as a share of the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |a, v| a.max(v.abs()));
    assert!(largest > 1e-2, "logits that say nothing");
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

mod gpt_oss {
    use super::*;

    const LAYERS: usize = 2;
    const HIDDEN: usize = 64;
    const INNER: usize = 32;
    const EXPERTS: usize = 4;
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const HEAD_DIM: usize = 16;
    const VOCABULARY: usize = 48;

    /// Experts as MXFP4: a code per value and an exponent for every 32, `(experts, outputs, inputs)`.
    struct Experts {
        outputs: usize,
        inputs: usize,
        codes: Vec<u8>,
        exponents: Vec<u8>,
    }

    impl Experts {
        fn random(random: &mut Random, outputs: usize, inputs: usize) -> Self {
            let count = EXPERTS * outputs * inputs;
            let codes = (0..count).map(|_| random.below(16)).collect();
            let exponents = (0..count / 32).map(|_| 119 + random.below(5)).collect();
            Self { outputs, inputs, codes, exponents }
        }

        fn value(&self, at: usize) -> f32 {
            let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(self.codes[at] % 8)];
            let sign = if self.codes[at] < 8 { 1.0 } else { -1.0 };
            sign * size * 2f32.powi(i32::from(self.exponents[at / 32]) - 127)
        }

        /// As a checkpoint with plain experts has them: `(experts, inputs, outputs)`.
        fn plain(&self, name: &str) -> Vec<Named> {
            let mut values = Vec::new();
            for expert in 0..EXPERTS {
                for input in 0..self.inputs {
                    for output in 0..self.outputs {
                        values.push(self.value((expert * self.outputs + output) * self.inputs + input));
                    }
                }
            }
            vec![floats(name, &[EXPERTS, self.inputs, self.outputs], &values)]
        }

        /// As the released checkpoints have them: neighbours in a byte, exponents apart.
        fn released(&self, name: &str) -> Vec<Named> {
            let bytes = self.codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
            let groups = vec![EXPERTS, self.outputs, self.inputs / 32];
            let blocks = [&groups[..], &[16]].concat();
            vec![
                (format!("{name}_blocks"), Dtype::U8, blocks, bytes),
                (format!("{name}_scales"), Dtype::U8, groups, self.exponents.clone()),
            ]
        }

        /// As GGUF files have them, every `step`th output from `first` on.
        fn blocks(&self, name: &str, first: usize, step: usize) -> Tensor {
            let mut bytes = Vec::new();
            for expert in 0..EXPERTS {
                for output in (first..self.outputs).step_by(step) {
                    let row = (expert * self.outputs + output) * self.inputs;
                    for at in (row..row + self.inputs).step_by(32) {
                        bytes.push(self.exponents[at / 32]);
                        bytes.extend((at..at + 16).map(|i| self.codes[i] | self.codes[i + 16] << 4));
                    }
                }
            }
            let shape = vec![EXPERTS, self.outputs / step, self.inputs];
            Tensor::new(name, DType::MXFP4, shape, bytes.into()).unwrap()
        }
    }

    /// What all three checkpoints share, under both names.
    fn rest(random: &mut Random) -> Vec<(String, String, Vec<usize>, Vec<f32>)> {
        let mut rest = Vec::new();
        let mut add = |hf: String, gguf: String, shape: &[usize], near: f32, size: f32| {
            let values = random.numbers(shape.iter().product(), size);
            rest.push((hf, gguf, shape.to_vec(), values.iter().map(|v| v + near).collect()));
        };
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        add("model.embed_tokens.weight".into(), "token_embd.weight".into(), &[VOCABULARY, HIDDEN], 0.0, 1.0);
        add("lm_head.weight".into(), "output.weight".into(), &[VOCABULARY, HIDDEN], 0.0, 0.2);
        add("model.norm.weight".into(), "output_norm.weight".into(), &[HIDDEN], 1.0, 0.1);
        for layer in 0..LAYERS {
            let hf = |name: &str| format!("model.layers.{layer}.{name}");
            let gguf = |name: &str| format!("blk.{layer}.{name}");
            for (from, to, outputs, inputs) in [
                ("self_attn.q_proj", "attn_q", q, HIDDEN),
                ("self_attn.k_proj", "attn_k", kv, HIDDEN),
                ("self_attn.v_proj", "attn_v", kv, HIDDEN),
                ("self_attn.o_proj", "attn_output", HIDDEN, q),
                ("mlp.router", "ffn_gate_inp", EXPERTS, HIDDEN),
            ] {
                let part = |name: &str, suffix: &str| format!("{name}.{suffix}");
                add(hf(&part(from, "weight")), gguf(&part(to, "weight")), &[outputs, inputs], 0.0, 0.2);
                add(hf(&part(from, "bias")), gguf(&part(to, "bias")), &[outputs], 0.0, 0.2);
            }
            add(hf("self_attn.sinks"), gguf("attn_sinks.weight"), &[HEADS], 0.0, 1.0);
            add(hf("input_layernorm.weight"), gguf("attn_norm.weight"), &[HIDDEN], 1.0, 0.1);
            let after = "post_attention_layernorm.weight";
            add(hf(after), gguf("post_attention_norm.weight"), &[HIDDEN], 1.0, 0.1);
            add(hf("mlp.experts.down_proj_bias"), gguf("ffn_down_exps.bias"), &[EXPERTS, HIDDEN], 0.0, 0.1);
        }
        rest
    }

    fn config() -> Value {
        json!({"model_type": "gpt_oss", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCABULARY,
            "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 8, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "attention_bias": true, "max_position_embeddings": 64, "rope_theta": 150000.0,
            "swiglu_limit": 7.0, "tie_word_embeddings": false,
            "layer_types": ["sliding_attention", "full_attention"]})
    }

    /// Plain and released safetensors, and GGUF.
    fn three() -> [Checkpoint; 3] {
        let mut random = Random(1);
        let mut writer = Writer::new("gpt-oss");
        let sizes = [
            ("context_length", 64),
            ("embedding_length", HIDDEN),
            ("block_count", LAYERS),
            ("feed_forward_length", INNER),
            ("expert_feed_forward_length", INNER),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", KV_HEADS),
            ("attention.key_length", HEAD_DIM),
            ("attention.sliding_window", 8),
            ("expert_count", EXPERTS),
            ("expert_used_count", 2),
        ];
        for (key, value) in sizes {
            writer.set(&format!("gpt-oss.{key}"), WriterValue::U32(value as u32));
        }
        writer.set("gpt-oss.attention.layer_norm_rms_epsilon", WriterValue::F32(1e-5));
        writer.set("gpt-oss.rope.freq_base", WriterValue::F32(150_000.0));
        let (mut plain, mut released) = (Vec::new(), Vec::new());
        for (hf, gguf, shape, values) in rest(&mut random) {
            plain.push(floats(&hf, &shape, &values));
            writer.tensor(Tensor::from_f32(gguf, shape, &values).unwrap());
        }
        for layer in 0..LAYERS {
            let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
            let bias = random.numbers(EXPERTS * 2 * INNER, 0.1);
            plain.push(floats(&name("gate_up_proj_bias"), &[EXPERTS, 2 * INNER], &bias));
            for (first, part) in ["gate", "up"].into_iter().enumerate() {
                let own: Vec<f32> = bias.iter().copied().skip(first).step_by(2).collect();
                let name = format!("blk.{layer}.ffn_{part}_exps.bias");
                writer.tensor(Tensor::from_f32(name, vec![EXPERTS, INNER], &own).unwrap());
            }
        }
        released.clone_from(&plain);
        for layer in 0..LAYERS {
            let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
            let gguf = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
            let both = Experts::random(&mut random, 2 * INNER, HIDDEN);
            let down = Experts::random(&mut random, HIDDEN, INNER);
            plain.extend(both.plain(&name("gate_up_proj")).into_iter().chain(down.plain(&name("down_proj"))));
            released.extend(both.released(&name("gate_up_proj")));
            released.extend(down.released(&name("down_proj")));
            writer.tensor(both.blocks(&gguf("gate"), 0, 2));
            writer.tensor(both.blocks(&gguf("up"), 1, 2));
            writer.tensor(down.blocks(&gguf("down"), 0, 1));
        }
        [
            Checkpoint::from_safetensors(file(&plain), config()),
            Checkpoint::from_safetensors(file(&released), config()),
            Checkpoint::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap()),
        ]
    }

    #[test]
    fn packed_experts_give_the_logits_of_plain_ones_in_both_formats() {
        let [plain, released, gguf] = three();
        let logits = |checkpoint, options| super::logits(checkpoint, options, VOCABULARY as u32);
        let exact = logits(&plain, LoadOptions::AS_STORED);
        let unpacked = logits(&released, LoadOptions::AS_STORED);
        assert!(difference(&unpacked, &exact) < 1e-5);
        assert_eq!(bits(&unpacked), bits(&logits(&gguf, LoadOptions::AS_STORED)));
        // Activations in bytes, on the packed kernels: near, and the same from either format.
        let packed = logits(&released, LoadOptions::default());
        assert!(difference(&packed, &exact) < 0.03 && bits(&packed) != bits(&unpacked));
        assert_eq!(bits(&packed), bits(&logits(&gguf, LoadOptions::default())));
    }

    #[test]
    fn a_packed_matrix_is_read_as_mxfp4() {
        let [_, released, gguf] = three();
        let name = "model.layers.1.mlp.experts.gate_up_proj_blocks";
        assert_eq!(released.tensor(name).unwrap().shape(), [EXPERTS, 2 * INNER, HIDDEN]);
        let tensor = TensorRef { name: name.into(), shape: vec![EXPERTS, 2 * INNER, HIDDEN] };
        let rows = Some(RowRange::every(2, 1, INNER));
        let up = Matrix { expert: Some(3), rows, ..Matrix::whole(tensor) }.read(&released).unwrap();
        let twin = gguf.tensor("blk.1.ffn_up_exps.weight").unwrap().index(3).unwrap();
        assert_eq!((up.dtype(), up.shape()), (DType::MXFP4, twin.shape()));
        assert_eq!(up.bytes()[..], twin.bytes()[..]);
    }

    #[test]
    fn a_configuration_alone_says_that_experts_are_packed() {
        let mut config = config();
        let plain = Checkpoint::from_config(config.clone(), DType::F16).unwrap();
        config["quantization_config"] = json!({"quant_method": "mxfp4"});
        let packed = Checkpoint::from_config(config, DType::F16).unwrap();
        let name = "model.layers.0.mlp.experts.down_proj";
        assert_eq!(plain.tensor(name).unwrap().dtype(), DType::F16);
        assert_eq!(packed.tensor(&format!("{name}_blocks")).unwrap().dtype(), DType::MXFP4);
    }
}

/// An 8-bit float, by its bits.
fn eight_bit_float(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = if exponent == 0 { mantissa / 512.0 } else { (8.0 + mantissa) * 2f32.powi(exponent - 10) };
    if code < 0x80 { size } else { -size }
}

/// A matrix of 8-bit floats of at most 2 with a scale for every block, and its values.
fn eight_bits(
    random: &mut Random,
    name: &str,
    (rows, columns): (usize, usize),
    block: (usize, usize),
) -> ([Named; 2], Vec<f32>) {
    let codes: Vec<u8> = (0..rows * columns).map(|_| random.below(64) | random.below(2) << 7).collect();
    let grid = [rows.div_ceil(block.0), columns.div_ceil(block.1)];
    let scales: Vec<f32> = random.numbers(grid[0] * grid[1], 0.05).iter().map(|v| v + 0.1).collect();
    let value = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        eight_bit_float(codes[at]) * scales[row / block.0 * grid[1] + column / block.1]
    };
    let values = (0..codes.len()).map(value).collect();
    let weight = (name.to_owned(), Dtype::F8_E4M3, vec![rows, columns], codes);
    ([weight, floats(&format!("{name}_scale_inv"), &grid, &scales)], values)
}

#[test]
fn a_model_in_fp8_gives_the_logits_of_its_plain_twin() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3");
    let source = Safetensors::open(&folder.join("model.safetensors")).unwrap();
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let mut random = Random(5);
    let (mut plain, mut packed, block) = (Vec::new(), Vec::new(), (32, 24));
    for name in source.names() {
        let tensor = source.tensor(name).unwrap().unwrap();
        if !name.ends_with("_proj.weight") {
            let same = floats(name, tensor.shape(), &tensor.to_f32().unwrap());
            plain.push(same.clone());
            packed.push(same);
            continue;
        }
        let shape = (tensor.rows(), tensor.columns());
        let (stored, values) = eight_bits(&mut random, name, shape, block);
        packed.extend(stored);
        plain.push(floats(name, tensor.shape(), &values));
    }
    let vocabulary = config["vocab_size"].as_u64().unwrap() as u32;
    let exact = Checkpoint::from_safetensors(file(&plain), config.clone());
    let exact = logits(&exact, LoadOptions::AS_STORED, vocabulary);
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [block.0, block.1]});
    let checkpoint = Checkpoint::from_safetensors(file(&packed), config.clone());
    assert!(difference(&logits(&checkpoint, LoadOptions::AS_STORED, vocabulary), &exact) < 1e-4);
    // Packed to int8 on request, as plain numbers are.
    let int8 = LoadOptions { weights: Some(DType::Int8G32), ..LoadOptions::default() };
    let near = logits(&checkpoint, int8, vocabulary);
    assert!(difference(&near, &exact) < 0.2 && bits(&near) != bits(&exact));
    // Another size of blocks is another model, and here one whose scales do not fit.
    config["quantization_config"]["weight_block_size"] = json!([16, 24]);
    let other = Checkpoint::from_safetensors(file(&packed), config);
    let error = kvant_cpu::load(&other, LoadOptions::AS_STORED).err().unwrap();
    assert!(error.to_string().contains("_scale_inv"), "{error}");
}

#[test]
fn scales_for_128_by_128_for_a_row_and_for_all() {
    let mut random = Random(9);
    let (rows, columns) = (300, 257);
    let ([weight, scales], values) = eight_bits(&mut random, "w.weight", (rows, columns), (128, 128));
    let read = |scales: Named| {
        let checkpoint = Checkpoint::from_safetensors(file(&[weight.clone(), scales]), json!({}));
        checkpoint.tensor("w.weight").map(|tensor| (tensor, checkpoint))
    };
    let (tensor, checkpoint) = read(scales).unwrap();
    assert_eq!(tensor.to_f32().unwrap(), values);
    let mut row = vec![0.0; columns];
    tensor.row_f32(299, &mut row).unwrap();
    assert_eq!(row, values[299 * columns..]);
    // Parts keep the scales of their rows: a run of them, a part of a part, every third.
    let part = tensor.narrow(100..200).unwrap().narrow(50..60).unwrap();
    assert_eq!(part.to_f32().unwrap(), values[150 * columns..160 * columns]);
    let whole = TensorRef { name: "w.weight".into(), shape: vec![rows, columns] };
    let every_third = Matrix { rows: Some(RowRange::every(3, 2, 99)), ..Matrix::whole(whole) };
    let gathered = every_third.read(&checkpoint).unwrap();
    assert_eq!(gathered.to_f32().unwrap()[98 * columns..], values[296 * columns..297 * columns]);
    assert_eq!(tensor.reshape(vec![1, rows, columns]).unwrap().to_f32().unwrap(), values);
    assert!(tensor.reshape(vec![columns, rows]).is_err());

    let code = |at: usize| eight_bit_float(weight.3[at]);
    let halves: Vec<u8> =
        (0..rows).flat_map(|row| bf16::from_f32(1.0 + row as f32 / 4.0).to_le_bytes()).collect();
    let by_row = ("w.weight_scale".to_owned(), Dtype::BF16, vec![rows, 1], halves);
    let values = read(by_row).unwrap().0.to_f32().unwrap();
    let factor = bf16::from_f32(1.0 + 40.0 / 4.0).to_f32();
    assert_eq!(values[40 * columns + 3], code(40 * columns + 3) * factor);
    let values = read(floats("w.weight_scale", &[], &[0.25])).unwrap().0.to_f32().unwrap();
    assert_eq!(values[77], code(77) * 0.25);

    let refused = |scales: Named| read(scales).err().unwrap();
    assert_eq!(refused(floats("other", &[1], &[1.0])).kind(), LoadErrorKind::Missing);
    for bad in [floats("w.weight_scale_inv", &[2, 3], &[1.0; 6]), floats("w.weight_scale", &[7], &[1.0; 7])] {
        let error = refused(bad);
        assert!(error.to_string().contains("w.weight"), "{error}");
    }
}

#[test]
fn bytes_that_are_no_halves_of_mxfp4_are_refused_by_name() {
    let bytes = |name: &str, shape: &[usize]| {
        (name.to_owned(), Dtype::U8, shape.to_vec(), vec![1; shape.iter().product()])
    };
    let read = |tensors: &[Named], name: &str| file(tensors).tensor(name);
    let (blocks, scales) = (bytes("x_blocks", &[2, 3, 4, 16]), bytes("x_scales", &[2, 3, 4]));
    let both = [blocks.clone(), scales];
    assert_eq!(read(&both, "x_blocks").unwrap().unwrap().shape(), [2, 3, 128]);
    assert_eq!(read(&both, "x_scales").unwrap().unwrap().dtype(), DType::U8);
    for (tensors, name) in [
        (vec![bytes("mask", &[4])], "mask"),
        (vec![blocks.clone()], "x_blocks"),
        (vec![bytes("x_blocks", &[2, 8]), bytes("x_scales", &[2])], "x_blocks"),
        (vec![blocks, bytes("x_scales", &[2, 4, 3])], "x_blocks"),
    ] {
        let error = read(&tensors, name).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// The second scale of NVFP4, `X.scale` beside `X.weight`: one for a matrix.
#[test]
fn nvfp4_in_gguf_comes_with_its_second_scale() {
    let write = |count: usize| {
        let mut writer = Writer::new("llama");
        let bytes: Vec<u8> = (0..3 * 2 * 36).map(|i| (i * 37 % 120) as u8).collect();
        let weight =
            Tensor::new("blk.0.ffn_up_exps.weight", DType::NVFP4, vec![3, 2, 64], bytes.into()).unwrap();
        writer.tensor(weight.clone());
        let factors: Vec<f32> = (0..count).map(|i| 0.5 + i as f32).collect();
        writer.tensor(Tensor::from_f32("blk.0.ffn_up_exps.scale", vec![count], &factors).unwrap());
        (weight.to_f32().unwrap(), Gguf::from_bytes(writer.to_bytes().unwrap()))
    };
    let (bare, gguf) = write(3);
    let scaled = gguf.unwrap().tensor("blk.0.ffn_up_exps.weight").unwrap();
    let expected: Vec<f32> = bare.iter().enumerate().map(|(i, v)| v * (0.5 + (i / 128) as f32)).collect();
    assert_eq!(scaled.to_f32().unwrap(), expected);
    assert_eq!(scaled.index(2).unwrap().to_f32().unwrap(), expected[256..]);
    let error = write(2).1.unwrap_err().to_string();
    assert!(error.contains("ffn_up_exps.scale"), "{error}");
}
