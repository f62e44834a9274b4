//! Broken GGUF files: an error every time, never a panic, never an allocation by a number in the file.

mod support;

use kvant_model::gguf::{Gguf, Value, ValueType, Writer, WriterValue};
use kvant_model::{DType, Tensor};

#[global_allocator]
static ALLOCATOR: support::Capped = support::Capped;

fn valid() -> Vec<u8> {
    let mut writer = Writer::new("llama");
    writer
        .set("llama.block_count", WriterValue::U32(2))
        .set("llama.rope.freq_base", WriterValue::F32(1e4))
        .set("tokenizer.ggml.tokens", WriterValue::strings(["<s>", "a", "b"]))
        .set(
            "nested",
            WriterValue::Array(ValueType::Array, vec![WriterValue::i32s([1]), WriterValue::f32s([])]),
        )
        .set("flag", WriterValue::Bool(true))
        .tensor(Tensor::from_f32("one", vec![2, 4], &[1.0; 8]).unwrap())
        .tensor(Tensor::new("two", DType::Q4_0, vec![1, 32], vec![7; 18].into()).unwrap());
    writer.to_bytes().unwrap()
}

/// Opens and, when that works, reads everything there is.
fn exercise(bytes: &[u8]) -> bool {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return false };
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = (metadata.get::<u32>(key), metadata.get::<f32>(key), metadata.get::<&str>(key));
        let _ =
            (metadata.get::<Vec<&str>>(key), metadata.get::<Vec<f32>>(key), metadata.get::<Vec<u64>>(key));
    }
    for info in gguf.tensors() {
        let tensor = gguf.tensor(&info.name).expect("listed tensors can be read");
        assert_eq!(tensor.bytes().len(), info.dtype.tensor_bytes(&info.shape).unwrap());
        let _ = tensor.to_f32();
    }
    true
}

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    assert!(exercise(&bytes));
    // Padding after the last tensor may go; everything before it is needed.
    let needed = bytes.len().next_multiple_of(32) - 32 + 18;
    for length in 0..bytes.len() {
        assert_eq!(exercise(&bytes[..length]), length >= needed, "cut to {length} of {}", bytes.len());
    }
}

#[test]
fn every_flipped_byte_is_survived() {
    let bytes = valid();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff, 0x10] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            exercise(&damaged);
        }
    }
}

/// Every aligned and unaligned 8-byte window replaced by numbers that hurt.
#[test]
fn every_hostile_number_is_survived() {
    let bytes = valid();
    for at in 0..bytes.len() - 8 {
        for number in [u64::MAX, 1 << 63, 1 << 40, i64::MAX as u64, u64::from(u32::MAX)] {
            let mut damaged = bytes.clone();
            damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
            exercise(&damaged);
        }
    }
}

/// A header made by hand, to say what the writer would not.
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, pairs: u64) -> Self {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(pairs.to_le_bytes());
        Self(bytes)
    }

    fn string(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A directory entry.
    fn tensor(self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(extents.len() as u32);
        extents.iter().fold(raw, |raw, &e| raw.u64(e)).u32(kind).u64(offset)
    }

    /// Pads and adds `data` bytes, then expects a refusal that says `what`.
    fn refused(mut self, data: usize, what: &str) {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        let error = Gguf::from_bytes(self.0).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
}

const F32: u32 = 0;
const Q4_0: u32 = 2;

#[test]
fn counts_beyond_the_file_are_refused() {
    Raw::new(u64::MAX, 0).refused(0, "bytes");
    Raw::new(0, u64::MAX).refused(64, "key");
    Raw::new(0, 1).string("k").u32(8).u64(u64::MAX).refused(0, "\"k\"");
    Raw::new(0, 1).string("k").u32(9).u32(4).u64(u64::MAX / 2).refused(0, "\"k\"");
    Raw::new(0, 1).string("k").u32(9).u32(8).u64(1 << 50).refused(0, "\"k\"");
    Raw::new(0, 1).string("k").u32(9).u32(7).u64(1 << 50).refused(64, "\"k\"");
    Raw::new(0, 1).string("k").u32(13).refused(0, "value type 13");
}

#[test]
fn nesting_has_an_end() {
    let deep = (0..5000).fold(Raw::new(0, 1).string("deep").u32(9), |raw, _| raw.u32(9).u64(1));
    deep.refused(0, "nested");
}

#[test]
fn duplicates_are_refused() {
    let pair = |raw: Raw| raw.string("k").u32(0x0);
    let mut raw = pair(Raw::new(0, 2));
    raw.0.push(1);
    let mut raw = pair(raw);
    raw.0.push(1);
    raw.refused(0, "\"k\" is given twice");
    Raw::new(2, 0).tensor("t", &[8], F32, 0).tensor("t", &[8], F32, 32).refused(64, "\"t\" is listed twice");
}

#[test]
fn impossible_tensors_are_refused() {
    Raw::new(1, 0).tensor("t", &[1, 1, 1, 1, 1], F32, 0).refused(64, "5 dimensions");
    Raw::new(1, 0).tensor("t", &[0, 8], F32, 0).refused(64, "extent of 0");
    Raw::new(1, 0).tensor("t", &[u64::MAX, 2], F32, 0).refused(64, "impossible");
    Raw::new(1, 0).tensor("t", &[1 << 32, 1 << 32], F32, 0).refused(64, "impossible");
    Raw::new(1, 0).tensor("t", &[1 << 62], F32, 0).refused(64, "impossible");
    Raw::new(1, 0).tensor("t", &[48], Q4_0, 0).refused(64, "blocks of 32");
    Raw::new(1, 0).tensor("t", &[8], F32, 4).refused(64, "alignment");
    Raw::new(1, 0).tensor("t", &[8], F32, 64).refused(64, "beyond the end");
    Raw::new(1, 0).tensor("t", &[8], F32, u64::MAX - 31).refused(64, "beyond the end");
    Raw::new(1, 0).tensor("t", &[8], 19, 0).refused(64, "IQ1_S");
    let two = Raw::new(2, 0).tensor("a", &[16], F32, 0).tensor("b", &[8], F32, 32);
    two.refused(64, "overlap");
}

#[test]
fn bad_alignments_are_refused() {
    for alignment in [0, 3, 24, 1 << 17, u32::MAX] {
        let raw = Raw::new(1, 1).string("general.alignment").u32(4).u32(alignment);
        raw.tensor("t", &[8], F32, 0).refused(64, "general.alignment");
    }
    Raw::new(0, 1).string("general.alignment").u32(10).u64(32).refused(64, "general.alignment");
}

#[test]
fn text_must_be_utf8() {
    let mut raw = Raw::new(0, 1).string("k").u32(8).u64(2);
    raw.0.extend([0xff, 0xfe]);
    raw.refused(0, "not UTF-8");
}
