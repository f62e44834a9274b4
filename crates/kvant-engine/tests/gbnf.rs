//! Grammars in GBNF: exactly the texts that they say, held against definitions in Rust.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_engine::Constraint;
use kvant_engine::grammar::{Grammar, GrammarCompiler, GrammarConstraint};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_text::tokenizer::{TokenKind, Tokenizer};

fn tokenizer() -> Tokenizer {
    Tokenizer::of(&Checkpoint::from_gguf(Gguf::from_bytes(tiny::model_bytes(true)).unwrap())).unwrap()
}

/// The token of one character.
fn token(tokenizer: &Tokenizer, character: char) -> u32 {
    let mut bytes = [0; 4];
    let wanted = character.encode_utf8(&mut bytes).as_bytes();
    let is_it = |id: &u32| {
        matches!(tokenizer.kind(*id), Some(TokenKind::Normal | TokenKind::Byte))
            && tokenizer.text_bytes(*id).is_ok_and(|text| text == wanted)
    };
    let found = (0..tokenizer.vocab_len() as u32).find(is_it);
    found.unwrap_or_else(|| panic!("the vocabulary has no {character:?}"))
}

/// Whether a text can be written and can end there.
fn accepts(tokenizer: &Tokenizer, mut constraint: GrammarConstraint, text: &str) -> bool {
    let mut is_allowed = |token: u32| {
        let mut logits = vec![0.0; tokenizer.vocab_len()];
        constraint.allow(&mut logits).unwrap();
        let is_allowed = logits[token as usize] == 0.0;
        if is_allowed {
            constraint.accept(token).unwrap();
        }
        is_allowed
    };
    let ends = tokenizer.end_of_generation();
    text.chars()
        .map(|character| token(tokenizer, character))
        .chain(ends.first().copied())
        .all(&mut is_allowed)
}

/// All texts of these characters up to a length.
fn all_texts(characters: &str, most: usize) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut last = texts.clone();
    for _ in 0..most {
        last = last
            .iter()
            .flat_map(|text| characters.chars().map(move |character| format!("{text}{character}")))
            .collect();
        texts.extend_from_slice(&last);
    }
    texts
}

/// Holds a grammar against a definition on every text of these characters up to a length.
#[track_caller]
fn holds(grammar: &str, characters: &str, most: usize, is_text: impl Fn(&str) -> bool) {
    let tokenizer = tokenizer();
    let made = Grammar::gbnf(grammar).unwrap();
    let first = GrammarCompiler::new(&tokenizer).unwrap().compile(&made).unwrap();
    let mut both = [0, 0];
    for text in all_texts(characters, most) {
        let expected = is_text(&text);
        assert_eq!(
            accepts(&tokenizer, first.clone(), &text),
            expected,
            "{text:?} by {grammar:?} as {made:?}"
        );
        both[usize::from(expected)] += 1;
    }
    assert!(both.iter().all(|&count| count > 0), "the texts tell nothing about {grammar:?}");
}

#[test]
fn a_grammar_without_recursion_takes_its_texts_and_no_others() {
    holds("root ::= \"ab\" | \"b\"? [a-b]", "ab", 3, |text| ["ab", "a", "b", "ba", "bb"].contains(&text));
    // A lexeme as long as it can be would leave nothing for the end.
    holds("root ::= [a-b]* \"ab\"", "ab", 5, |text| text.ends_with("ab"));
    holds("root ::= [^a]{2,3}", "abc", 4, |text| !text.contains('a') && [2, 3].contains(&text.len()));
    holds("root ::= (\"a\" | \"bc\"){2}", "abc", 4, |text| ["aa", "abc", "bca", "bcbc"].contains(&text));
    holds("root ::= \"ab\"+ x\nx ::= | \"c\"", "abc", 5, |text| {
        let rest = text.trim_end_matches('c');
        !rest.is_empty() && text.len() - rest.len() < 2 && rest.replace("ab", "").is_empty()
    });
    holds("root ::= .{2}", "a\nb", 3, |text| text.len() == 2);
}

