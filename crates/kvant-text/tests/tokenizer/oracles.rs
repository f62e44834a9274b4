//! The encoders against a few naive lines that do the same, and decoding against encoding.

use std::collections::HashMap;
use std::sync::LazyLock;

use kvant_text::tokenizer::{GgufVocab, TokenKind, Tokenizer, Utf8Stream};
use proptest::prelude::*;

use crate::vocabularies::{PLAIN, SPECIAL, probe, released, sentence, spell, tokenizer};

static QWEN2: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(&released("qwen2")));

/// Joins the best neighbours until none join: `rank` is lower for better, the leftmost of equals wins.
fn join(mut parts: Vec<String>, rank: impl Fn(&str, &str) -> Option<f64>) -> Vec<String> {
    loop {
        let mut best: Option<(f64, usize)> = None;
        for i in 1..parts.len() {
            if let Some(r) = rank(&parts[i - 1], &parts[i])
                && best.is_none_or(|(b, _)| r < b)
            {
                best = Some((r, i));
            }
        }
        let Some((_, i)) = best else { return parts };
        let right = parts.remove(i);
        parts[i - 1].push_str(&right);
    }
}

fn chars(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}

/// A naive byte-level BPE for text that no rule splits.
struct NaiveBpe {
    ids: HashMap<String, u32>,
    ranks: HashMap<String, f64>,
}

impl NaiveBpe {
    fn new(vocab: &GgufVocab) -> Self {
        let ids = vocab.tokens.iter().cloned().zip(0..).collect();
        let ranks = vocab.merges.iter().cloned().zip((0..).map(f64::from)).collect();
        Self { ids, ranks }
    }

    fn encode(&self, word: &str) -> Vec<u32> {
        let rank = |a: &str, b: &str| self.ranks.get(&format!("{a} {b}")).copied();
        join(chars(&spell(word)), rank).iter().map(|part| self.ids[part]).collect()
    }
}

/// A naive SentencePiece BPE for text without control or user-defined tokens.
fn naive_sentence(vocab: &GgufVocab, text: &str) -> Vec<u32> {
    let piece = |text: &str| {
        vocab.tokens.iter().position(|t| t == text).filter(|&id| {
            matches!(vocab.kinds[id], TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
        })
    };
    let rank = |a: &str, b: &str| piece(&format!("{a}{b}")).map(|id| -f64::from(vocab.scores[id]));
    let byte = |b: u8| vocab.tokens.iter().position(|t| *t == format!("<0x{b:02X}>")).unwrap() as u32;
    let spelled = text.replace(' ', "▁");
    let parts = join(chars(&spelled), rank);
    parts
        .iter()
        .flat_map(|part| piece(part).map_or_else(|| part.bytes().map(byte).collect(), |id| vec![id as u32]))
        .collect()
}

/// Text that looks like what tokenizers get wrong.
fn awkward() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<char>().prop_map(String::from),
        prop::sample::select(vec![
            " ",
            "  ",
            "    ",
            "\n",
            "\r\n",
            "\t",
            "'s",
            "'LL",
            "don't",
            "123",
            "3.14",
            "the",
            "The",
            "日本",
            "한",
            "مر",
            "👩‍👩‍👧",
            "🇩🇪",
            "e\u{301}",
            "<|im_end|>",
            "<|",
            "|>",
            "_",
            "...",
            "\u{a0}",
            "\u{3000}",
            "\u{0}",
            "Ġ",
            "▁",
        ])
        .prop_map(String::from),
        "[a-zA-Z]{1,12}",
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn byte_level_text_comes_back(text in awkward()) {
        let ids = QWEN2.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(&QWEN2.decode(&ids).unwrap(), &text);
        prop_assert!(ids.iter().all(|&id| QWEN2.kind(id) != Some(TokenKind::Control)));
        let mut stream = Utf8Stream::new();
        let mut streamed: String = ids.iter().map(|&id| stream.push(QWEN2.text_bytes(id).unwrap())).collect();
        streamed.push_str(&stream.finish());
        prop_assert_eq!(streamed, text);
    }

    #[test]
    fn arbitrary_text_comes_back(text in any::<String>()) {
        let ids = QWEN2.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(QWEN2.decode(&ids).unwrap(), text);
    }

    #[test]
    fn bpe_is_the_naive_one(word in "[a-zA-Zé中]{1,40}") {
        static NAIVE: LazyLock<NaiveBpe> = LazyLock::new(|| NaiveBpe::new(&released("qwen2")));
        prop_assert_eq!(QWEN2.encode(&word, PLAIN).unwrap(), NAIVE.encode(&word));
    }

    #[test]
    fn bpe_with_many_overlapping_merges_is_the_naive_one(word in "[aBsé中か]{1,60}") {
        static PROBE: LazyLock<(Tokenizer, NaiveBpe)> = LazyLock::new(|| {
            let vocab = probe("gpt-2");
            (tokenizer(&vocab), NaiveBpe::new(&vocab))
        });
        prop_assert_eq!(PROBE.0.encode(&word, PLAIN).unwrap(), PROBE.1.encode(&word));
    }

    #[test]
    fn sentencepiece_is_the_naive_one(text in prop_oneof![
        "[ab]{0,40}",
        "[ aéthein.!=0-4]{0,40}",
        " {0,30}[a▁日本語👍x\u{301}]{0,10} {0,9}",
        "[^\n<]{0,20}",
    ]) {
        static SENTENCE: LazyLock<(Tokenizer, GgufVocab)> = LazyLock::new(|| {
            let vocab = sentence(false);
            (tokenizer(&vocab), vocab)
        });
        let ids = SENTENCE.0.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(&ids, &naive_sentence(&SENTENCE.1, &text));
        prop_assert_eq!(SENTENCE.0.decode(&ids).unwrap(), text.replace('▁', " "));
    }

    #[test]
    fn sentencepiece_takes_its_own_space_away(text in "[ a-z日]{0,30}") {
        static SENTENCE: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(&sentence(true)));
        let ids = SENTENCE.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(SENTENCE.decode(&ids).unwrap(), text);
    }
}

#[test]
fn control_tokens_are_text_unless_asked_for() {
    let end = QWEN2.eos().unwrap();
    assert_eq!(QWEN2.token_name(end).unwrap(), "<|im_end|>");
    assert!(!QWEN2.encode("<|im_end|>", PLAIN).unwrap().contains(&end));
    assert_eq!(QWEN2.encode("<|im_end|>", SPECIAL).unwrap(), [end]);
    assert_eq!(QWEN2.decode(&[end]).unwrap(), "");
}

#[test]
fn a_template_that_writes_the_first_token_does_not_get_two() {
    let tokenizer = tokenizer(&sentence(false));
    let once = tokenizer.encode_chat("<s>ab").unwrap();
    assert_eq!(once, tokenizer.encode_chat("ab").unwrap());
    assert_eq!(once.iter().filter(|&&id| id == 1).count(), 1);
}

#[test]
fn a_long_run_of_spaces_is_encoded_or_refused_but_never_unsplit() {
    let encode = |spaces: usize| QWEN2.encode(&format!("{}a 12", " ".repeat(spaces)), PLAIN);
    let tail = QWEN2.encode(" a 12", PLAIN).unwrap();
    assert!(encode(499_999).unwrap().ends_with(&tail));
    assert!(encode(600_000).unwrap_err().to_string().contains("white-space"));
}
