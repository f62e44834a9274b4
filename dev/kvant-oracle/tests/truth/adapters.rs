//! LoRA adapters: the CPU backend against the oracle and against merged weights, and files that must be refused.

use crate::blocks::pre_norm;
use crate::maker::{Made, Maker};
use kvant_attention::KvCache;
use kvant_cache::{KvSlot, Sequence, StateError};
use kvant_conformance::{Fixture, reference_tolerance};
use kvant_cpu::LoadOptions;
use kvant_model::description::{Ffn, Mixer, TensorRef};
use kvant_model::gguf::{Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{
    Adapter, AdapterMix, AppliedAdapter, Backend, Checkpoint, Chunk, ConfigSource, Description, ForwardError,
    LoadError, Model, Network, Outputs, Pass, Rows, Tensor,
};
use kvant_oracle::Oracle;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const RANK: usize = 3;
const ALPHA: f64 = 6.0;
/// Tokens that a cache has room for.
const CAPACITY: usize = 256;

/// Numbers within ± `spread`, by a seed.
fn noise(count: usize, seed: u64, spread: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| spread * next()).collect()
}

/// A weight that is adapted: its name, outputs and inputs.
type Target = (String, usize, usize);

/// The projections and feed-forward layers of a fixture.
fn targets(description: &Description) -> Vec<Target> {
    let ends = ["_proj.weight", "c_attn.weight", "c_fc.weight"];
    let tensors =
        description.tensors().into_iter().filter(|of| ends.iter().any(|end| of.name.ends_with(end)));
    let target = |of: &TensorRef| match (of.shape.as_slice(), of.name.contains("c_")) {
        (&[inputs, outputs], true) | (&[outputs, inputs], false) => (of.name.clone(), outputs, inputs),
        _ => panic!("{of:?}"),
    };
    tensors.map(target).collect()
}

/// A and B of every target.
fn matrices(targets: &[Target], seed: u64) -> Vec<(Tensor, Tensor)> {
    let of = |(at, (name, outputs, inputs)): (u64, &Target)| {
        let (a, b) =
            (noise(RANK * inputs, seed + 2 * at, 0.3), noise(outputs * RANK, seed + 2 * at + 1, 0.1));
        let tensor = |side: &str, shape: [usize; 2], numbers: &[f32]| {
            Tensor::from_f32(format!("{name}{side}"), shape.to_vec(), numbers).unwrap()
        };
        (tensor(".lora_a", [RANK, *inputs], &a), tensor(".lora_b", [*outputs, RANK], &b))
    };
    (0..).zip(targets).map(of).collect()
}

/// The bytes of a safetensors file.
fn safetensors(tensors: &[(String, Tensor)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let range = [data.len(), data.len() + tensor.bytes().len()];
        header.insert(name.clone(), json!({"dtype": "F32", "shape": tensor.shape(), "data_offsets": range}));
        data.extend_from_slice(tensor.bytes());
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn peft_tensors(targets: &[Target], seed: u64) -> Vec<(String, Tensor)> {
    let names = |((name, ..), (a, b)): (&Target, (Tensor, Tensor))| {
        let module = name.strip_suffix(".weight").unwrap();
        let side = |side: &str| format!("base_model.model.{module}.lora_{side}.weight");
        [(side("A"), a), (side("B"), b)]
    };
    targets.iter().zip(matrices(targets, seed)).flat_map(names).collect()
}

fn peft_config() -> Value {
    json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_rslora": false, "bias": "none",
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                           "qkv_proj", "gate_up_proj", "c_attn", "c_proj", "c_fc"],
        "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {}, "use_dora": false, "init_lora_weights": true,
    })
}

fn write_peft(folder: &Path, config: &Value, tensors: &[(String, Tensor)]) {
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), safetensors(tensors)).unwrap();
}

fn peft(base: &Checkpoint, description: &Description, config: &Value, seed: u64) -> Adapter {
    let folder = tempfile::tempdir().unwrap();
    write_peft(folder.path(), config, &peft_tensors(&targets(description), seed));
    Adapter::open(folder.path(), base, description).unwrap()
}