#[test]
fn a_grammar_with_recursion_takes_its_texts_and_no_others() {
    let is_palindrome = |text: &str| text.chars().eq(text.chars().rev());
    holds("root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?", "ab", 5, is_palindrome);
    let is_balanced = |text: &str| {
        let depths: Vec<i32> = text
            .chars()
            .scan(0, |depth, character| {
                *depth += if character == 'a' { 1 } else { -1 };
                Some(*depth)
            })
            .collect();
        depths.iter().all(|&depth| depth >= 0) && depths.last().is_none_or(|&depth| depth == 0)
    };
    holds("root ::= pair*\npair ::= \"a\" pair* \"b\" # and again", "ab", 6, is_balanced);
    // On the left as well, and where a longer text begins as a shorter one.
    holds("root ::= root \"a\" | \"b\"", "ab", 4, |text| {
        text.strip_prefix('b').is_some_and(|rest| rest.chars().all(|next| next == 'a'))
    });
    holds("root ::= \"ab\" \"c\" | \"a\" \"ba\" | \"c\" root", "abc", 4, |text| {
        ["abc", "aba"].contains(&text.trim_start_matches('c'))
    });
}

#[test]
fn llama_cpps_notation_is_read() {
    // Names with hyphens and capitals, comments, groups over several lines, a bar on the next line, escapes.
    let grammar = r#"
# what may be said
root   ::= (
    First-Part
    tail
) # and no more
First-Part ::= "a" "\x62" | "\"" "\\"
    | [\u0063] [\-\]\[^]
tail ::= "\n"? "a"{0,1}
"#;
    holds(grammar, "abc\"\\-]\n", 3, |text| {
        let text = text.strip_suffix('a').filter(|rest| rest.chars().count() >= 2).unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        ["ab", "\"\\", "c-", "c]", "c[", "c^"].contains(&text)
    });
    // The grammar of JSON values that is handed around.
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;
    let tokenizer = tokenizer();
    let first = GrammarCompiler::new(&tokenizer).unwrap().compile(&Grammar::gbnf(json).unwrap()).unwrap();
    for (text, expected) in [
        (r#"{"a": [1, -2.5e3, "b\n\u00e9"], "c": {"d": null}}"#, true),
        ("{}", true),
        (r#"{"a": true, }"#, false),
        (r#"{"a": 1"#, false),
        (r#"["a"]"#, false),
        (r#"{"a": 01}"#, false),
    ] {
        assert_eq!(accepts(&tokenizer, first.clone(), text), expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(40), ")".repeat(40));
    for (grammar, words) in [
        ("root ::= other", "line 1: the rule `other` is not defined"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: the rule `root` is defined twice"),
        ("start ::= \"a\"", "there is no rule `root`"),
        ("root ::= \"a", "line 1: a text in quotes has no end"),
        ("root ::= [a", "no `]`"),
        ("root ::= [z-a]", "is empty"),
        ("root ::= []", "is empty"),
        ("root ::= (\"a\"", "`)` is expected, but the grammar ends"),
        ("root ::= \"a\"{2,1}", "smaller"),
        ("root ::= \"a\"{3000}", "3000 repetitions"),
        ("root ::= \"a\"{,2}", "a number is expected"),
        ("root ::= \"\\q\"", "the escape `\\q` is unknown"),
        ("root ::= \"\\ud800\"", "there is no character 0xd800"),
        ("root ::= <think> \"a\"", "tokens in `<>` are not supported"),
        ("root = \"a\"", "`::=` is expected after `root`"),
        ("root ::= \"a\" )", "should end here, but there is ')'"),
        ("", "there is no rule `root`"),
        (&deep, "nested deeper"),
    ] {
        let error = Grammar::gbnf(grammar).unwrap_err().to_string();
        assert!(error.contains(words), "{grammar:?}: {error}");
    }
}

#[test]
fn the_notation_is_told_by_the_text() {
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    let of = |text: &str| Grammar::written(text.to_owned()).unwrap();
    assert_eq!(of("root ::= \"a\""), lark("start: /a/\n"));
    assert_eq!(of("start: \"a\""), lark("start: \"a\""));
    assert_eq!(of("%llguidance {}\nstart: \"a\""), lark("start: \"a\""));
}

#[test]
fn many_rules_that_double_do_not_become_one_endless_expression() {
    let mut grammar = "root ::= r0\n".to_owned();
    for number in 0..40 {
        grammar += &format!("r{number} ::= r{} r{}\n", number + 1, number + 1);
    }
    grammar += "r40 ::= \"a\"";
    let Grammar::Lark(text) = Grammar::gbnf(&grammar).unwrap() else { panic!("Lark's notation") };
    assert!(text.len() < 10_000, "{} bytes", text.len());
}
