//! Every fixture as GGUF and as safetensors: what was converted computes what the folder computes.

use kvant_attention::KvCache;
use kvant_convert::{Conversion, ConvertError, Format, Importance, Weights};
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, DType, Description, Pass};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures")
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("model.safetensors").is_file())
        .collect();
    folders.sort();
    folders
}

/// Tokens that every fixture knows.
fn ids() -> Vec<u32> {
    (0..48).map(|i| i * 37 % 251).collect()
}

fn logits(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions::AS_STORED).unwrap();
    let mut cache = KvCache::reference(model.slots(), ids.len() + 16).unwrap();
    let chunk = Chunk::new(ids, 0..ids.len());
    model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data().to_vec()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn convert(
    checkpoint: &Checkpoint,
    weights: Weights,
    format: Format,
    importance: Option<&Importance>,
    to: &Path,
) -> Result<Checkpoint, ConvertError> {
    Conversion::new(checkpoint, weights, format, importance)?
        .write(to, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(Checkpoint::open(to)?)
}

/// Fixtures that GGUF files cannot say, with what the refusal names.
const REFUSED: [(&str, &str); 2] = [
    // Files do not have the bound, which is 7 in all released models and another one here.
    ("gpt_oss", "clamp"),
    // Files are for four AltUp inputs.
    ("gemma3n", "AltUp"),
];

#[test]
fn a_gguf_file_computes_what_its_folder_computes() {
    let place = tempfile::tempdir().unwrap();
    let (mut written, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        for config in ["config.json", "config_legacy.json"] {
            let source = place.path().join("source");
            fs::create_dir_all(&source).unwrap();
            fs::copy(folder.join("model.safetensors"), source.join("model.safetensors")).unwrap();
            let Ok(_) = fs::copy(folder.join(config), source.join("config.json")) else { continue };
            let checkpoint = Checkpoint::open(&source).unwrap();
            let wide = place.path().join("wide/model.safetensors");
            fs::create_dir_all(wide.parent().unwrap()).unwrap();
            let wide = convert(&checkpoint, Weights::F32, Format::Safetensors, None, &wide).unwrap();
            let ids = ids();
            let gguf = place.path().join("model.gguf");
            match convert(&checkpoint, Weights::F32, Format::Gguf, None, &gguf) {
                Ok(gguf) => {
                    let worst = difference(&logits(&wide, &ids), &logits(&gguf, &ids));
                    if worst > 2e-4 {
                        wrong.push(format!("{name} ({config}): off by {worst}"));
                    }
                    written += 1;
                }
                Err(ConvertError::Refused(why)) => refused.push((name.to_owned(), why)),
                Err(other) => wrong.push(format!("{name} ({config}): {other}")),
            }
            fs::remove_dir_all(place.path().join("wide")).unwrap();
        }
    }
    for (name, why) in &refused {
        let known = REFUSED.iter().any(|(own, word)| own == name && why.contains(word));
        if !known || !why.contains("--to safetensors") {
            wrong.push(format!("{name}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(written >= 100, "only {written} were written; refused: {refused:#?}");
}

#[test]
fn every_type_is_read_back_near_the_source() {
    let place = tempfile::tempdir().unwrap();
    let folder = fixtures().join("llama");
    let (checkpoint, ids) = (Checkpoint::open(&folder).unwrap(), ids());
    let source = logits(&checkpoint, &ids);
    let largest = source.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let share = |converted: &Checkpoint| difference(&source, &logits(converted, &ids)) / largest;
    let gguf = [("f16", 0.01), ("q8_0", 0.1), ("int8", 0.1), ("q6_k", 0.2), ("int4", 1.0), ("q4_0", 1.0)];
    let all = gguf.into_iter().chain([("q4_k", 1.0), ("mxfp4", 1.5)]);
    for (name, bound) in all {
        let path = place.path().join(format!("{name}.gguf"));
        let converted = convert(&checkpoint, name.parse().unwrap(), Format::Gguf, None, &path).unwrap();
        let found = share(&converted);
        assert!(found < bound, "{name}: {found}");
    }
    for (name, bound) in [("f16", 0.01), ("int8", 0.1), ("int4", 1.0)] {
        let path = place.path().join(name).join("model.safetensors");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let converted =
            convert(&checkpoint, name.parse().unwrap(), Format::Safetensors, None, &path).unwrap();
        let found = share(&converted);
        assert!(found < bound, "{name}: {found}");
    }
}

/// The two formats of int4 hold the same numbers, up to the order of rotated channels.
#[test]
fn int4_is_the_same_numbers_in_both_formats() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(fixtures().join("qwen2")).unwrap();
    let gguf = place.path().join("m.gguf");
    let gguf = convert(&checkpoint, Weights::Int4, Format::Gguf, None, &gguf).unwrap();
    let packed = place.path().join("m.safetensors");
    let packed = convert(&checkpoint, Weights::Int4, Format::Safetensors, None, &packed).unwrap();
    let of = |checkpoint: &Checkpoint, name: &str| checkpoint.tensor(name).unwrap();
    let (a, b) = (of(&gguf, "blk.1.ffn_up.weight"), of(&packed, "model.layers.1.mlp.up_proj.weight"));
    assert_eq!((a.dtype(), b.dtype()), (DType::Q4_0, DType::Int4G32));
    assert_eq!(**a.bytes(), **b.bytes());
    let description = Description::of(&packed).unwrap();
    assert!(description.tensors().iter().all(|tensor| packed.tensor(&tensor.name).is_ok()));
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path().join("config.json")).unwrap()).unwrap();
    let quantization = &config["quantization_config"];
    assert_eq!(quantization["format"], "pack-quantized");
    assert_eq!(quantization["config_groups"]["group_0"]["weights"]["num_bits"], 4);
}

#[test]
fn a_gguf_file_is_requantised_with_all_it_says() {
    let place = tempfile::tempdir().unwrap();
    let folder = fixtures().join("qwen3_moe");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let wide = place.path().join("wide.gguf");
    let wide = convert(&checkpoint, Weights::F16, Format::Gguf, None, &wide).unwrap();
    let direct = place.path().join("direct.gguf");
    let direct = convert(&checkpoint, Weights::Int8, Format::Gguf, None, &direct).unwrap();
    let again = place.path().join("again.gguf");
    let again = convert(&wide, Weights::Int8, Format::Gguf, None, &again).unwrap();
    assert_eq!(direct.names().collect::<Vec<_>>(), again.names().collect::<Vec<_>>());
    for name in again.names() {
        assert_eq!(direct.tensor(name).unwrap().dtype(), again.tensor(name).unwrap().dtype(), "{name}");
    }
    let ids = ids();
    let worst = difference(&logits(&direct, &ids), &logits(&again, &ids));
    assert!(worst < 0.5, "{worst}");
}

/// What goes from a folder to GGUF and back is the folder again.
#[test]
fn there_and_back_is_the_same_model() {
    let place = tempfile::tempdir().unwrap();
    let ids = ids();
    for name in ["qwen2", "llama", "gpt2", "deepseek_v3", "qwen3_5", "gpt_oss", "gemma4_e"] {
        let folder = fixtures().join(name);
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        if name == "gpt_oss" {
            config["swiglu_limit"] = 7.0.into();
        }
        let source = place.path().join(name).join("source");
        fs::create_dir_all(&source).unwrap();
        fs::copy(folder.join("model.safetensors"), source.join("model.safetensors")).unwrap();
        fs::write(source.join("config.json"), config.to_string()).unwrap();
        let source = Checkpoint::open(&source).unwrap();
        let gguf = place.path().join(name).join("there.gguf");
        let gguf = convert(&source, Weights::F32, Format::Gguf, None, &gguf).unwrap();
        let back = place.path().join(name).join("model.safetensors");
        let back = convert(&gguf, Weights::F32, Format::Safetensors, None, &back).unwrap();
        let (mut was, mut is): (Vec<&str>, Vec<&str>) = (source.names().collect(), back.names().collect());
        // What a tied output is stored as once more is not written.
        was.retain(|tensor| {
            Description::of(&source).unwrap().tensors().iter().any(|own| own.name == *tensor)
        });
        was.sort_unstable();
        is.sort_unstable();
        assert_eq!(was, is, "{name}");
        for tensor in is {
            let of = |checkpoint: &Checkpoint| checkpoint.tensor(tensor).unwrap().to_f32().unwrap();
            assert!(difference(&of(&source), &of(&back)) < 1e-6, "{name}: {tensor}");
        }
        assert!(difference(&logits(&source, &ids), &logits(&back, &ids)) < 1e-4, "{name}");
    }
}

/// Codes and scales of Q4_0 and Q8_0 are copied, not rounded once more.
#[test]
fn integers_keep_their_codes_on_the_way_to_a_folder() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(fixtures().join("llama")).unwrap();
    for (weights, gguf_type, folder_type) in
        [(Weights::Int4, DType::Q4_0, DType::Int4G32), (Weights::Int8, DType::Q8_0, DType::Int8G32)]
    {
        let gguf = place.path().join(format!("{weights}.gguf"));
        let gguf = convert(&checkpoint, weights, Format::Gguf, None, &gguf).unwrap();
        let folder = place.path().join(weights.to_string()).join("model.safetensors");
        fs::create_dir_all(folder.parent().unwrap()).unwrap();
        let folder = convert(&gguf, weights, Format::Safetensors, None, &folder).unwrap();
        let of = |checkpoint: &Checkpoint, name: &str| checkpoint.tensor(name).unwrap();
        let (a, b) = (of(&gguf, "blk.1.ffn_up.weight"), of(&folder, "model.layers.1.mlp.up_proj.weight"));
        assert_eq!((a.dtype(), b.dtype()), (gguf_type, folder_type));
        assert_eq!(**a.bytes(), **b.bytes());
        // Embeddings are narrower in the file than in the folder; all else is the same numbers.
        let ids = ids();
        let worst = difference(&logits(&gguf, &ids), &logits(&folder, &ids));
        assert!(worst < 5e-2, "{weights}: {worst}");
    }
}

/// Groups of 16 and 64 are read back as they were rounded; smaller groups compute more nearly what the source computes.
#[test]
fn groups_of_16_and_64_are_for_folders() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(fixtures().join("llama")).unwrap();
    let ids = ids();
    let name = "model.layers.1.mlp.up_proj.weight";
    let logits_of_source = logits(&checkpoint, &ids);
    let (mut errors, mut off) = (Vec::new(), Vec::new());
    for (weights, dtype) in [
        (Weights::Int4G64, DType::Int4G64),
        (Weights::Int4, DType::Int4G32),
        (Weights::Int4G16, DType::Int4G16),
        (Weights::Int8G64, DType::Int8G64),
        (Weights::Int8G16, DType::Int8G16),
    ] {
        let path = place.path().join(weights.to_string()).join("model.safetensors");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let folder = convert(&checkpoint, weights, Format::Safetensors, None, &path).unwrap();
        let (stored, source) = (folder.tensor(name).unwrap(), checkpoint.tensor(name).unwrap());
        assert_eq!(stored.dtype(), dtype);
        if weights != Weights::Int4 {
            let rounded = kvant_model::quant::quantize_tensor(&source, dtype).unwrap();
            assert_eq!(**stored.bytes(), **rounded.bytes(), "{weights}");
        }
        let config = fs::read_to_string(path.with_file_name("config.json")).unwrap();
        assert!(config.contains(&format!("\"group_size\": {}", dtype.own_group())), "{config}");
        let (exact, found) = (source.to_f32().unwrap(), stored.to_f32().unwrap());
        errors.push(exact.iter().zip(&found).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>());
        off.push(difference(&logits(&folder, &ids), &logits_of_source));
    }
    assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
    // Codes of 8 bits are seventeen times as fine.
    assert!(off[3..].iter().all(|eight| off[..3].iter().all(|four| 4.0 * eight < *four)), "{off:?}");
    for (weights, importance, said) in [
        (Weights::Int4G16, None, "safetensors"),
        (Weights::Int8G64, Some(Importance::default()), "safetensors"),
    ] {
        let refused = Conversion::new(&checkpoint, weights, Format::Gguf, importance.as_ref()).err().unwrap();
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let weighed = Importance::default();
    let refused =
        Conversion::new(&checkpoint, Weights::Int4G16, Format::Safetensors, Some(&weighed)).err().unwrap();
    assert!(refused.to_string().contains("rounded plainly"), "{refused}");
}

/// Rounding that is weighed by what layers see computes more nearly what the source computes.
#[test]
fn importance_lowers_the_error_of_the_model() {
    let place = tempfile::tempdir().unwrap();
    let folder = fixtures().join("llama");
    let (checkpoint, ids) = (Checkpoint::open(&folder).unwrap(), ids());
    let importance = Arc::new(Importance::default());
    let model = kvant_cpu::load_observed(&checkpoint, LoadOptions::AS_STORED, importance.clone()).unwrap();
    let mut cache = KvCache::reference(model.slots(), ids.len() + 16).unwrap();
    let chunk = Chunk::new(&ids, 0..ids.len());
    let observed = model
        .forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()])
        .unwrap()
        .into_logits()
        .data()
        .to_vec();
    assert_eq!(observed, logits(&checkpoint, &ids), "being observed changes nothing");
    assert_eq!(importance.layers(), 3 * 7 + 1);
    let error = |importance: Option<&Importance>, name: &str| {
        let path = place.path().join(name);
        let converted = convert(&checkpoint, Weights::Int4, Format::Gguf, importance, &path).unwrap();
        let found = logits(&converted, &ids);
        observed.iter().zip(&found).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    let (plain, weighed) = (error(None, "plain.gguf"), error(Some(&importance), "weighed.gguf"));
    assert!(weighed < plain, "{weighed} {plain}");
    let size = |name: &str| fs::metadata(place.path().join(name)).unwrap().len();
    assert_eq!(size("plain.gguf"), size("weighed.gguf"));
}

#[test]
fn nothing_is_left_behind_when_a_conversion_ends_early() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(fixtures().join("llama")).unwrap();
    for (format, name) in [(Format::Gguf, "m.gguf"), (Format::Safetensors, "m.safetensors")] {
        let conversion = Conversion::new(&checkpoint, Weights::Int4, format, None).unwrap();
        let mut told = 0;
        let ended = conversion.write(&place.path().join(name), &mut |done, total| {
            told += 1;
            assert!(done <= total);
            if told == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(ConvertError::Interrupted)), "{ended:?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_tensor_and_row() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let llama = fixtures().join("llama");
    fs::copy(llama.join("config.json"), source.join("config.json")).unwrap();
    let mut bytes = fs::read(llama.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let about: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let tensor = &about["model.layers.0.mlp.up_proj.weight"];
    assert_eq!(tensor["dtype"], "F32");
    let at = 8 + header + tensor["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(source.join("model.safetensors"), bytes).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    for (format, name) in [(Format::Gguf, "m.gguf"), (Format::Safetensors, "m.safetensors")] {
        let ended = convert(&checkpoint, Weights::Int4, format, None, &place.path().join(name));
        let why = ended.unwrap_err().to_string();
        assert!(why.contains("up") && why.contains("row 0") && why.contains("NaN"), "{why}");
        assert!(!place.path().join(name).exists());
        assert!(!place.path().join(format!("{name}.part")).exists());
    }
}

#[test]
fn types_of_gguf_are_refused_in_safetensors() {
    let checkpoint = Checkpoint::open(fixtures().join("llama")).unwrap();
    for weights in ["q4_0", "q4_k", "mxfp4"] {
        let refused = Conversion::new(&checkpoint, weights.parse().unwrap(), Format::Safetensors, None);
        assert!(refused.err().unwrap().to_string().contains(weights));
    }
}