fn mix(adapters: impl IntoIterator<Item = (Arc<Adapter>, f32)>) -> AdapterMix {
    AdapterMix::new(adapters.into_iter().map(|(adapter, scale)| AppliedAdapter { adapter, scale }))
}

/// Logits of a sequence that is read in chunks of `size`.
fn logits(model: &Model, tokens: &[u32], size: usize, adapters: &AdapterMix) -> Vec<f32> {
    let mut cache = KvCache::reference(model.slots(), CAPACITY).unwrap();
    let chunks = tokens.chunks(size).flat_map(|tokens| {
        let chunk = [Chunk::new(tokens, 0..tokens.len()).with(adapters)];
        model.forward(Pass::new(&chunk), &mut [cache.sequence_mut()]).unwrap().into_logits().into_vec()
    });
    chunks.collect()
}

fn largest_difference(a: impl IntoIterator<Item = f64>, b: &[f32]) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max)
}

/// The checkpoint whose weights are W + scale · B A.
fn merged(base: &Checkpoint, description: &Description, seed: u64, scale: f32) -> Checkpoint {
    let targets = targets(description);
    let updates = matrices(&targets, seed);
    let tensors = base.names().map(|name| {
        let tensor = base.tensor(name).unwrap();
        let mut numbers = tensor.to_f32().unwrap();
        if let Some(at) = targets.iter().position(|(target, ..)| target == name) {
            let ((_, outputs, inputs), (a, b)) = (&targets[at], &updates[at]);
            let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
            for (output, input) in
                (0..*outputs).flat_map(|output| (0..*inputs).map(move |input| (output, input)))
            {
                let sum: f64 = (0..RANK)
                    .map(|r| f64::from(b[output * RANK + r]) * f64::from(a[r * inputs + input]))
                    .sum();
                // Stored (inputs, outputs) where the shape says so.
                let is_turned = name.contains("c_");
                let place = if is_turned { input * outputs + output } else { output * inputs + input };
                numbers[place] = (f64::from(numbers[place]) + f64::from(scale) * sum) as f32;
            }
        }
        (name.to_owned(), Tensor::from_f32(name, tensor.shape().to_vec(), &numbers).unwrap())
    });
    let bytes = safetensors(&tensors.collect::<Vec<_>>());
    let ConfigSource::Config(config) = base.config() else { panic!("a folder has a configuration") };
    Checkpoint::from_safetensors(Safetensors::from_bytes(bytes).unwrap(), config.clone())
}

fn fixture(name: &str) -> (Fixture, Checkpoint, Description) {
    let fixture = Fixture::all().into_iter().find(|fixture| fixture.name == name).unwrap();
    let checkpoint = fixture.checkpoint("config.json").unwrap();
    let description = Description::of(&checkpoint).unwrap();
    (fixture, checkpoint, description)
}

/// Projections apart, fused, normed and transposed.
#[test]
fn peft_adapters_agree_with_the_oracle_and_with_merged_weights() {
    for name in ["llama", "qwen3", "phi3", "gpt2"] {
        let (fixture, checkpoint, description) = fixture(name);
        let model = kvant_cpu::load(&checkpoint, LoadOptions::AS_STORED).unwrap();
        let (tokens, bound) = (fixture.sequence(0), reference_tolerance(description.architecture));
        let plain = logits(&model, &tokens, tokens.len(), &AdapterMix::default());
        for (rooted, divisor) in [(false, RANK as f64), (true, (RANK as f64).sqrt())] {
            let mut config = peft_config();
            config["use_rslora"] = rooted.into();
            let adapter = Arc::new(peft(&checkpoint, &description, &config, 40));
            let adapters = mix([(adapter, 0.5)]);
            let found = logits(&model, &tokens, 7, &adapters);
            assert_eq!(
                found,
                logits(&model, &tokens, tokens.len(), &adapters),
                "{name}: chunks change no bit"
            );
            let oracle = Oracle::new(&description, &checkpoint).unwrap().with_adapters(adapters);
            let truth = oracle.run(&tokens, CAPACITY).logits.concat();
            let far = largest_difference(truth.iter().copied(), &found);
            assert!(far < bound, "{name}: {far:.1e} from the oracle");
            let change = largest_difference(truth, &plain);
            assert!(change > 100.0 * bound, "{name}: the adapter changes logits by {change:.1e} only");
            let merged = merged(&checkpoint, &description, 40, (0.5 * ALPHA / divisor) as f32);
            let merged = kvant_cpu::load(&merged, LoadOptions::AS_STORED).unwrap();
            let merged = logits(&merged, &tokens, tokens.len(), &AdapterMix::default());
            let far = largest_difference(merged.into_iter().map(f64::from), &found);
            assert!(far < bound, "{name}: {far:.1e} from merged weights");
        }
    }
}

