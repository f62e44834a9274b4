//! Vocabularies that contradict themselves are refused with a reason, not a panic.

use kvant_text::tokenizer::{GgufVocab, HfFiles, TokenKind, Tokenizer};

use crate::vocabularies::{PLAIN, probe, sentence};

fn refusal(vocab: GgufVocab) -> String {
    Tokenizer::from_gguf(&vocab).err().expect("this vocabulary must be refused").to_string()
}

fn broken(base: GgufVocab, change: impl FnOnce(&mut GgufVocab)) -> String {
    let mut vocab = base;
    change(&mut vocab);
    refusal(vocab)
}

#[test]
fn families_that_are_not_implemented_are_named() {
    for model in ["t5", "rwkv", "plamo2", ""] {
        assert!(broken(sentence(true), |v| v.model = model.into()).contains(&format!("`{model}`")));
    }
    assert!(broken(probe("gpt-2"), |v| v.pre = Some("my-own".into())).contains("`my-own`"));
    let nameless = |v: &mut GgufVocab| (v.model, v.unknown) = ("bert".into(), None);
    assert!(broken(sentence(true), nameless).contains("[UNK]"));
}

#[test]
fn an_absent_pre_tokenizer_is_the_default_one() {
    let vocab = GgufVocab { pre: None, ..probe("default") };
    assert!(Tokenizer::from_gguf(&vocab).unwrap().guesses_splits());
    assert!(!Tokenizer::from_gguf(&probe("default")).unwrap().guesses_splits());
}

#[test]
fn lists_must_agree() {
    assert!(broken(sentence(true), |v| v.tokens.clear()).contains("empty"));
    assert!(broken(sentence(true), |v| v.scores.truncate(9)).contains("scores has 9 entries"));
    assert!(broken(sentence(true), |v| v.kinds.truncate(9)).contains("token_type has 9 entries"));
    assert!(broken(sentence(true), |v| v.scores.clear()).contains("scores is missing"));
    assert!(broken(sentence(true), |v| v.scores[7] = f32::NAN).contains("scores[7]"));
    assert!(broken(probe("gpt-2"), |v| v.merges.clear()).contains("merges is missing"));
}

#[test]
fn ids_must_name_tokens() {
    assert!(broken(sentence(true), |v| v.bos = Some(u32::MAX)).contains("bos_token_id is 4294967295"));
    assert!(broken(sentence(true), |v| v.eot = Some(100_000)).contains("eot_token_id is 100000"));
}

#[test]
fn merges_must_join_tokens() {
    for merge in ["", "lonely", "a nosuchtoken", "nosuchtoken a", "aBs aBs"] {
        let message = broken(probe("gpt-2"), |v| v.merges[3] = merge.into());
        assert!(message.contains("merges[3]"), "{message}");
    }
}

#[test]
fn tokens_must_differ() {
    assert!(broken(probe("gpt-2"), |v| v.tokens[300] = "a".into()).contains("are both `a`"));
    assert!(broken(sentence(true), |v| v.tokens[300] = "ab".into()).contains("are both `ab`"));
}

#[test]
fn byte_tokens_must_name_a_byte() {
    let message = broken(sentence(true), |v| v.kinds[400] = TokenKind::Byte);
    assert!(message.contains("token 400 is marked as a byte"), "{message}");
}

#[test]
fn text_without_bytes_or_unknown_token_is_refused() {
    let vocab = GgufVocab {
        model: "llama".into(),
        tokens: vec!["a".into()],
        scores: vec![0.0],
        kinds: vec![TokenKind::Normal],
        add_space_prefix: Some(false),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let encode = |text| tokenizer.encode(text, PLAIN);
    assert_eq!(encode("aa").unwrap(), [0, 0]);
    assert!(encode("ab").unwrap_err().to_string().contains("byte 0x62"));
    assert_eq!(tokenizer.decode(&[0]).unwrap(), "a");
    assert!(tokenizer.decode(&[1]).unwrap_err().to_string().contains("token id 1"));
    assert!(tokenizer.token_name(1).is_none());
}

#[test]
fn broken_tokenizer_json_is_refused() {
    let model = r#"{"type":"BPE","vocab":{"a":0,"b":1},"merges":MERGES}"#;
    let file = |merges: &str, decoder: &str| {
        format!(
            r#"{{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
                "decoder":{decoder},"model":{}}}"#,
            model.replace("MERGES", merges)
        )
    };
    let refusal = |text: &str| {
        Tokenizer::from_hf(HfFiles { tokenizer: text, ..HfFiles::default() }).err().expect(text).to_string()
    };
    let byte_level =
        r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}"#;
    assert!(refusal("{").starts_with("tokenizer.json: "));
    assert!(refusal("{}").starts_with("tokenizer.json: "));
    let word_piece = r#"{"type":"WordPiece","prefix":"@@","cleanup":true}"#;
    assert!(
        refusal(&file("[]", word_piece)).contains("`WordPiece`"),
        "continued words are spelled with ## alone"
    );
    assert!(refusal(&file(r#"["a b"]"#, byte_level)).contains("merges[0]"));
    assert!(refusal(&file("[[\"a\"]]", byte_level)).contains("merges[0]"));
    assert!(refusal(&file("[7]", byte_level)).contains("merges[0]"));
}
