//! Any bytes as a GGUF file with a vocabulary: a tokenizer or an error. What it encodes decodes, and its ids are its own.
#![no_main]

use kvant_model::gguf::Gguf;
use kvant_text::tokenizer::{EncodeOptions, GgufVocab, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return };
    let Ok(vocab) = GgufVocab::read(gguf.metadata()) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&vocab) else { return };
    for (text, parse_special) in
        [("Hello <s> \u{e9}\u{1F600}\n\t 42", true), ("", false), ("\u{0}\u{fffd}a\u{301}", false)]
    {
        let options = EncodeOptions { add_special: true, parse_special };
        let Ok(ids) = tokenizer.encode(text, options) else { continue };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        let _ = tokenizer.decode(&ids);
    }
});