#[test]
fn sequences_of_a_pass_keep_the_bits_they_have_alone() {
    let (fixture, checkpoint, description) = fixture("llama");
    let [first, second] =
        [40, 90].map(|seed| Arc::new(peft(&checkpoint, &description, &peft_config(), seed)));
    let mixes = [
        AdapterMix::default(),
        mix([(first.clone(), 1.0)]),
        mix([(first.clone(), 1.0)]),
        mix([(second.clone(), -0.5), (first, 0.25)]),
        AdapterMix::default(),
        mix([(second, 1.0)]),
    ];
    // As they are stored, and packed with rounded activations.
    let packed = LoadOptions { weights: Some(kvant_model::DType::Int4G32), ..LoadOptions::default() };
    for options in [LoadOptions::AS_STORED, packed] {
        let model = kvant_cpu::load(&checkpoint, options).unwrap();
        let texts: Vec<Vec<u32>> = (0..mixes.len()).map(|i| fixture.sequence(i % 2)[i..].to_vec()).collect();
        let mut caches: Vec<KvCache> =
            mixes.iter().map(|_| KvCache::reference(model.slots(), CAPACITY).unwrap()).collect();
        let mut found = vec![Vec::new(); mixes.len()];
        for part in [0..4, 4..5, 5..12] {
            let chunks: Vec<Chunk<'_>> = texts
                .iter()
                .zip(&mixes)
                .map(|(text, mix)| Chunk::new(&text[part.clone()], 0..part.len()).with(mix))
                .collect();
            let mut sequences: Vec<_> = caches.iter_mut().map(KvCache::sequence_mut).collect();
            let rows = model.forward(Pass::new(&chunks), &mut sequences).unwrap().into_logits();
            let width = part.len() * model.vocabulary();
            found
                .iter_mut()
                .zip(rows.data().chunks(width))
                .for_each(|(found, rows)| found.extend_from_slice(rows));
        }
        for ((text, mix), found) in texts.iter().zip(&mixes).zip(&found) {
            assert_eq!(found, &logits(&model, &text[..12], 12, mix), "{mix:?}");
        }
        assert_ne!(found[1], logits(&model, &texts[1][..12], 12, &AdapterMix::default()));
    }
}

fn write_gguf(path: &Path, change: impl FnOnce(&mut Writer), tensors: Vec<(Tensor, Tensor)>) {
    let mut writer = Writer::new("handmade");
    writer.set("general.type", WriterValue::String("adapter".into()));
    writer.set("adapter.type", WriterValue::String("lora".into()));
    writer.set("adapter.lora.alpha", WriterValue::F32(ALPHA as f32));
    for (a, b) in tensors {
        writer.tensor(a).tensor(b);
    }
    change(&mut writer);
    std::fs::write(path, writer.to_bytes().unwrap()).unwrap();
}

