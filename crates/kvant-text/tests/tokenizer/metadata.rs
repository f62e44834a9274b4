//! The vocabulary of a GGUF file, through the reader.

use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_text::tokenizer::{EncodeOptions, GgufVocab};

use crate::vocabularies::{PLAIN, SPECIAL, sentence, tokenizer};

fn file(change: impl FnOnce(&mut Writer)) -> Gguf {
    let vocab = sentence(false);
    let numbers = json_kinds();
    let mut writer = Writer::new("llama");
    let mut set = |key: &str, value| {
        writer.set(&format!("tokenizer.ggml.{key}"), value);
    };
    set("model", WriterValue::String(vocab.model));
    set("tokens", WriterValue::strings(vocab.tokens));
    set("scores", WriterValue::f32s(vocab.scores));
    set("token_type", WriterValue::i32s(numbers));
    set("bos_token_id", WriterValue::U32(1));
    set("eos_token_id", WriterValue::U32(2));
    set("unknown_token_id", WriterValue::U32(0));
    set("add_space_prefix", WriterValue::Bool(false));
    change(&mut writer);
    Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

fn json_kinds() -> Vec<i32> {
    let kinds = &crate::vocabularies::json("sentence.json")["kinds"];
    kinds.as_array().unwrap().iter().map(|kind| kind.as_i64().unwrap() as i32).collect()
}

#[test]
fn a_file_gives_the_tokenizer_it_describes() {
    let read = tokenizer(&GgufVocab::read(file(|_| {}).metadata()).unwrap());
    let made = tokenizer(&sentence(false));
    let whole = EncodeOptions { add_special: true, parse_special: true };
    for text in ["the quick  brown fox", "<s>日本語</s>\n\n\n👍", ""] {
        assert_eq!(read.encode(text, PLAIN).unwrap(), made.encode(text, PLAIN).unwrap());
        assert_eq!(read.encode(text, whole).unwrap(), made.encode(text, whole).unwrap());
    }
    assert_eq!(read.end_of_generation(), made.end_of_generation());
}

#[test]
fn keys_of_another_type_are_named() {
    let refusal = |key: &str, value| {
        let key = format!("tokenizer.ggml.{key}");
        let file = file(|writer| {
            writer.set(&key, value);
        });
        GgufVocab::read(file.metadata()).unwrap_err().to_string()
    };
    assert!(refusal("scores", WriterValue::U32(3)).contains("tokenizer.ggml.scores"));
    assert!(refusal("tokens", WriterValue::f32s([1.0])).contains("tokenizer.ggml.tokens"));
    assert!(refusal("bos_token_id", WriterValue::I32(-1)).contains("tokenizer.ggml.bos_token_id"));
    assert!(refusal("add_bos_token", WriterValue::U32(1)).contains("tokenizer.ggml.add_bos_token"));
}

#[test]
fn white_space_after_a_token_of_structure_is_dropped_in_files_of_phi3_alone() {
    let of = |architecture: &str| {
        let name = WriterValue::String(architecture.into());
        let file = file(|writer| {
            writer.set("general.architecture", name);
        });
        tokenizer(&GgufVocab::read(file.metadata()).unwrap())
    };
    let (phi3, llama) = (of("phi3"), of("llama"));
    let ids = |text: &str| phi3.encode(text, SPECIAL).unwrap();
    let (the, fox) = (ids("the"), ids("fox"));
    assert_eq!(ids("the</s> \n fox"), [the.as_slice(), &[2], &fox].concat());
    assert_eq!(ids("the</s>\n</s> "), [the.as_slice(), &[2, 2]].concat());
    assert_eq!(ids("the<s> fox"), llama.encode("the<s> fox", SPECIAL).unwrap());
    assert_ne!(llama.encode("the</s> fox", SPECIAL).unwrap(), ids("the</s> fox"));
    assert_eq!(llama.encode("the </s>", PLAIN).unwrap(), phi3.encode("the </s>", PLAIN).unwrap());
}
