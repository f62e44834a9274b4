//! Grammars that once ended the whole program: the compiler calls itself for every rule, reference and property, on a thread whose
//! stack had no room for that. Each is refused by a bound now, and what is just within the bound compiles, on any thread.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_engine::Constraint;
use kvant_engine::grammar::{Grammar, GrammarCompiler, GrammarConstraint, GrammarError};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Less than any program gives its threads.
const SMALL_STACK: usize = 512 << 10;

fn tokenizer() -> Tokenizer {
    Tokenizer::of(&Checkpoint::from_gguf(Gguf::from_bytes(tiny::model_bytes(true)).unwrap())).unwrap()
}

/// Compiles on a small thread of its own, and computes the first mask.
fn compile(grammar: Grammar) -> Result<GrammarConstraint, GrammarError> {
    let work = move || {
        let tokenizer = tokenizer();
        let mut constraint = GrammarCompiler::new(&tokenizer)?.compile(&grammar)?;
        let mut logits = vec![0.0; tokenizer.vocab_len()];
        constraint.allow(&mut logits).unwrap();
        assert!(logits.iter().any(|logit| logit.is_finite()));
        Ok(constraint)
    };
    std::thread::Builder::new().stack_size(SMALL_STACK).spawn(work).unwrap().join().unwrap()
}

#[track_caller]
fn refused(grammar: Grammar, reason: &str) {
    let error = compile(grammar).err().expect("beyond a bound").to_string();
    assert!(error.contains(reason), "{error}");
}

#[track_caller]
fn compiles(grammar: Grammar) {
    if let Err(error) = compile(grammar) {
        panic!("{error}");
    }
}

fn lark_chain(rules: usize) -> Grammar {
    let rule = |number: usize| format!("r{number}: \"(\" r{} \")\"\n", number + 1);
    let rules: String = (1..rules - 1).map(rule).collect::<String>() + &format!("r{}: \"x\"\n", rules - 1);
    Grammar::Lark(format!("start: r1\n{rules}"))
}

#[test]
fn a_chain_of_lark_rules_overflows_no_stack() {
    compiles(lark_chain(1000));
    compiles(lark_chain(4096));
    refused(lark_chain(4097), "4097 rules; 4096 are the most");
}

#[test]
fn a_chain_of_terminals_overflows_no_stack() {
    let chain = |count: usize| {
        let rule = |number: usize| format!("T{number}: \"a\" T{}?\n", number + 1);
        let rules = (1..count - 1).map(rule).collect::<String>();
        Grammar::Lark(format!("start: T1\n{rules}T{}: \"x\"\n", count - 1))
    };
    compiles(chain(1000));
    refused(chain(5000), "5000 rules; 4096 are the most");
}

/// Recursive, so that it is not written as one expression.
fn gbnf_chain(rules: usize) -> Grammar {
    let rule = |number: usize| format!("r{number} ::= \"(\" r{} \")\"\n", number + 1);
    let rules: String = (1..rules - 1).map(rule).collect::<String>();
    let last = format!("r{} ::= \"x\" root?\n", rules.lines().count() + 1);
    Grammar::gbnf(&format!("root ::= r1\n{rules}{last}")).unwrap()
}

#[test]
fn a_chain_of_gbnf_rules_overflows_no_stack() {
    compiles(gbnf_chain(1000));
    compiles(gbnf_chain(4096));
    refused(gbnf_chain(5000), "5000 rules; 4096 are the most");
}

#[test]
fn gbnf_rules_of_nested_groups_overflow_no_stack() {
    let (open, close) = ("(".repeat(23), ")".repeat(23));
    let rule = |number: usize| format!("r{number} ::= {open} \"a\" | r{} {close}\n", number + 1);
    let text = format!("root ::= r1\n{}r99 ::= \"x\"\n", (1..99).map(rule).collect::<String>());
    let read = std::thread::Builder::new().stack_size(SMALL_STACK).spawn(move || Grammar::gbnf(&text));
    compiles(read.unwrap().join().unwrap().unwrap());
}

#[test]
fn nested_brackets_of_lark_overflow_no_stack() {
    let nested = |depth: usize| {
        Grammar::Lark(format!("start: a{}x{}\na: \"b\"\nx: \"y\"\n", "{a".repeat(depth), "}".repeat(depth)))
    };
    // Templates are read, and not supported.
    let error = compile(nested(128)).err().unwrap().to_string();
    assert!(!error.contains("are the most"), "{error}");
    refused(nested(129), "129 brackets inside each other; 128 are the most");
    refused(nested(200_000), "128 are the most");
    // What is text, an expression, a comment or JSON does not count.
    let quiet = "((((:".repeat(1000);
    let schema = json!({"const": "(:".repeat(3000)});
    compiles(Grammar::Lark(format!(
        "# {quiet}\nstart: (a | b) // {quiet}\na: \"{quiet}\"\nb: %json {schema}\n   | /\\({{200}}[:\\/\"]x/\n"
    )));
}