/// A handmade model of one layer, and the weights of it that can be adapted.
fn handmade() -> (Made, Vec<Target>) {
    let mut maker = Maker::new(5);
    let (attention, mlp) = (maker.attention(0), maker.mlp(16));
    let layer = [Mixer::Attention(Box::new(attention)), Mixer::Ffn(Ffn::Dense(mlp))]
        .map(|mixer| pre_norm(&mut maker, mixer));
    let made = maker.model(vec![layer.into()]);
    // All matrices but the embedding's and the head's.
    let rest =
        made.description.tensors().into_iter().filter(|of| of.shape.len() == 2 && !of.shape.contains(&40));
    let targets = rest.map(|of| (of.name.clone(), of.shape[0], of.shape[1])).collect();
    (made, targets)
}

#[test]
fn gguf_adapters_agree_with_the_oracle() {
    let (Made { description, checkpoint }, targets) = handmade();
    assert_eq!(targets.len(), 7);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("style.gguf");
    let tokens: Vec<u32> = (0..20).map(|i| i * 7 % 40).collect();
    let network =
        kvant_cpu::Cpu::new(LoadOptions::AS_STORED).unwrap().compile(&description, &checkpoint).unwrap();
    let run = |network: &dyn Network, adapters: &AdapterMix| {
        let mut cache = KvCache::reference(&description.slots, CAPACITY).unwrap();
        let chunk = [Chunk::new(&tokens, 0..tokens.len()).with(adapters)];
        let sequences = &mut [cache.sequence_mut()];
        kvant_cache::pass::begin(sequences, &[tokens.len()]).unwrap();
        network.forward(Pass::new(&chunk), sequences).unwrap().into_logits().into_vec()
    };
    // An alpha of 0 adds what is stored as it is.
    for (alpha, scale) in [(ALPHA as f32, ALPHA as f32 / RANK as f32), (0.0, 1.0)] {
        let set = |writer: &mut Writer| {
            writer.set("adapter.lora.alpha", WriterValue::F32(alpha));
        };
        write_gguf(&file, set, matrices(&targets, 8));
        let adapter = Adapter::open(&file, &checkpoint, &description).unwrap();
        assert_eq!((adapter.name(), adapter.updates().count()), ("style", 7));
        assert!(adapter.updates().all(|(_, update)| (update.rank(), update.scale()) == (RANK, scale)));
        let adapters = mix([(Arc::new(adapter), 2.0)]);
        let oracle = Oracle::new(&description, &checkpoint).unwrap();
        let plain = oracle.run(&tokens, CAPACITY).logits.concat();
        let truth = oracle.with_adapters(adapters.clone()).run(&tokens, CAPACITY).logits.concat();
        let found = run(&*network, &adapters);
        let far = largest_difference(truth, &found);
        assert!(far < 2e-5, "{far:.1e} from the oracle");
        assert!(largest_difference(plain, &found) > 1e-2);
    }
}

