//! Converted files, read by the gguf package: the Python that `KVANT_PYTHON` names has it. `cargo xtask test readers`
//! makes one.

mod llama_cpp;

use kvant_convert::{Conversion, Format, Weights, encode_row};
use kvant_model::quant::dequantize_row;
use kvant_model::{Checkpoint, DType};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

const TYPES: [&str; 14] = [
    "f16", "int4", "int8", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "mxfp4", "iq4_nl", "iq4_xs", "q3_k_m",
    "q4_k_m", "q5_k_m",
];

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn the_gguf_package_reads_the_numbers_that_kvant_reads() {
    let python = std::env::var("KVANT_PYTHON").expect("run by `cargo xtask test readers`");
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixtures = crate_folder.join("../kvant-model/tests/fixtures");
    let place = tempfile::tempdir().unwrap();
    let mut written = 0;
    for model in ["llama", "gemma3", "qwen3_moe"] {
        let checkpoint = Checkpoint::open(fixtures.join(model)).unwrap();
        for weights in TYPES {
            let path = place.path().join(format!("{model}-{weights}.gguf"));
            let weights: Weights = weights.parse().unwrap();
            Conversion::new(&checkpoint, weights, Format::Gguf, None)
                .unwrap()
                .write(&path, &mut |_, _| ControlFlow::Continue(()))
                .unwrap();
            let values = path.with_added_extension("values");
            fs::create_dir(&values).unwrap();
            let converted = Checkpoint::open(&path).unwrap();
            for name in converted.names() {
                let numbers = converted.tensor(name).unwrap().to_f32().unwrap();
                fs::write(values.join(name), bytes(&numbers)).unwrap();
                written += 1;
            }
        }
    }
    let rows: Vec<f32> = (0..64 * 256).map(|i| (i as f32 * 0.37).sin() * (i as f32 * 0.011).cos()).collect();
    fs::write(place.path().join("rows.f32"), bytes(&rows)).unwrap();
    for dtype in [DType::Q4_0, DType::Q8_0, DType::MXFP4] {
        let mut stored = vec![0; dtype.row_bytes(rows.len()).unwrap()];
        encode_row(dtype, &rows, None, &mut stored).unwrap();
        fs::write(place.path().join(format!("rows.{dtype}")), stored).unwrap();
    }
    use DType::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    for dtype in [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS] {
        let mut stored = vec![0; dtype.row_bytes(rows.len()).unwrap()];
        encode_row(dtype, &rows, None, &mut stored).unwrap();
        let mut back = vec![0.0; rows.len()];
        dequantize_row(dtype, &stored, &mut back).unwrap();
        fs::write(place.path().join(format!("rows.{dtype}")), stored).unwrap();
        fs::write(place.path().join(format!("back.{dtype}")), bytes(&back)).unwrap();
    }
    let script = crate_folder.join("tests/readers/read.py");
    let read = Command::new(python).arg(script).arg(place.path()).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&read.stdout), String::from_utf8_lossy(&read.stderr));
    assert!(read.status.success(), "{said}{complained}");
    assert_eq!(said.trim(), format!("{written} tensors"));
}