/// Definitions of which each leads to the next by what `link` makes of a reference.
fn reference_chain(length: usize, link: impl Fn(Value) -> Value) -> Grammar {
    let name = |number: usize| format!("#/$defs/d{number}");
    let one = |number: usize| (format!("d{number}"), link(json!({"$ref": name(number + 1)})));
    let mut definitions: Map<String, Value> = (0..length - 1).map(one).collect();
    definitions.insert(format!("d{}", length - 1), json!({"type": "integer"}));
    Grammar::JsonSchema(json!({"$ref": name(0), "$defs": definitions}))
}

#[test]
fn a_chain_of_references_overflows_no_stack() {
    compiles(reference_chain(1000, |next| next));
    compiles(reference_chain(4000, |next| next));
    refused(reference_chain(5000, |next| next), "levels with what its references lead to; 8192 are the most");
}

#[test]
fn arrays_within_referenced_arrays_overflow_no_stack() {
    let array = |next: Value| json!({"type": "array", "items": next});
    compiles(reference_chain(1000, array));
    compiles(reference_chain(2700, array));
    refused(reference_chain(10_000, array), "levels with what its references lead to; 8192 are the most");
    // Also where references name what they lead to otherwise than by its path.
    let anchored: Map<String, Value> = (0..5000)
        .map(|number| {
            let next = json!({"$ref": format!("#a{}", number + 1)});
            (format!("d{number}"), json!({"$anchor": format!("a{number}"), "type": "array", "items": next}))
        })
        .collect();
    refused(Grammar::JsonSchema(json!({"$ref": "#a0", "$defs": anchored})), "8192 are the most");
}

fn object(properties: usize, are_required: bool) -> Grammar {
    let names: Vec<String> = (0..properties).map(|number| format!("p{number}")).collect();
    let fields: Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
    let required = if are_required { names } else { Vec::new() };
    Grammar::JsonSchema(json!({"type": "object", "properties": fields, "required": required}))
}

#[test]
fn thousands_of_required_properties_overflow_no_stack() {
    compiles(object(4096, true));
    refused(object(8000, true), "8000 properties in one object; 4096 are the most");
    let names: Vec<String> = (0..8000).map(|number| format!("p{number}")).collect();
    refused(
        Grammar::JsonSchema(json!({"type": "object", "required": names})),
        "8000 required properties in one object; 4096 are the most",
    );
}

#[test]
fn thousands_of_optional_properties_overflow_no_stack() {
    refused(object(7000, false), "7000 properties in one object; 4096 are the most");
    compiles(object(900, false));
}

#[test]
fn alternatives_that_meet_each_other_are_counted() {
    let pair = |number: usize| json!({"anyOf": [{"const": number}, {"type": "string", "maxLength": number}]});
    let all = |count: usize| Grammar::JsonSchema(json!({"allOf": (1..=count).map(pair).collect::<Vec<_>>()}));
    compiles(all(8));
    refused(all(24), "alternatives in one part; 65536 are the most");
    // Behind references too.
    let names: Vec<Value> = (1..=24).map(|n| json!({"$ref": format!("#/$defs/d{n}")})).collect();
    let definitions: Map<String, Value> = (1..=24).map(|n| (format!("d{n}"), pair(n))).collect();
    refused(Grammar::JsonSchema(json!({"allOf": names, "$defs": definitions})), "65536 are the most");
}

#[test]
fn megabytes_are_refused_by_their_bytes() {
    let long = "x".repeat(1 << 20);
    refused(Grammar::Lark(format!("start: \"{long}\"")), "bytes; 1048576 are the most");
    refused(Grammar::Regex(format!("{long}y")), "1048577 bytes; 1048576 are the most");
    refused(Grammar::JsonSchema(json!({"const": long})), "bytes; 1048576 are the most");
}

/// Patterns with automata of exponential size, all for one text.
#[test]
fn patterns_for_one_text_are_bounded() {
    let all = |count: usize| {
        let pattern = |i: usize| json!({"pattern": format!("^(a|b)*a(a|b){{{i}}}$")});
        let parts: Vec<Value> = (0..count).map(pattern).collect();
        Grammar::JsonSchema(json!({"type": "string", "allOf": parts}))
    };
    refused(all(30), "30 patterns for one text; 4 are the most");
    refused(all(5), "5 patterns for one text");
    // By reference, and beside alternatives.
    let two = json!({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]});
    let schema = json!({"$defs": {"two": two}, "type": "string", "pattern": "c", "$ref": "#/$defs/two",
        "anyOf": [{"pattern": "d"}, {"allOf": [{"pattern": "e"}, {"format": "date"}]}]});
    refused(Grammar::JsonSchema(schema), "5 patterns for one text");
    compiles(Grammar::JsonSchema(json!({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]})));
}
