//! Faults that were published of other programs that read models, as files: each is refused with an error. Written from the
//! descriptions, not from the files of the reports.

use kvant_model::gguf::Gguf;
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Description};

/// A GGUF file made by hand, so that its numbers can be wrong.
#[derive(Default)]
struct File {
    tensors: u64,
    keys: u64,
    body: Vec<u8>,
    /// Bytes after the directory.
    data: usize,
}

impl File {
    fn text(mut self, text: &str) -> Self {
        self.body.extend((text.len() as u64).to_le_bytes());
        self.body.extend(text.as_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.body.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.body.extend(number.to_le_bytes());
        self
    }

    /// A key with a 32-bit number.
    fn key(mut self, name: &str, number: u32) -> Self {
        self.keys += 1;
        self.text(name).u32(4).u32(number)
    }

    /// A key with a text.
    fn key_text(mut self, name: &str, text: &str) -> Self {
        self.keys += 1;
        self.text(name).u32(8).text(text)
    }

    /// A key with an array of which only the type and length are there.
    fn key_array(mut self, name: &str, kind: u32, len: u64) -> Self {
        self.keys += 1;
        self.text(name).u32(9).u32(kind).u64(len)
    }

    fn tensor(mut self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors += 1;
        self = self.text(name).u32(extents.len() as u32);
        for extent in extents {
            self = self.u64(*extent);
        }
        self.u32(kind).u64(offset)
    }

    fn counts(mut self, tensors: u64, keys: u64) -> Self {
        (self.tensors, self.keys) = (tensors, keys);
        self
    }

    fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.keys.to_le_bytes());
        bytes.extend(self.body);
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }
}

fn file() -> File {
    File::default()
}

const F32: u32 = 0;
const Q4_K: u32 = 12;

#[track_caller]
fn refused(file: File) {
    match Gguf::from_bytes(file.bytes()) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(_) => panic!("the file was opened"),
    }
}

/// llama.cpp, CVE-2026-27940: sizes that overflow when they are multiplied or added, so that little is allocated and much is read.
#[test]
fn sizes_that_overflow_when_multiplied_are_refused() {
    for extents in [
        &[1 << 32, 1 << 32][..],
        &[1 << 62, 8],
        &[u64::MAX, 2],
        &[1 << 31, 1 << 31, 4],
        &[(1 << 62) + 1, 4],
        &[i64::MAX as u64, 1],
        &[0x4000_0000_0000_0001],
    ] {
        refused(file().tensor("t", extents, F32, 0).data(64));
        refused(file().tensor("t", extents, Q4_K, 0).data(64));
    }
    // The sum of two tensors wraps around, each alone does not.
    refused(file().tensor("a", &[4], F32, u64::MAX - 15).data(64));
    refused(file().tensor("a", &[4], F32, 0).tensor("b", &[4], F32, u64::MAX - 31).data(64));
    // The length of a text and the count of an array, times the size of what is in it.
    refused(file().key_array("a", 12, u64::MAX / 4));
    refused(file().key_array("a", 10, 1 << 61));
    refused(file().key_array("a", 8, u64::MAX));
    refused(file().counts(0, 1).u64(u64::MAX - 7));
}

/// Ollama, CVE-2026-7482: tensors whose offset or end lies beyond the file give away what is in memory.
#[test]
fn tensors_beyond_the_file_are_refused() {
    for (extent, offset) in
        [(4, 1 << 20), (4, 64), (4, 56), (17, 0), (1 << 30, 0), (4, u64::MAX), (4, 1 << 63)]
    {
        refused(file().tensor("t", &[extent], F32, offset).data(64));
    }
    assert!(
        Gguf::from_bytes(file().tensor("t", &[16], F32, 0).data(64).bytes()).is_ok(),
        "what fits is read"
    );
}

/// llama.cpp, CVE-2026-21869 in a file: counts that are huge, or negative as others read them.
#[test]
fn huge_and_negative_counts_are_refused() {
    for count in [u64::MAX, 1 << 63, i64::MAX as u64, u64::from(u32::MAX), 1 << 40] {
        refused(file().counts(count, 0));
        refused(file().counts(0, count));
        refused(file().key_array("a", 4, count));
    }
    let dimensions = |count: u32| file().counts(1, 0).text("t").u32(count).u64(1).u32(F32).u64(0).data(64);
    for count in [5, 100, u32::MAX, 1 << 31] {
        refused(dimensions(count));
    }
}

