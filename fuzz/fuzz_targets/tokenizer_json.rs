//! Any text as a `tokenizer.json`: a tokenizer or an error. What it encodes decodes, and its ids are its own.
#![no_main]

use kvant_text::tokenizer::{EncodeOptions, HfFiles, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let config = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"add_bos_token\": true}";
    let files = HfFiles { tokenizer: text, tokenizer_config: Some(config), ..HfFiles::default() };
    let Ok(tokenizer) = Tokenizer::from_hf(files) else { return };
    for (text, parse_special) in
        [("Hello <s> \u{e9}\u{1F600}\n\t 42", true), ("", false), ("\u{0}\u{fffd}a\u{301}", false)]
    {
        let options = EncodeOptions { add_special: true, parse_special };
        let Ok(ids) = tokenizer.encode(text, options) else { continue };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        let _ = tokenizer.decode(&ids);
    }
    for id in 0..tokenizer.vocab_len().min(64) as u32 {
        let _ = (
            tokenizer.token_bytes(id),
            tokenizer.text_bytes(id),
            tokenizer.kind(id),
            tokenizer.token_name(id),
        );
    }
});
