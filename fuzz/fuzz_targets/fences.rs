//! Any texts between the parts of a template, with and without their letters changed: none of them becomes a control token, and nothing
//! of them is lost.
#![no_main]

use kvant_text::tokenizer::{Fence, GgufVocab, TokenKind, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const NAMES: [&str; 6] = ["<|im_start|>", "<|im_end|>", "[INST]", "[e~[", "<|tooK|>", "\u{a6}"];

/// Pieces that names are made of; every byte of the input is one of them, or itself.
const PIECES: [&str; 24] = [
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[e~[",
    "<|tooK|>",
    "\u{a6}",
    "<|",
    "|>",
    "im_",
    "start",
    "[IN",
    "ST]",
    "e~[",
    "too",
    "K",
    "\u{212a}",
    "\u{fb05}",
    "\u{131}",
    "\u{17f}",
    "<s>",
    "</s>",
    "\u{fdd0}",
    "\u{e000}",
    " ",
];

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let names = ["<unk>", "<s>", "</s>"].into_iter().chain(NAMES).map(str::to_owned);
    let tokens: Vec<String> = names.chain(bytes).collect();
    let kind = |id: usize| match id {
        0 => TokenKind::Unknown,
        id if id < 3 + NAMES.len() => TokenKind::Control,
        _ => TokenKind::Byte,
    };
    let vocab = GgufVocab {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        kinds: (0..tokens.len()).map(kind).collect(),
        tokens,
        add_space_prefix: Some(false),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(&vocab).expect("a vocabulary")
});

/// What a template does to a text.
fn written(text: &str, how: u8) -> String {
    match how % 4 {
        0 => text.to_owned(),
        1 => text.trim().to_owned(),
        2 => text.to_lowercase(),
        _ => text.to_uppercase(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let piece = |byte: &u8| {
        PIECES
            .get(usize::from(*byte))
            .map_or_else(|| char::from(*byte).to_string(), |piece| (*piece).to_owned())
    };
    let Some((how, bytes)) = bytes.split_first() else { return };
    let texts: Vec<String> =
        bytes.split(|byte| *byte == 255).take(4).map(|part| part.iter().map(piece).collect()).collect();
    let fence = Fence::absent_from(&texts.concat());
    let mut rendered = String::new();
    let mut turns = 0;
    for text in &texts {
        let mut fenced = text.clone();
        TOKENIZER.fence(&mut fenced, fence, &[]);
        rendered += &format!("<|im_start|>{}<|im_end|>", written(&fenced, *how));
        turns += 2;
    }
    let ids = TOKENIZER.encode_chat_fenced(&rendered, fence).expect("text can be encoded");
    let controls = ids.iter().filter(|&&id| TOKENIZER.kind(id) == Some(TokenKind::Control)).count();
    // `<s>` at the beginning is the vocabulary's own.
    assert_eq!(controls, turns + 1, "{rendered:?}");
    assert!(TOKENIZER.token_bytes(ids[0]).is_ok());
});
