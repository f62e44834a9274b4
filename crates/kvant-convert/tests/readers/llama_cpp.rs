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
    layers: 8,
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

/// A model of random weights.
fn made(place: &Path) -> PathBuf {
    let path = place.join("source.gguf");
    fs::write(&path, synth::model(&SHAPE, WeightType::F16, 7).unwrap().to_bytes().unwrap()).unwrap();
    path
}

/// Models to convert: one of random weights, and those that are named.
fn sources(place: &Path) -> Vec<PathBuf> {
    let named = std::env::var_os("KVANT_MODELS");
    let named = named.iter().flat_map(std::env::split_paths);
    std::iter::once(made(place)).chain(named).collect()
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

/// Both engines compute the same logits of a file.
fn is_computed_alike(path: &Path) {
    let ids: Vec<u32> = (0..48).map(|i| 3 + i * 37 % 251).collect();
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let expected = path.with_added_extension("logits");
    fs::write(&expected, bytes(&logits(&Checkpoint::open(path).unwrap(), &ids))).unwrap();
    let mut arguments = vec![path.as_os_str(), expected.as_os_str()];
    arguments.extend(list.iter().map(OsStr::new));
    println!("{}: {}", path.display(), script("compute.py", &arguments));
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

#[test]
fn kvant_computes_what_llama_cpp_quantizes() {
    let place = tempfile::tempdir().unwrap();
    let source = made(place.path());
    let checkpoint = Checkpoint::open(&source).unwrap();
    // The numbers are llama.cpp's; the layers of these two mixes have the same types here and there.
    for (name, kind) in [("q4_k_m", "15"), ("q5_k_m", "17")] {
        let own = place.path().join(format!("{name}.gguf"));
        convert(&checkpoint, name, &own);
        let theirs = place.path().join(format!("llama.cpp-{name}.gguf"));
        script("quantize.py", &[source.as_os_str(), theirs.as_os_str(), OsStr::new(kind)]);
        is_computed_alike(&theirs);
        let (own, theirs) = (Checkpoint::open(own).unwrap(), Checkpoint::open(theirs).unwrap());
        let layers: Vec<&str> = own.names().filter(|tensor| tensor.starts_with("blk.")).collect();
        assert!(layers.len() > SHAPE.layers * 8, "{layers:?}");
        for tensor in layers {
            let types = [&own, &theirs].map(|file| file.tensor(tensor).unwrap().dtype());
            assert_eq!(types[0], types[1], "{name}: {tensor}");
        }
    }
}
