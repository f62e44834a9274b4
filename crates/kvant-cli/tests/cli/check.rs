//! `kvant check`, and hostile names and values on their way to the screen.

use crate::support::{Home, model_bytes};
use kvant_model::gguf::{Writer, WriterValue};
use kvant_model::{DType, Tensor};

/// A file without a model that runs, with one tensor of this name.
fn file(home: &Home, name: &str, tensor: Tensor, title: &str) -> String {
    let mut writer = Writer::new("llama");
    writer.set("general.name", WriterValue::String(title.into())).tensor(tensor);
    home.write(name, &writer.to_bytes().unwrap())
}

#[test]
fn a_sound_model_is_called_sound() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["check", &model]).ok();
    assert!(text.contains(": sound (model, ") && text.contains("tensors"), "{text}");
    let json = home.run(&["check", "--json", &model]).json();
    assert_eq!((&json["sound"], &json["kind"]), (&true.into(), &"model".into()));
}

#[test]
fn values_that_are_no_numbers_are_found_with_their_tensor() {
    let home = Home::new();
    let mut values = vec![1.0; 64];
    (values[40], values[41]) = (f32::NAN, f32::INFINITY);
    let path = file(&home, "nan.gguf", Tensor::from_f32("blk.0.bad", vec![2, 32], &values).unwrap(), "n");
    let run = home.run(&["check", &path]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.out.contains("not sound") && run.out.contains("blk.0.bad: 2 of 64 values"), "{run:?}");
    assert!(run.out.contains("row 1, column 8"), "{run:?}");
    // A scale that is infinite, in a block of 4 bits.
    let block = [&[0x00, 0x7c][..], &[0x12; 16]].concat();
    let packed = Tensor::new("scaled", DType::Q4_0, vec![1, 32], block.into()).unwrap();
    let run = home.run(&["check", &file(&home, "inf.gguf", packed, "n")]);
    assert!(
        run.code == Some(1) && run.out.contains("scaled: ") && run.out.contains("NaN or infinite"),
        "{run:?}"
    );
}

#[test]
fn what_is_cut_off_or_something_else_is_not_sound() {
    let home = Home::new();
    let bytes = model_bytes(true);
    let cut = home.write("cut.gguf", &bytes[..bytes.len() / 2]);
    let other = home.write("other.bin", b"something else entirely");
    let session = home.write("broken.session", b"KVANTSEQ and nothing behind it");
    let plan = home.write("broken.kvplan", b"KVANTPLN and nothing behind it");
    for path in [&cut, &other, &session, &plan] {
        let run = home.run(&["check", path]);
        assert!(
            run.code == Some(1) && run.out.contains("not sound") && !run.err.contains("panicked"),
            "{run:?}"
        );
    }
}

#[test]
fn names_of_65536_letters_and_escape_sequences_reach_no_terminal() {
    let home = Home::new();
    let evil = "\x1b]52;c;ZXZpbA==\x07\x1b[2J";
    let long = "x".repeat(60_000);
    let tensor = Tensor::from_f32(format!("blk.0.{evil}"), vec![32], &[1.0; 32]).unwrap();
    let path = file(&home, "evil.gguf", tensor, &format!("{long}{evil}{long}"));
    for arguments in [&["inspect", "--tensors", &path][..], &["check", &path], &["run", &path, "hi"]] {
        let run = home.run(arguments);
        assert!(!run.err.contains("panicked"), "{arguments:?}: {}", run.err);
        assert!(!run.out.contains('\x1b') && !run.err.contains('\x1b'), "{arguments:?}: {run:?}");
        assert!(run.out.len() < 20_000, "{arguments:?}");
    }
}
