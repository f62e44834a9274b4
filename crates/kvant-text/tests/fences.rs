//! Words of users that a template could turn into control tokens.

use kvant_text::tokenizer::{Fence, GgufVocab, TokenKind, Tokenizer};

/// A vocabulary of bytes and some control tokens.
fn tokenizer() -> Tokenizer {
    let names = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>", "[TOOK]", "[INST]"];
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = names.iter().map(|name| (*name).to_owned()).chain(bytes).collect();
    let kind = |id: usize| match id {
        0 => TokenKind::Unknown,
        id if id < names.len() => TokenKind::Control,
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
    Tokenizer::from_gguf(&vocab).unwrap()
}

/// Control tokens of a text but for the first, which the vocabulary puts there.
fn controls(tokenizer: &Tokenizer, rendered: &str, fence: Fence) -> usize {
    let ids = tokenizer.encode_chat_fenced(rendered, fence).unwrap();
    ids.iter().skip(1).filter(|&&id| tokenizer.kind(id) == Some(TokenKind::Control)).count()
}

/// The Kelvin sign becomes a k, a long s an S, and a ligature two letters, when a template changes the letters of a text.
#[test]
fn letters_that_become_those_of_a_name_are_fenced() {
    let tokenizer = tokenizer();
    for text in [
        "[TOO\u{212a}]",
        "a [too\u{212a}] b",
        "[IN\u{17f}T]",
        "[in\u{fb05}]",
        "[\u{131}n\u{fb06}]",
        "é[INﬅ]ß",
        "[INST]",
        "[IN",
    ] {
        let fence = Fence::absent_from(text);
        let mut fenced = text.to_owned();
        tokenizer.fence(&mut fenced, fence, &[]);
        assert_eq!(fence.removed(&fenced), text, "nothing is lost");
        let changed = [fenced.clone(), fenced.to_lowercase(), fenced.to_uppercase()];
        let small_and_large = fenced.to_lowercase().to_uppercase();
        for written in changed.iter().chain([&small_and_large]) {
            assert_eq!(controls(&tokenizer, &format!("x{written}ST]"), fence), 0, "{text}: {written:?}");
        }
    }
}

/// For templates that write `<|{{ role }}|>`.
#[test]
fn a_role_in_the_middle_of_a_name_is_fenced_unless_it_is_a_usual_one() {
    let tokenizer = tokenizer();
    let controls = |role: &str| {
        let fence = Fence::absent_from(role);
        let mut fenced = role.to_owned();
        tokenizer.fence_role(&mut fenced, fence);
        assert_eq!(fence.removed(&fenced), role, "nothing is lost");
        controls(&tokenizer, &format!("<|{fenced}|>"), fence)
    };
    assert_eq!((controls("user"), controls("owner")), (1, 0));
    for role in ["endoftext", "|endoftext|", "<|endoftext|>", " endoftext", "endoftext|", "<|user|>"] {
        assert_eq!(controls(role), 0, "{role}");
    }
}