/// Kin: types that do not exist, alignments that are none, names given twice, arrays within arrays without end.
#[test]
fn types_alignments_and_names_that_cannot_be_are_refused() {
    refused(file().tensor("t", &[4], 999, 0).data(64));
    refused(file().counts(0, 1).text("k").u32(99).u64(0));
    for alignment in [0, 3, u32::MAX] {
        refused(file().key("general.alignment", alignment).tensor("t", &[4], F32, 0).data(64));
    }
    refused(file().tensor("t", &[4], F32, 0).tensor("t", &[4], F32, 32).data(64));
    let mut nested = file().counts(0, 1).text("k").u32(9);
    for _ in 0..100_000 {
        nested = nested.u32(9).u64(1);
    }
    refused(nested);
}

/// The same in safetensors: the header's length, offsets that overlap, run backwards or lie beyond the file.
#[test]
fn safetensors_that_lie_about_sizes_are_refused() {
    let open = |length: u64, header: &str, data: usize| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        Safetensors::from_bytes(bytes)
    };
    for (shape, offsets) in [
        ("[4]", "[0, 18446744073709551615]"),
        ("[4611686018427387905]", "[0, 4]"),
        ("[4294967296, 4294967296]", "[0, 0]"),
        ("[4]", "[16, 0]"),
        ("[4]", "[100, 116]"),
        ("[-4]", "[0, 16]"),
        ("[4]", "[-16, 0]"),
        ("[1e300]", "[0, 16]"),
    ] {
        let header = format!(r#"{{"t": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#);
        assert!(open(header.len() as u64, &header, 16).is_err(), "{shape} {offsets}");
    }
    for length in [u64::MAX, 1 << 62, 1 << 40, 0] {
        assert!(open(length, "{}", 16).is_err(), "a header of {length} bytes");
    }
}

/// A llama of one layer, of which one number is another.
fn described(change: impl Fn(File) -> File) -> Result<Description, String> {
    let (hidden, ffn, vocabulary) = (8_u64, 16, 32);
    let mut made = file()
        .key_text("general.architecture", "llama")
        .key("llama.context_length", 64)
        .key("llama.embedding_length", hidden as u32)
        .key("llama.block_count", 1)
        .key("llama.feed_forward_length", ffn as u32)
        .key("llama.attention.head_count", 2);
    made.keys += 1;
    made = change(made.text("llama.attention.layer_norm_rms_epsilon").u32(6).u32(1e-5_f32.to_bits()));
    let mut at = 0;
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("token_embd.weight".into(), vec![hidden, vocabulary]),
        ("output_norm.weight".into(), vec![hidden]),
    ];
    for layer in 0..=u64::from(made.body.windows(5).any(|bytes| bytes == b"extra")) {
        let parts = [
            ("attn_norm", vec![hidden]),
            ("attn_q", vec![hidden, hidden]),
            ("attn_k", vec![hidden, hidden]),
            ("attn_v", vec![hidden, hidden]),
            ("attn_output", vec![hidden, hidden]),
            ("ffn_norm", vec![hidden]),
            ("ffn_gate", vec![hidden, ffn]),
            ("ffn_up", vec![hidden, ffn]),
            ("ffn_down", vec![ffn, hidden]),
        ];
        tensors.extend(parts.map(|(name, extents)| (format!("blk.{layer}.{name}.weight"), extents)));
    }
    for (name, extents) in tensors {
        made = made.tensor(&name, &extents, F32, at);
        at += (extents.iter().product::<u64>() * 4).next_multiple_of(32);
    }
    let gguf = Gguf::from_bytes(made.data(at as usize).bytes()).map_err(|e| e.to_string())?;
    Description::of(&Checkpoint::from_gguf(gguf)).map_err(|e| e.to_string())
}

/// A number that the tensors contradict is refused by its name, and not ignored.
#[test]
fn numbers_that_the_tensors_contradict_are_refused() {
    described(|file| file).unwrap();
    described(|file| file.key("llama.vocab_size", 32).key("llama.attention.value_length", 4)).unwrap();
    let refused = |change: fn(File) -> File, key: &str| {
        let why = described(change).err().unwrap_or_else(|| panic!("{key} was ignored"));
        assert!(why.contains(key), "{why}");
    };
    refused(|file| file.key("extra", 1), "block_count");
    refused(|file| file.key("llama.vocab_size", 31), "vocab_size");
    refused(|file| file.key("llama.attention.value_length", 8), "value_length");
    refused(|file| file.key("llama.attention.key_length", 8), "attn_q");
}
