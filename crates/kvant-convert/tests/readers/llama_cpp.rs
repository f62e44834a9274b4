//! Files that kvant converts and files that llama.cpp quantizes, each computed by both: the Python that `KVANT_PYTHON` names has llama.cpp.
//! `cargo xtask test llama-cpp` makes one. `KVANT_MODELS` lists models to convert besides the one that is made here.

use crate::bytes;
use kvant_attention::KvCache;
use kvant_convert::{Conversion, Format, Weights};
use kvant_cpu::LoadOptions;
use kvant_model::synth::{self, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, Pass};
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Types of weights, with how far a row of logits may be off, in its length, where llama.cpp multiplies them as they are stored. It rounds
/// activations then, to f16 (2⁻¹¹ at most) or to 8 bits, a step of 1/127 of the largest value of a block: of 32 values 0.5 % of their root
/// mean square, of 256 values 0.7 %. Behind two layers with seven products each that came to 0.1 %, 2 to 2.5 % and 3.3 to 3.9 %.
const TYPES: [(&str, f32); 8] = [
    ("f16", 0.003),
    ("q8_0", BLOCKS_OF_32),
    ("iq4_nl", BLOCKS_OF_32),
    ("iq4_xs", BLOCKS_OF_256),
    ("q2_k", BLOCKS_OF_256),
    ("q3_k", BLOCKS_OF_256),
    ("q4_k_m", BLOCKS_OF_256),
    ("q6_k", BLOCKS_OF_256),
];
const BLOCKS_OF_32: f32 = 0.04;
const BLOCKS_OF_256: f32 = 0.06;

/// The same where both engines compute in f32: sums in another order.
const FLOATS: f32 = 1e-5;

/// Rows of whole super-blocks, which the fixtures are too narrow for.
const SHAPE: Shape = Shape {
    layers: 2,
    hidden: 512,
    heads: 8,
    kv_heads: 4,
    head_dim: 64,
    ffn: 1024,
    vocabulary: 1024,
    tied: false,
    rope_base: 10_000.0,
    context: 256,
};

/// Enough layers for a mix of types. Roundings of activations add up from layer to layer, so logits are those of [`SHAPE`].
const DEEP: Shape = Shape { layers: 8, ..SHAPE };

/// A model of random weights.
fn made(place: &Path, shape: &Shape) -> PathBuf {
    let path = place.join(format!("source-{}.gguf", shape.layers));
    fs::write(&path, synth::model(shape, WeightType::F16, 7).unwrap().to_bytes().unwrap()).unwrap();
    path
}

/// Models to convert: one of random weights, and those that are named.
fn sources(place: &Path) -> Vec<PathBuf> {
    let named = std::env::var_os("KVANT_MODELS");
    let named = named.iter().flat_map(std::env::split_paths);
    std::iter::once(made(place, &SHAPE)).chain(named).collect()
}

/// Writes a model with other weights.
fn convert(source: &Checkpoint, name: &str, path: &Path) {
    let weights: Weights = name.parse().unwrap();
    let conversion = Conversion::new(source, weights, Format::Gguf, None).unwrap();
    conversion.write(path, &mut |_, _| ControlFlow::Continue(())).unwrap();
}

/// (tokens, vocabulary): what kvant computes, with f32 activations.
fn logits(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions::AS_STORED).unwrap();
    let mut cache = KvCache::reference(model.slots(), ids.len()).unwrap();
    let chunk = Chunk::new(ids, 0..ids.len());
    model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data().to_vec()
}

/// Runs a script of this folder in the Python that has llama.cpp: what it printed.
fn script(name: &str, arguments: &[&OsStr]) -> String {
    let python = std::env::var("KVANT_PYTHON").expect("run by `cargo xtask test llama-cpp`");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers").join(name);
    let run = Command::new(python).arg(path).args(arguments).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{name} {arguments:?}: {said}{complained}");
    said.trim().to_owned()
}