#[test]
fn gguf_files_that_are_no_adapter_of_the_model_are_refused_by_name() {
    let (Made { description, checkpoint }, targets) = handmade();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("style.gguf");
    let refusal = |change: &dyn Fn(&mut Writer), tensors: Vec<(Tensor, Tensor)>| {
        write_gguf(&file, |writer| change(writer), tensors);
        let found = Adapter::open(&file, &checkpoint, &description).unwrap_err().to_string();
        assert!(found.contains("style.gguf"), "{found}");
        found
    };
    let text = |key: &'static str, value: &'static str| {
        move |writer: &mut Writer| {
            writer.set(key, WriterValue::String(value.into()));
        }
    };
    let all = || matrices(&targets, 8);
    let tensor = |name: &str, shape: [usize; 2]| {
        Tensor::from_f32(name, shape.to_vec(), &vec![0.5; shape[0] * shape[1]]).unwrap()
    };
    let (name, outputs, inputs) = targets[0].clone();
    let pair = |a: [usize; 2], b: [usize; 2]| {
        vec![(tensor(&format!("{name}.lora_a"), a), tensor(&format!("{name}.lora_b"), b))]
    };
    let nothing = |_: &mut Writer| {};
    let embedding = &description.embedding.table.name;
    let of_embedding = vec![(
        tensor(&format!("{embedding}.lora_a"), [2, 24]),
        tensor(&format!("{embedding}.lora_b"), [40, 2]),
    )];
    let stray = |writer: &mut Writer| {
        writer.tensor(tensor("t1.lora_c", [2, 2]));
    };
    let lone = |writer: &mut Writer| {
        writer.tensor(tensor("t99.lora_a", [2, 2]));
    };
    let tokens = |writer: &mut Writer| {
        writer.set("adapter.alora.invocation_tokens", WriterValue::i32s([1, 2]));
    };
    let mut nan = pair([2, inputs], [outputs, 2]);
    let mut numbers = vec![0.5; outputs * 2];
    numbers[7] = f32::NAN;
    nan[0].1 = Tensor::from_f32(format!("{name}.lora_b"), vec![outputs, 2], &numbers).unwrap();
    for (found, words) in [
        (refusal(&text("general.type", "model"), all()), "is not a LoRA adapter"),
        (refusal(&text("adapter.type", "control_vector"), all()), "\"control_vector\""),
        (
            refusal(&text("general.architecture", "qwen2"), all()),
            "architecture \"qwen2\", and this one is \"handmade\"",
        ),
        (refusal(&tokens, all()), "aLoRA"),
        (refusal(&nothing, Vec::new()), "updates no tensor"),
        (refusal(&nothing, pair([2, inputs + 1], [outputs, 2])), "was made for another model"),
        (refusal(&nothing, pair([2, inputs], [outputs, 3])), "lora_b\" has shape"),
        (refusal(&nothing, nan), "lora_b\" holds NaN in row 3"),
        (refusal(&nothing, of_embedding), "kvant does not adapt"),
        (refusal(&stray, all()), "\"t1.lora_c\" is neither"),
        (refusal(&lone, all()), "\"t99.lora_a\" has no counterpart"),
    ] {
        assert!(found.contains(words), "{found}");
    }
    // A file that is cut off anywhere is an error, and one whose numbers lie takes no memory.
    write_gguf(&file, nothing, all());
    let bytes = std::fs::read(&file).unwrap();
    for length in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        std::fs::write(&file, &bytes[..length]).unwrap();
        assert!(
            Adapter::open(&file, &checkpoint, &description).is_err(),
            "{length} of {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn peft_folders_that_are_no_adapter_of_the_model_are_refused_by_name() {
    let (_, checkpoint, description) = fixture("llama");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let all = peft_tensors(&targets(&description), 1);
    let refusal = |config: &Value, tensors: &[(String, Tensor)]| {
        write_peft(path, config, tensors);
        Adapter::open(path, &checkpoint, &description).unwrap_err().to_string()
    };
    let with = |key: &str, value: Value| {
        let mut config = peft_config();
        config[key] = value;
        config
    };
    for (key, value, words) in [
        ("peft_type", json!("LOHA"), "\"LOHA\""),
        ("use_dora", json!(true), "DoRA"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save"),
        ("alpha_pattern", json!({"q_proj": 4}), "alpha_pattern"),
        ("bias", json!("all"), "bias is \"all\""),
        ("init_lora_weights", json!("pissa_niter_4"), "pissa_niter_4"),
        ("r", json!(0), "r is not a whole number above 0"),
        ("r", json!(u64::MAX), "says r is 18446744073709551615"),
        ("r", json!(4), "says r is 4"),
        ("lora_alpha", json!("much"), "lora_alpha is not a number"),
        ("lora_alpha", json!(1e300), "not a finite number"),
        ("target_modules", json!(["q_proj"]), "target_modules does not name"),
    ] {
        let found = refusal(&with(key, value), &all);
        assert!(found.contains(words), "{found}");
    }
    let renamed = |from: &str, to: &str| {
        all.iter().map(|(name, tensor)| (name.replace(from, to), tensor.clone())).collect::<Vec<_>>()
    };
    let open = with("target_modules", json!("all-linear"));
    for (from, to, words) in [
        ("layers.2.", "layers.3.", "\"model.layers.3.mlp.down_proj.weight\", which the model does not have"),
        ("lora_A", "lora_embedding_A", "neither the lora_A nor the lora_B"),
        ("layers.0.self_attn.q_proj.lora_B", "layers.7.q_proj.lora_B", "no counterpart"),
    ] {
        let found = refusal(&open, &renamed(from, to));
        assert!(found.contains(words), "{found}");
    }
    let head: Vec<Target> = vec![("lm_head.weight".into(), 256, 64)];
    let found = refusal(&open, &peft_tensors(&head, 1));
    assert!(found.contains("\"lm_head.weight\", which kvant does not adapt"), "{found}");

    write_peft(path, &peft_config(), &all);
    let file = path.join("adapter_model.safetensors");
    let adapter = Adapter::open(&file, &checkpoint, &description).unwrap();
    assert_eq!(adapter.name(), path.file_name().unwrap().to_string_lossy());
    let bytes = std::fs::read(&file).unwrap();
    for length in (0..bytes.len()).step_by(997).chain([bytes.len() - 1]) {
        std::fs::write(&file, &bytes[..length]).unwrap();
        assert!(Adapter::open(path, &checkpoint, &description).is_err(), "{length} of {} bytes", bytes.len());
    }
    std::fs::rename(&file, path.join("adapter_model.bin")).unwrap();
    let found = Adapter::open(path, &checkpoint, &description).unwrap_err().to_string();
    assert!(found.contains("Python pickle"), "{found}");

    // Formats do not mix, and an adapter of one model is refused by another.
    let (made, targets) = handmade();
    let gguf = path.join("style.gguf");
    write_gguf(&gguf, |_| {}, matrices(&targets, 8));
    let found = Adapter::open(&gguf, &checkpoint, &description).unwrap_err().to_string();
    assert!(found.contains("give the PEFT folder"), "{found}");
    let found = Adapter::open(path, &made.checkpoint, &made.description).unwrap_err().to_string();
    assert!(found.contains("Python pickle"), "{found}");
    write_peft(path, &peft_config(), &all);
    std::fs::remove_file(path.join("adapter_model.bin")).unwrap();
    let found = Adapter::open(path, &made.checkpoint, &made.description).unwrap_err().to_string();
    assert!(found.contains("convert_lora_to_gguf.py"), "{found}");
    let (_, other, _) = fixture("qwen3");
    let other = kvant_cpu::load(&other, LoadOptions::AS_STORED).unwrap();
    let adapters = mix([(Arc::new(adapter), 1.0)]);
    let mut cache = KvCache::reference(other.slots(), CAPACITY).unwrap();
    let chunk = [Chunk::new(&[1], 0..1).with(&adapters)];
    let refused = other.forward(Pass::new(&chunk), &mut [cache.sequence_mut()]).unwrap_err();
    assert!(matches!(refused, ForwardError::OtherBase { .. }), "{refused}");
}

/// A backend without adapters.
struct Plain;

struct PlainNetwork(Box<dyn Network>);

impl Backend for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn compile(
        &self,
        description: &Description,
        checkpoint: &Checkpoint,
    ) -> Result<Box<dyn Network>, LoadError> {
        let cpu = kvant_cpu::Cpu::new(LoadOptions::AS_STORED)?;
        Ok(Box::new(PlainNetwork(cpu.compile(description, checkpoint)?)))
    }
}

impl Network for PlainNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        self.0.forward(pass, sequences)
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        self.0.output_weights(slot)
    }
}

#[test]
fn a_backend_without_adapters_refuses_them_by_name() {
    let (_, checkpoint, description) = fixture("llama");
    let adapters = mix([(Arc::new(peft(&checkpoint, &description, &peft_config(), 40)), 1.0)]);
    let model = Model::load(&Plain, &checkpoint).unwrap();
    let mut cache = KvCache::reference(model.slots(), CAPACITY).unwrap();
    let chunk = [Chunk::new(&[1], 0..1).with(&adapters)];
    let refused = model.forward(Pass::new(&chunk), &mut [cache.sequence_mut()]).unwrap_err();
    assert_eq!(refused.to_string(), "plain cannot run this model with LoRA adapters");
    assert_eq!(model.check_adapters(&adapters), Err(refused));
}
