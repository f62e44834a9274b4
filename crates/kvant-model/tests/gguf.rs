//! GGUF: what the writer writes the reader reads, typed getters, split models.

use kvant_model::gguf::{Gguf, Value, ValueType, Writer, WriterValue};
use kvant_model::{DType, LoadErrorKind, Tensor};
use std::path::Path;

fn small() -> Writer {
    let mut writer = Writer::new("llama");
    writer
        .set("u8", WriterValue::U8(200))
        .set("i8", WriterValue::I8(-3))
        .set("u16", WriterValue::U16(60000))
        .set("i16", WriterValue::I16(-300))
        .set("u32", WriterValue::U32(7))
        .set("i32", WriterValue::I32(-7))
        .set("u64", WriterValue::U64(1 << 40))
        .set("i64", WriterValue::I64(-1 << 40))
        .set("f32", WriterValue::F32(0.5))
        .set("f64", WriterValue::F64(0.25))
        .set("yes", WriterValue::Bool(true))
        .set("nan", WriterValue::F32(f32::NAN))
        .set("text", WriterValue::String("grüß 🦀".to_owned()))
        .set("tokens", WriterValue::strings(["a", "", "ccc"]))
        .set("scores", WriterValue::f32s([0.0, f32::NEG_INFINITY]))
        .set("bad scores", WriterValue::f32s([0.0, f32::NAN]))
        .set("heads", WriterValue::i32s([8, 8, 4]))
        .set(
            "flags",
            WriterValue::Array(ValueType::Bool, vec![WriterValue::Bool(true), WriterValue::Bool(false)]),
        )
        .set(
            "nested",
            WriterValue::Array(
                ValueType::Array,
                vec![WriterValue::strings(["x"]), WriterValue::i32s([1, 2])],
            ),
        );
    writer
        .tensor(Tensor::from_f32("matrix", vec![2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap())
        .tensor(Tensor::new("packed", DType::Q8_0, vec![1, 2, 32], vec![1; 68].into()).unwrap())
        .tensor(Tensor::from_f32("vector", vec![5], &[9.0; 5]).unwrap());
    writer
}

#[test]
fn what_is_written_is_read_back() {
    for alignment in [None, Some(1), Some(8), Some(4096)] {
        let mut writer = small();
        if let Some(alignment) = alignment {
            writer.alignment(alignment);
        }
        let gguf = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
        assert_eq!(gguf.metadata().architecture().unwrap(), "llama");
        let names: Vec<&str> = gguf.tensors().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["matrix", "packed", "vector"]);
        let matrix = gguf.tensor("matrix").unwrap();
        assert_eq!((matrix.shape(), matrix.dtype()), (&[2, 3][..], DType::F32));
        assert_eq!(matrix.to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(gguf.tensor("packed").unwrap().shape(), [1, 2, 32]);
        assert_eq!(gguf.tensor("vector").unwrap().to_f32().unwrap(), [9.0; 5]);
        assert!(gguf.tensor("absent").is_none());
    }
}

#[test]
fn getters_convert_what_fits() {
    let gguf = Gguf::from_bytes(small().to_bytes().unwrap()).unwrap();
    let metadata = gguf.metadata();
    for (key, value) in [("u8", 200), ("i8", -3), ("u16", 60000), ("i16", -300), ("u32", 7), ("i32", -7)] {
        assert_eq!(metadata.need::<i64>(key).unwrap(), value);
    }
    assert_eq!(metadata.need::<usize>("u64").unwrap(), 1 << 40);
    assert_eq!(metadata.need::<f32>("f64").unwrap(), 0.25);
    assert_eq!(metadata.need::<f64>("f32").unwrap(), 0.5);
    assert_eq!(metadata.need::<f32>("u32").unwrap(), 7.0);
    assert!(metadata.need::<bool>("yes").unwrap());
    assert_eq!(metadata.need::<&str>("text").unwrap(), "grüß 🦀");
    assert_eq!(metadata.need::<Vec<&str>>("tokens").unwrap(), ["a", "", "ccc"]);
    assert_eq!(metadata.need::<Vec<f32>>("scores").unwrap(), [0.0, f32::NEG_INFINITY]);
    assert_eq!(metadata.need::<Vec<bool>>("flags").unwrap(), [true, false]);
    assert_eq!(metadata.per_layer::<usize>("heads", 3).unwrap().unwrap(), [8, 8, 4]);
    assert_eq!(metadata.per_layer::<usize>("u32", 2).unwrap().unwrap(), [7, 7]);
    assert_eq!(metadata.per_layer::<usize>("absent", 2).unwrap(), None);
    assert_eq!(metadata.get_or("absent", 3u32).unwrap(), 3);
    let Some(Value::Array(nested)) = metadata.value("nested") else { panic!() };
    let inner: Vec<usize> = nested
        .iter()
        .map(|v| match v {
            Value::Array(inner) => inner.iter().count(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inner, [1, 2]);
    assert_eq!(metadata.iter().count(), metadata.len());
}

#[test]
fn getters_refuse_by_key() {
    let gguf = Gguf::from_bytes(small().to_bytes().unwrap()).unwrap();
    let metadata = gguf.metadata();
    let refusals = [
        ("u64", metadata.get::<u32>("u64").unwrap_err()),
        ("i8", metadata.get::<usize>("i8").unwrap_err()),
        ("nan", metadata.get::<f32>("nan").unwrap_err()),
        ("bad scores", metadata.get::<Vec<f32>>("bad scores").unwrap_err()),
        ("text", metadata.get::<u32>("text").unwrap_err()),
        ("u32", metadata.get::<&str>("u32").unwrap_err()),
        ("u32", metadata.get::<bool>("u32").unwrap_err()),
        ("tokens", metadata.get::<Vec<i32>>("tokens").unwrap_err()),
        ("heads", metadata.per_layer::<usize>("heads", 4).unwrap_err()),
    ];
    for (key, error) in refusals {
        assert_eq!(error.kind(), LoadErrorKind::Mismatch);
        assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    assert_eq!(metadata.need::<u32>("absent").unwrap_err().kind(), LoadErrorKind::Missing);
}

#[test]
fn version_2_reads_as_version_3() {
    let mut bytes = small().to_bytes().unwrap();
    bytes[4] = 2;
    assert_eq!(Gguf::from_bytes(bytes).unwrap().tensors().count(), 3);
}

#[test]
fn other_versions_and_types_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = small().to_bytes().unwrap();
        change(&mut bytes);
        Gguf::from_bytes(bytes).unwrap_err().to_string()
    };
    assert!(with(&|b| b[4] = 1).contains("version 1"));
    assert!(with(&|b| b[4] = 9).contains("version 9"));
    assert!(with(&|b| b[4..8].reverse()).contains("big-endian"));
    assert!(with(&|b| b[0] = b'X').contains("XGUF"));
    let unread = with(&|b| {
        // The type number follows name, dimension count and two extents of the first tensor.
        let at = b.windows(6).position(|w| w == b"matrix").unwrap() + 6 + 4 + 16;
        b[at] = 19;
    });
    assert!(unread.contains("\"matrix\"") && unread.contains("IQ1_S"), "{unread}");
}

#[test]
fn the_writer_refuses_what_no_reader_could_take() {
    let mut mixed = Writer::new("llama");
    mixed.set("mixed", WriterValue::Array(ValueType::U8, vec![WriterValue::Bool(true)]));
    assert!(mixed.to_bytes().unwrap_err().to_string().contains("mixed"));
    let mut own = Writer::new("llama");
    own.tensor(Tensor::new("own", DType::Int8G32, vec![32], vec![0; 34].into()).unwrap());
    assert!(own.to_bytes().unwrap_err().to_string().contains("own"));
}

/// Writes part `number` (from 0) of `count` with one tensor.
fn write_part(folder: &Path, number: u16, count: u16, promised: i32) {
    let mut writer = Writer::new("llama");
    writer
        .set("split.no", WriterValue::U16(number))
        .set("split.count", WriterValue::U16(count))
        .set("split.tensors.count", WriterValue::I32(promised))
        .tensor(Tensor::from_f32(format!("t{number}"), vec![2], &[number.into(), 1.0]).unwrap());
    let name = format!("model-{:05}-of-{count:05}.gguf", number + 1);
    std::fs::write(folder.join(name), writer.to_bytes().unwrap()).unwrap();
}

#[test]
fn any_part_opens_a_split_model() {
    let folder = tempfile::tempdir().unwrap();
    (0..3).for_each(|n| write_part(folder.path(), n, 3, 3));
    for part in ["model-00001-of-00003.gguf", "model-00003-of-00003.gguf"] {
        let gguf = Gguf::open(&folder.path().join(part)).unwrap();
        let names: Vec<&str> = gguf.tensors().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
        assert_eq!(gguf.tensor("t2").unwrap().to_f32().unwrap(), [2.0, 1.0]);
        assert!(gguf.tensor("t2").unwrap().bytes().is_mapped());
    }
}

#[test]
fn broken_splits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("model-00001-of-00003.gguf");
    let fails = || Gguf::open(&first).unwrap_err();
    write_part(folder.path(), 0, 3, 3);
    write_part(folder.path(), 1, 3, 3);
    assert_eq!(fails().kind(), LoadErrorKind::Missing);
    assert!(fails().to_string().contains("00003-of-00003"));
    // A foreign part in the place of the third.
    std::fs::copy(
        folder.path().join("model-00002-of-00003.gguf"),
        folder.path().join("model-00003-of-00003.gguf"),
    )
    .unwrap();
    assert!(fails().to_string().contains("part 3 of 3"));
    write_part(folder.path(), 2, 3, 3);
    write_part(folder.path(), 0, 3, 17);
    assert!(fails().to_string().contains("17"));
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    assert!(Gguf::open(&renamed).unwrap_err().to_string().contains("-00001-of-00003.gguf"));
    assert!(Gguf::from_bytes(std::fs::read(&first).unwrap()).is_err());
}

#[test]
fn releasing_mapped_pages_keeps_the_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let values: Vec<f32> = (0..1 << 16).map(|i| i as f32).collect();
    let mut writer = Writer::new("llama");
    writer.tensor(Tensor::from_f32("w", vec![256, 256], &values).unwrap());
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let tensor = Gguf::open(&path).unwrap().tensor("w").unwrap();
    assert_eq!(tensor.to_f32().unwrap(), values);
    tensor.bytes().release();
    assert_eq!(tensor.to_f32().unwrap(), values);
}
