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

const TYPES: [&str; 6] = ["q4_k_m", "q6_k", "iq4_xs", "iq4_nl", "q2_k", "q3_k"];

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

/// Both engines compute the same logits of a file, and of its weights in f32.
fn is_computed_alike(path: &Path) {
    let ids: Vec<u32> = (0..48).map(|i| 3 + i * 37 % 251).collect();
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let checkpoint = Checkpoint::open(path).unwrap();
    let [expected, plain] = ["logits", "f32.gguf"].map(|end| path.with_added_extension(end));
    fs::write(&expected, bytes(&logits(&checkpoint, &ids))).unwrap();
    convert(&checkpoint, "f32", &plain);
    let mut arguments = vec![path.as_os_str(), plain.as_os_str(), expected.as_os_str()];
    arguments.extend(list.iter().map(OsStr::new));
    println!("{}: {}", path.display(), script("compute.py", &arguments));
    fs::remove_file(plain).unwrap();
}

#[test]
fn llama_cpp_computes_what_kvant_computes() {
    let place = tempfile::tempdir().unwrap();
    for (number, source) in sources(place.path()).iter().enumerate() {
        let checkpoint = Checkpoint::open(source).unwrap();
        for name in TYPES {
            let path = place.path().join(format!("{number}-{name}.gguf"));
            convert(&checkpoint, name, &path);
            is_computed_alike(&path);
            // Files of large models do not all fit beside each other.
            fs::remove_file(&path).unwrap();
        }
    }
}

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
        is_computed_alike(&theirs);
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
