//! A model file with other bytes here and there: converted to a file that opens, or refused with nothing left behind.
#![no_main]

use kvant_convert::{Conversion, ConvertError, Format, Importance, Weights};
use kvant_fuzz::{Numbers, model};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static MODEL: LazyLock<Vec<u8>> = LazyLock::new(model);

/// Left behind in the folder for temporary files.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("kvant-fuzz-convert-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
});

fn converted(bytes: Vec<u8>, weights: Weights, format: Format, to: &Path) -> Result<(), ConvertError> {
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(bytes)?);
    let conversion = Conversion::new(&checkpoint, weights, format, None)?;
    conversion.write(to, &mut |_, _| ControlFlow::Continue(()))?;
    Checkpoint::open(to).expect("what was written is sound");
    Ok(())
}

fuzz_target!(|input: &[u8]| {
    let mut numbers = Numbers(input);
    if numbers.below(4) == 0 {
        let path = FOLDER.join("imatrix.dat");
        fs::write(&path, numbers.0).expect("the file can be written");
        let _ = Importance::read(&path);
        return;
    }
    let weights = numbers.pick(&[Weights::Int4, Weights::Q8_0, Weights::F16, Weights::Mxfp4]);
    let (format, name) =
        numbers.pick(&[(Format::Gguf, "model.gguf"), (Format::Safetensors, "model.safetensors")]);
    let mut bytes = MODEL.clone();
    while !numbers.is_empty() {
        // What comes before the numbers of tensors is some ten thousand bytes long.
        let at = numbers.below(bytes.len().min(1 << 14));
        for (to, byte) in bytes[at..].iter_mut().zip(numbers.bytes(2)) {
            *to = *byte;
        }
    }
    let path = FOLDER.join(name);
    let _ = fs::remove_file(&path);
    if converted(bytes, weights, format, &path).is_err() {
        assert!(!path.exists(), "half a conversion is left");
    }
});
