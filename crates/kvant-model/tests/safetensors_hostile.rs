//! safetensors: what the reference crate writes we read; broken files give an error, never a panic or a giant
//! allocation.

mod support;

use kvant_model::LoadErrorKind;
use kvant_model::safetensors::Safetensors;
use safetensors::tensor::{Dtype, TensorView};

#[global_allocator]
static ALLOCATOR: support::Capped = support::Capped;

fn valid() -> Vec<u8> {
    let values: Vec<u8> = [1.0f32, -2.0, 3.5, 0.0, 1e-3, 7.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let halves: Vec<u8> = [0x3c00u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors = [
        ("weight", TensorView::new(Dtype::F32, vec![2, 3], &values).unwrap()),
        ("half", TensorView::new(Dtype::F16, vec![2], &halves).unwrap()),
        ("brain", TensorView::new(Dtype::BF16, vec![1, 2], &halves).unwrap()),
        ("mask", TensorView::new(Dtype::BOOL, vec![3], &[0, 1, 1]).unwrap()),
        ("none", TensorView::new(Dtype::F32, vec![0, 4], &[]).unwrap()),
    ];
    let note = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(tensors, Some(note)).unwrap()
}

#[test]
fn what_the_reference_crate_writes_is_read() {
    let file = Safetensors::from_bytes(valid()).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["brain", "half", "mask", "none", "weight"]);
    let weight = file.tensor("weight").unwrap().unwrap();
    assert_eq!(weight.shape(), [2, 3]);
    assert_eq!(weight.to_f32().unwrap(), [1.0, -2.0, 3.5, 0.0, 1e-3, 7.0]);
    assert_eq!(file.tensor("half").unwrap().unwrap().to_f32().unwrap(), [1.0, -2.0]);
    assert_eq!(file.tensor("brain").unwrap().unwrap().to_f32().unwrap(), [0.0078125, -2.0]);
    assert!(file.tensor("none").unwrap().unwrap().is_empty());
    assert!(file.tensor("absent").unwrap().is_none());
    let error = file.tensor("mask").unwrap_err();
    assert_eq!(error.kind(), LoadErrorKind::Unsupported);
    assert!(error.to_string().contains("\"mask\"") && error.to_string().contains("BOOL"), "{error}");
}

fn exercise(bytes: &[u8]) -> bool {
    let Ok(file) = Safetensors::from_bytes(bytes.to_vec()) else { return false };
    for name in file.names() {
        if let Ok(Some(tensor)) = file.tensor(name) {
            let _ = (tensor.to_f32(), tensor.to_i64());
        }
    }
    true
}

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    assert!(exercise(&bytes));
    for length in 0..bytes.len() {
        assert!(!exercise(&bytes[..length]), "cut to {length}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(!exercise(&longer));
}

#[test]
fn every_changed_byte_is_survived() {
    let bytes = valid();
    for at in 0..bytes.len() {
        for replacement in [0x00, 0x01, 0x7f, 0x80, 0xff, b'"', b'{', b'[', b'9', b'-', bytes[at] ^ 1] {
            let mut damaged = bytes.clone();
            damaged[at] = replacement;
            exercise(&damaged);
        }
    }
}

/// A file with this header and `data` zero bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn false_headers_are_refused() {
    let two_61 = 1u64 << 61;
    let pile: Vec<String> = (0..8)
        .map(|i| {
            let (start, end) = (i * (two_61 - 1), (i + 1) * (two_61 - 1));
            format!(r#""t{i}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, two_61 - 1)
        })
        .collect();
    let cases: [(String, usize, &str); 14] = [
        (r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), 7, "not in the file"),
        (r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#.into(), 8, "not in the file"),
        (r#"{"t":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#.into(), 8, "does not take 8"),
        (r#"{"t":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}"#.into(), 16, "\"t\""),
        (r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#.into(), 8, "header"),
        (r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#.into(), 12, "gap"),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#
                .into(),
            12,
            "overlaps",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#
                .into(),
            4,
            "twice",
        ),
        (r#"{"t":{"dtype":"F32","shape":[2]}}"#.into(), 8, "data_offsets"),
        (r#"[]"#.into(), 0, "object"),
        (r#"{"__metadata__":{"a":1}}"#.into(), 0, "string"),
        (format!("{{{}}}", pile.join(",")), 16, "not in the file"),
        ("[".repeat(100_000), 0, "header"),
        (String::new(), 0, "header"),
    ];
    for (header, data, what) in cases {
        let error = Safetensors::from_bytes(file(&header, data)).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
    let mut giant = u64::MAX.to_le_bytes().to_vec();
    giant.extend(b"{}");
    assert!(Safetensors::from_bytes(giant).unwrap_err().to_string().contains("header"));
}
