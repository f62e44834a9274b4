//! Any text as a schema, a grammar or an expression: compiled or refused, within its time. What is allowed can be chosen.
#![no_main]

use kvant_engine::grammar::{Grammar, GrammarCompiler};
use kvant_engine::{Constraint, Interrupt};
use kvant_text::tokenizer::{GgufVocab, TokenKind, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A vocabulary of bytes.
static COMPILER: LazyLock<(GrammarCompiler, usize)> = LazyLock::new(|| {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).chain(bytes).collect();
    let kind = |id: usize| match id {
        0 => TokenKind::Unknown,
        1 | 2 => TokenKind::Control,
        _ => TokenKind::Byte,
    };
    let vocab = GgufVocab {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        kinds: (0..tokens.len()).map(kind).collect(),
        eos: Some(2),
        tokens,
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocab).expect("a vocabulary");
    (GrammarCompiler::new(&tokenizer).expect("a compiler"), tokenizer.vocab_len())
});

fuzz_target!(|input: (u8, &str)| {
    let (kind, text) = input;
    let grammar = match kind % 4 {
        0 => serde_json::from_str(text).ok().map(Grammar::JsonSchema),
        1 => Grammar::gbnf(text).ok(),
        2 => Some(Grammar::Lark(text.to_owned())),
        _ => Some(Grammar::Regex(text.to_owned())),
    };
    let Some(grammar) = grammar else { return };
    let (compiler, vocabulary) = &*COMPILER;
    let interrupt = Interrupt::at(Instant::now() + Duration::from_secs(2));
    let Ok(mut constraint) = compiler.compile_until(&grammar, &interrupt) else { return };
    for _ in 0..8 {
        let mut logits = vec![0.0; *vocabulary];
        if constraint.allow(&mut logits).is_err() {
            return;
        }
        let Some(token) = logits.iter().position(|logit| *logit == 0.0) else { return };
        if token == 2 || constraint.accept(token as u32).is_err() {
            return;
        }
    }
});
