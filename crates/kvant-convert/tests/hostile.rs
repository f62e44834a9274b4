//! Files of strangers: whatever their bytes say, a conversion is a file that opens or an error.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_convert::{Conversion, ConvertError, Format, Importance, Weights};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use proptest::prelude::*;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

static MODEL: LazyLock<Vec<u8>> = LazyLock::new(|| tiny::model_bytes(true));

/// Header, metadata, vocabulary and the list of tensors: all before the numbers.
const HEAD: usize = 12 << 10;

fn converted(bytes: Vec<u8>, weights: Weights, format: Format, to: &Path) -> Result<(), ConvertError> {
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(bytes)?);
    let conversion = Conversion::new(&checkpoint, weights, format, None)?;
    conversion.write(to, &mut |_, _| ControlFlow::Continue(()))?;
    // What was written is sound.
    Checkpoint::open(to)?;
    Ok(())
}

/// What is done to a few places of a file.
fn damaged(bytes: &[u8], places: &[(prop::sample::Index, u8)], within: usize, cut: Option<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, byte) in places {
        let within = within.min(bytes.len());
        bytes[place.index(within)] ^= byte;
    }
    bytes.truncate(cut.unwrap_or(usize::MAX));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_model_is_converted_or_refused(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.1, 0usize..200_000),
        weights in prop::sample::select(vec![Weights::Int4, Weights::Q8_0, Weights::F16, Weights::Mxfp4]),
        to_folder in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (format, name) =
            if to_folder { (Format::Safetensors, "model.safetensors") } else { (Format::Gguf, "model.gguf") };
        let path = folder.path().join(name);
        let damaged = damaged(&MODEL, &places, HEAD, cut);
        match converted(damaged, weights, format, &path) {
            Ok(()) => {}
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                prop_assert!(!path.exists() || Checkpoint::open(&path).is_ok(), "half a file is left: {error}");
            }
        }
    }

    #[test]
    fn a_damaged_imatrix_is_read_or_refused(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(0usize..400),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.dat");
        fs::write(&path, damaged(&imatrix(), &places, usize::MAX, cut)).unwrap();
        match Importance::read(&path) {
            Ok(read) => prop_assert!(read.layers() > 0),
            Err(error) => prop_assert!(error.to_string().contains("imatrix.dat"), "{error}"),
        }
    }
}

/// A file of llama.cpp's older form: three matrices, how often each was met, and the sums of 16 channels.
fn imatrix() -> Vec<u8> {
    let mut bytes = 3i32.to_le_bytes().to_vec();
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.1.attn_q.weight"] {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(2i32.to_le_bytes());
        bytes.extend(16i32.to_le_bytes());
        (0..16).for_each(|channel| bytes.extend((1.0 + channel as f32).to_le_bytes()));
    }
    bytes
}

#[test]
fn the_files_that_are_damaged_are_sound_before() {
    let folder = tempfile::tempdir().unwrap();
    converted(MODEL.clone(), Weights::Int4, Format::Gguf, &folder.path().join("model.gguf")).unwrap();
    converted(MODEL.clone(), Weights::F16, Format::Safetensors, &folder.path().join("model.safetensors"))
        .unwrap();
    let path = folder.path().join("imatrix.dat");
    fs::write(&path, imatrix()).unwrap();
    assert_eq!(Importance::read(&path).unwrap().layers(), 3);
}
