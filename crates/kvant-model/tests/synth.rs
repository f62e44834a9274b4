//! Synthetic models: files that load, tell the truth about themselves and compute finite numbers.

use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::gguf::{Gguf, Writer};
use kvant_model::synth::{self, LEAST_VOCABULARY, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, DType, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::io::{self, Write};

const TINY: Shape = Shape {
    layers: 3,
    hidden: 64,
    heads: 6,
    kv_heads: 2,
    head_dim: 32,
    ffn: 96,
    vocabulary: 300,
    tied: true,
    rope_base: 10_000.0,
    context: 128,
};
const TYPES: [WeightType; 3] = [WeightType::Int4, WeightType::Int8, WeightType::F16];

fn bytes(shape: &Shape, weights: WeightType, seed: u64) -> Vec<u8> {
    synth::model(shape, weights, seed).unwrap().to_bytes().unwrap()
}

fn checkpoint(shape: &Shape, weights: WeightType) -> Checkpoint {
    Checkpoint::from_gguf(Gguf::from_bytes(bytes(shape, weights, 1)).unwrap())
}

#[test]
fn every_weight_type_loads_and_computes_logits_of_ordinary_size() {
    for weights in TYPES {
        for tied in [true, false] {
            let checkpoint = checkpoint(&Shape { tied, ..TINY }, weights);
            let model = kvant_cpu::load(&checkpoint, LoadOptions::default()).unwrap();
            assert_eq!((model.vocabulary(), model.context()), (300, Some(128)));
            let tokens: Vec<u32> = (0..100).map(|i| i * 7 % 300).collect();
            let mut cache = KvCache::reference(model.slots(), tokens.len()).unwrap();
            let chunk = Chunk::new(&tokens, 0..tokens.len());
            let logits =
                model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits();
            let power = logits.data().iter().map(|z| z * z).sum::<f32>() / logits.data().len() as f32;
            assert!((0.5..2.0).contains(&power), "{weights:?}: {power}");
        }
    }
}

#[test]
fn the_parameters_are_those_in_the_file() {
    for tied in [true, false] {
        let shape = Shape { tied, ..TINY };
        let gguf = Gguf::from_bytes(bytes(&shape, WeightType::F16, 1)).unwrap();
        let matrices = gguf.tensors().filter(|tensor| tensor.dtype == DType::F16);
        let count: usize = matrices.map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        assert_eq!(count as u64, shape.parameters());
    }
    assert_eq!(Shape::LLAMA_3_2_1B.parameters(), 1_235_746_816);
    assert_eq!(Shape::SMOLLM2_135M.parameters(), 134_479_872);
}

#[test]
fn a_seed_gives_the_same_file_and_another_seed_another() {
    let file = bytes(&TINY, WeightType::Int4, 5);
    assert!(file == bytes(&TINY, WeightType::Int4, 5));
    assert!(file != bytes(&TINY, WeightType::Int4, 6));
}

#[test]
fn the_vocabulary_spells_every_text_and_is_padded() {
    for vocabulary in [LEAST_VOCABULARY, 1000] {
        let tokenizer = Tokenizer::of(&checkpoint(&Shape { vocabulary, ..TINY }, WeightType::Int4)).unwrap();
        assert_eq!(tokenizer.vocab_len(), vocabulary);
        let text = "All is well: \u{0}é\n\t日本語 🙂 <|begin|> to the end";
        let options = EncodeOptions { add_special: true, parse_special: false };
        let ids = tokenizer.encode(text, options).unwrap();
        assert_eq!(ids[0], tokenizer.bos().unwrap());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn shapes_that_no_model_has_are_refused() {
    let refused = |shape: Shape, weights| synth::model(&shape, weights, 0).unwrap_err().to_string();
    for (shape, word) in [
        (Shape { layers: 0, ..TINY }, "layers is 0"),
        (Shape { kv_heads: 4, ..TINY }, "4 kv heads do not divide 6 heads"),
        (Shape { head_dim: 31, ..TINY }, "pairs"),
        (Shape { vocabulary: 258, ..TINY }, "259"),
        (Shape { rope_base: f32::NAN, ..TINY }, "rope base"),
        (Shape { hidden: 72, ..TINY }, "hidden is 72; rows are whole blocks of 32"),
        (Shape { hidden: usize::MAX, ..TINY }, "hidden"),
        (Shape { heads: 1 << 20, kv_heads: 1, head_dim: 1 << 20, ..TINY }, "heads × head dim"),
    ] {
        let why = refused(shape, WeightType::Int4);
        assert!(why.contains(word), "{why}");
    }
    assert!(synth::model(&Shape { hidden: 72, ..TINY }, WeightType::F16, 0).is_ok());
}

#[test]
fn a_made_tensor_is_written_as_a_held_one_is() {
    let rows = |row: usize| [row as u8, 7, 0, 0];
    let mut made = Writer::new("llama");
    made.made("t", DType::F32, &[1000, 1], move |row, bytes| bytes.copy_from_slice(&rows(row))).unwrap();
    let gguf = Gguf::from_bytes(made.to_bytes().unwrap()).unwrap();
    let tensor = gguf.tensor("t").unwrap();
    assert!((0..1000).all(|row| tensor.row(row) == rows(row)));
    let mut held = Writer::new("llama");
    held.tensor(tensor);
    assert_eq!(held.to_bytes().unwrap(), made.to_bytes().unwrap());
    assert!(made.made("u", DType::Q4_0, &[4, 33], |_, _| ()).is_err());
}

#[test]
fn progress_counts_every_byte_of_the_tensors() {
    let writer = synth::model(&TINY, WeightType::Int8, 0).unwrap();
    let mut steps = Vec::new();
    writer.write_with(&mut io::sink(), &mut |done| steps.push(done)).unwrap();
    assert!(steps.is_sorted());
    assert_eq!(steps.last(), Some(&writer.tensor_bytes()));
}

/// Takes so many bytes and then has no room.
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.min(bytes.len()) {
            0 => Err(io::ErrorKind::StorageFull.into()),
            room => {
                self.0 -= room;
                Ok(room)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_named_with_what_is_needed() {
    let writer = synth::model(&TINY, WeightType::F16, 0).unwrap();
    let whole = writer.to_bytes().unwrap().len();
    for room in [0, 100, whole / 2, whole - 1] {
        let error = writer.write(&mut Disk(room)).unwrap_err().to_string();
        assert!(error.contains("no room for a GGUF file of") && error.contains("make room"), "{error}");
    }
    assert!(writer.write(&mut Disk(whole)).is_ok());
}
