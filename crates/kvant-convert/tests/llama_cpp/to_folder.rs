//! llama.cpp's files as Hugging Face folders.

use crate::{converted, difference, gguf, logits};
use kvant_convert::{Conversion, Format, Weights};
use kvant_model::Checkpoint;
use std::fs;
use std::ops::ControlFlow;

/// Largest difference of logits: rates of decay go through a logarithm, rotated channels meet in another order.
const TOLERANCE: f32 = 1e-5;

/// Files that become no folder, which is said by name.
const REFUSED: [&str; 1] = ["mimo_v2_flash"];

#[test]
fn a_folder_computes_what_its_file_computes() {
    let place = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let mut equal = 0;
    for name in converted() {
        let file = Checkpoint::from_gguf(gguf(&name));
        let folder = place.path().join(&name);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("model.safetensors");
        let conversion = match Conversion::new(&file, Weights::F32, Format::Safetensors, None) {
            Ok(conversion) => conversion,
            Err(why) if REFUSED.contains(&name.as_str()) => {
                assert!(why.to_string().contains("folders of mimo_v2_flash are not written"), "{why}");
                continue;
            }
            Err(why) => {
                wrong.push(format!("{name}: {why}"));
                continue;
            }
        };
        conversion.write(&path, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let back = match Checkpoint::open(&folder) {
            Ok(back) => back,
            Err(why) => {
                wrong.push(format!("{name}: {why}"));
                continue;
            }
        };
        let (a, b) = (logits(&file), logits(&back));
        let worst = difference(&a, &b);
        equal += usize::from(a == b);
        println!("{name:24} {worst:.1e}");
        if worst > TOLERANCE {
            wrong.push(format!("{name}: off by {worst}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(equal >= 30, "only {equal} give the same bits");
}