/// (tokens, vocabulary): what llama.cpp computes, with a cache in f32 and without flash attention, which has one in f16.
fn theirs(path: &Path, ids: &[u32]) -> Vec<f32> {
    let result = path.with_added_extension("logits");
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let arguments = [path.as_os_str(), result.as_os_str()].into_iter().chain(list.iter().map(OsStr::new));
    script("compute.py", &arguments.collect::<Vec<_>>());
    let stored = fs::read(result).unwrap();
    stored.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The greatest difference of a row, in its length.
fn apart(found: &[f32], expected: &[f32], rows: usize) -> f32 {
    assert_eq!(found.len(), expected.len());
    let length = |row: &mut dyn Iterator<Item = f32>| row.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let width = expected.len() / rows;
    let off = found.chunks(width).zip(expected.chunks(width)).map(|(found, expected)| {
        let difference = length(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        (difference / length(&mut expected.iter().copied())) as f32
    });
    off.fold(0.0, f32::max)
}

/// llama.cpp reads in a file the weights that kvant reads there, to the bit, and both compute the same logits from them. From the weights as
/// they are stored llama.cpp computes what its rounding of activations leaves, `rounding` at most; `None` for real models, whose layers
/// are as many as they please: then it is shown.
fn is_computed_alike(path: &Path, rounding: Option<f32>) {
    let ids: Vec<u32> = (0..48).map(|i| 3 + i * 37 % 251).collect();
    let checkpoint = Checkpoint::open(path).unwrap();
    let expected = logits(&checkpoint, &ids);
    let plain = path.with_added_extension("f32.gguf");
    quantize(path, &plain, ALL_F32);
    let read = Checkpoint::open(&plain).unwrap();
    for name in checkpoint.names() {
        let [own, other] = [&checkpoint, &read].map(|file| file.tensor(name).unwrap().to_f32().unwrap());
        assert_eq!(bytes(&own), bytes(&other), "{}: {name}", path.display());
    }
    let floats = apart(&theirs(&plain, &ids), &expected, ids.len());
    let stored = apart(&theirs(path, &ids), &expected, ids.len());
    println!("{}: {floats:.1e} of a row in f32, {stored:.4} as stored", path.display());
    fs::remove_file(plain).unwrap();
    assert!(floats < if rounding.is_some() { FLOATS } else { 100.0 * FLOATS }, "{floats}");
    assert!(rounding.is_none_or(|most| stored < most), "{stored}");
}

#[test]
fn llama_cpp_computes_what_kvant_computes() {
    let place = tempfile::tempdir().unwrap();
    for (number, source) in sources(place.path()).iter().enumerate() {
        let checkpoint = Checkpoint::open(source).unwrap();
        for (name, rounding) in TYPES {
            let path = place.path().join(format!("{number}-{name}.gguf"));
            convert(&checkpoint, name, &path);
            is_computed_alike(&path, (number == 0).then_some(rounding));
            // Files of large models do not all fit beside each other.
            fs::remove_file(&path).unwrap();
        }
    }
}

/// llama.cpp's number of a file whose weights are all f32.
const ALL_F32: &str = "0";

/// Two mixes whose layers have the same types here and there, with llama.cpp's numbers of them.
const MIXES: [(&str, &str); 2] = [("q4_k_m", "15"), ("q5_k_m", "17")];

fn quantize(source: &Path, to: &Path, kind: &str) {
    script("quantize.py", &[source.as_os_str(), to.as_os_str(), OsStr::new(kind)]);
}

#[test]
fn kvant_computes_what_llama_cpp_quantizes() {
    let place = tempfile::tempdir().unwrap();
    let source = made(place.path(), &SHAPE);
    for (name, kind) in MIXES {
        let theirs = place.path().join(format!("llama.cpp-{name}.gguf"));
        quantize(&source, &theirs, kind);
        is_computed_alike(&theirs, Some(BLOCKS_OF_256));
    }
}

#[test]
fn llama_cpp_gives_the_same_types_to_the_layers_of_a_mix() {
    let place = tempfile::tempdir().unwrap();
    let source = made(place.path(), &DEEP);
    let checkpoint = Checkpoint::open(&source).unwrap();
    for (name, kind) in MIXES {
        let paths = ["own", "theirs"].map(|whose| place.path().join(format!("{whose}-{name}.gguf")));
        convert(&checkpoint, name, &paths[0]);
        quantize(&source, &paths[1], kind);
        let [own, theirs] = paths.map(|path| Checkpoint::open(path).unwrap());
        let layers: Vec<&str> = own.names().filter(|tensor| tensor.starts_with("blk.")).collect();
        assert!(layers.len() > DEEP.layers * 8, "{layers:?}");
        for tensor in layers {
            let types = [&own, &theirs].map(|file| file.tensor(tensor).unwrap().dtype());
            assert_eq!(types[0], types[1], "{name}: {tensor}");
        }
    }
}
