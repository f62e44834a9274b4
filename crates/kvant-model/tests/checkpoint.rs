//! One way to open every kind of model on disk.

use kvant_model::checkpoint::ConfigSource;
use kvant_model::gguf::{Writer, WriterValue};
use kvant_model::{Checkpoint, LoadErrorKind, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

fn write_gguf(path: &Path, values: &[f32]) {
    let mut writer = Writer::new("llama");
    writer
        .set("llama.block_count", WriterValue::U32(1))
        .tensor(Tensor::from_f32("token_embd.weight", vec![1, values.len()], values).unwrap());
    fs::write(path, writer.to_bytes().unwrap()).unwrap();
}

fn write_safetensors(path: &Path, tensors: &[(&str, f32)]) {
    let bytes: Vec<(&str, [u8; 4])> =
        tensors.iter().map(|(name, value)| (*name, value.to_le_bytes())).collect();
    let views = bytes.iter().map(|(name, b)| (*name, TensorView::new(Dtype::F32, vec![1], b).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn value(checkpoint: &Checkpoint, name: &str) -> f32 {
    checkpoint.tensor(name).unwrap().to_f32().unwrap()[0]
}

#[test]
fn gguf_by_file_and_by_folder() {
    let folder = tempfile::tempdir().unwrap();
    // The magic decides, not the extension.
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[4.0, 5.0]);
    for place in [path.as_path(), folder.path()] {
        let checkpoint = Checkpoint::open(place).unwrap();
        assert_eq!(value(&checkpoint, "token_embd.weight"), 4.0);
        assert_eq!(checkpoint.path(), path);
        let ConfigSource::Gguf(metadata) = checkpoint.config() else { panic!() };
        assert_eq!(metadata.need::<u32>("llama.block_count").unwrap(), 1);
    }
    write_gguf(&folder.path().join("other.gguf"), &[1.0]);
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), LoadErrorKind::Mismatch);
    assert!(error.to_string().contains("model.gguf"), "{error}");
}

#[test]
fn a_folder_with_one_split_model_opens_at_its_first_part() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2u16 {
        let mut writer = Writer::new("llama");
        writer
            .set("split.no", WriterValue::U16(number))
            .set("split.count", WriterValue::U16(2))
            .tensor(Tensor::from_f32(format!("t{number}"), vec![1], &[number.into()]).unwrap());
        let name = format!("m-{:05}-of-00002.gguf", number + 1);
        fs::write(folder.path().join(name), writer.to_bytes().unwrap()).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["t0", "t1"]);
    assert_eq!(value(&checkpoint, "t1"), 1.0);
}

#[test]
fn single_safetensors_with_config() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    write_safetensors(&file, &[("a", 1.0), ("b", 2.0)]);
    assert_eq!(Checkpoint::open(&file).unwrap_err().kind(), LoadErrorKind::Missing);
    fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    for place in [file.as_path(), folder.path()] {
        let checkpoint = Checkpoint::open(place).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(value(&checkpoint, "b"), 2.0);
        let ConfigSource::Config(config) = checkpoint.config() else { panic!() };
        assert_eq!(config["model_type"], "llama");
        assert!(checkpoint.companion("tokenizer.json").is_some());
        assert!(checkpoint.companion("absent.json").is_none());
        let error = checkpoint.tensor("absent").unwrap_err();
        assert_eq!(error.kind(), LoadErrorKind::Missing);
        assert!(error.to_string().contains("\"absent\""));
        assert!(checkpoint.get("absent").unwrap().is_none());
    }
}

#[test]
fn sharded_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    write_safetensors(&folder.path().join("model-1.safetensors"), &[("a", 1.0), ("unlisted", 9.0)]);
    write_safetensors(&folder.path().join("model-2.safetensors"), &[("b", 2.0)]);
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let write_index =
        |map: &str| fs::write(&index, format!(r#"{{"metadata":{{}},"weight_map":{map}}}"#)).unwrap();
    write_index(r#"{"a":"model-1.safetensors","b":"model-2.safetensors"}"#);
    for place in [index.as_path(), folder.path()] {
        let checkpoint = Checkpoint::open(place).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((value(&checkpoint, "a"), value(&checkpoint, "b")), (1.0, 2.0));
    }
    for (map, what) in [
        (r#"{"a":"model-2.safetensors"}"#, "does not have it"),
        (r#"{"a":"model-3.safetensors"}"#, "model-3"),
        (r#"{"a":"../model-1.safetensors"}"#, "plain file name"),
        (r#"{"a":"/etc/passwd"}"#, "plain file name"),
        (r#"{"a":".."}"#, "plain file name"),
        (r#"{"a":""}"#, "plain file name"),
        (r#"{"a":7}"#, "JSON"),
    ] {
        write_index(map);
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn what_is_not_a_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap_err().kind(), LoadErrorKind::Missing);
    assert_eq!(Checkpoint::open(folder.path().join("no.gguf")).unwrap_err().kind(), LoadErrorKind::Missing);
    let text = folder.path().join("notes.txt");
    fs::write(&text, "hello").unwrap();
    assert_eq!(Checkpoint::open(&text).unwrap_err().kind(), LoadErrorKind::Unsupported);
    let empty = folder.path().join("empty.gguf");
    fs::write(&empty, "").unwrap();
    assert!(Checkpoint::open(&empty).is_err());
}

#[test]
fn signatures_tell_models_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let signature = |values: &[f32]| {
        write_gguf(&path, values);
        Checkpoint::open(&path).unwrap().signature()
    };
    let mut values = vec![0.5; 1 << 16];
    let first = signature(&values);
    assert_eq!(signature(&values), first);
    *values.last_mut().unwrap() = 1.0;
    assert_ne!(signature(&values), first);
    values.pop();
    assert_ne!(signature(&values), first);
    assert_eq!(first.to_string().len(), 64);
}

#[test]
fn the_signature_ignores_spacing_and_order_of_the_config() {
    let folder = tempfile::tempdir().unwrap();
    write_safetensors(&folder.path().join("model.safetensors"), &[("a", 1.0)]);
    let signature = |config: &str| {
        fs::write(folder.path().join("config.json"), config).unwrap();
        Checkpoint::open(folder.path()).unwrap().signature()
    };
    let first = signature(r#"{"a": {"x": 1, "y": [1, 2]}, "b": "t"}"#);
    assert_eq!(signature(r#"{"b":"t","a":{"y":[1,2],"x":1}}"#), first);
    assert_ne!(signature(r#"{"b":"t","a":{"y":[2,1],"x":1}}"#), first);
}
