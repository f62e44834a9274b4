use super::*;
use crate::slot::KvShape;
use kvant_codec::PRESETS;
use proptest::prelude::*;

fn fault(text: &str) -> (usize, String) {
    let error = text.parse::<Policy>().expect_err(text);
    (error.position(), error.reason().to_owned())
}

#[test]
fn the_last_clause_that_names_a_head_counts() {
    let policy: Policy = "int4;layers 0,2-3:k=f16;layers 2 heads 1:int8;heads 0:v=f32".parse().unwrap();
    let name = |layer, head, side| policy.spec(layer, head, side).to_string();
    assert_eq!(name(0, 1, Side::Key), "f16");
    assert_eq!(name(1, 1, Side::Key), "ch4");
    assert_eq!(name(2, 1, Side::Key), "ch8");
    assert_eq!(name(2, 1, Side::Value), "sym8g32");
    assert_eq!(name(2, 0, Side::Key), "f16");
    assert_eq!(name(2, 0, Side::Value), "f32");
    assert_eq!(name(3, 1, Side::Value), "rot4g32");
}

#[test]
fn errors_point_at_what_is_wrong() {
    for (text, position, word) in [
        ("int5", 0, "no codec `int5`"),
        ("int4;", 5, "nothing follows"),
        ("int4;layers 0-1", 5, "layers 0-1: k=CODEC"),
        ("int4;layers x:k=f16", 12, "a number"),
        ("int4;layers 3-1:k=f16", 12, "empty"),
        ("int4;layers 0-1:k=f17", 18, "no codec `f17`"),
        ("int4;layers 0-1: v=f17", 19, "no codec `f17`"),
        ("int4;layers 0-1:k=f16,v=f17", 24, "no codec `f17`"),
        ("int4;layers 0-1:", 16, "a codec is missing"),
        ("int4;sinks=many", 11, "a number"),
        ("int4;sinks=33", 11, "at most 32"),
        ("int4;sparse-v=1", 14, "below 1"),
        ("int4;sparse-v=nan", 14, "below 1"),
        ("int4;sparse-v=0", 14, "above 0"),
        ("int4;sparse-v=-1e-3", 14, "above 0"),
        ("int4;state=fp8", 11, "f32, bf16 or int8"),
        ("int4;tokens 1:k=f16", 5, "after `;`"),
    ] {
        let (at, reason) = fault(text);
        assert_eq!(at, position, "{text}: {reason}");
        assert!(reason.contains(word), "{text}: {reason}");
    }
    let picture = "int4;layers 0-: k=f16".parse::<Policy>().unwrap_err().to_string();
    assert!(picture.ends_with(&format!("\n  {:14}^", "")), "{picture}");
}

#[test]
fn clauses_for_layers_that_are_not_there_are_refused() {
    let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
    let slots = Slots::uniform(3, shape);
    let check = |text: &str| text.parse::<Policy>().unwrap().check(&slots);
    assert_eq!(check("int4;layers 0-2 heads 1:k=f16"), Ok(()));
    let message = check("int4;layers 1-3:k=f16").unwrap_err().to_string();
    assert!(message.contains("layers 1-3:k=f16") && message.contains("layer 3"), "{message}");
    assert!(check("int4;heads 2:k=f16").is_err());
}

fn codecs() -> impl Strategy<Value = KvSpec> {
    let names: Vec<&str> =
        PRESETS.iter().map(|preset| preset.name).chain(["f16", "tq3", "srft4:g64,lambda"]).collect();
    prop::sample::select(names).prop_map(|name| name.parse().unwrap())
}

fn ranges() -> impl Strategy<Value = Vec<RangeInclusive<usize>>> {
    prop::collection::vec((0usize..40, 0usize..9).prop_map(|(start, more)| start..=start + more), 0..3)
}

fn clauses() -> impl Strategy<Value = Clause> {
    (ranges(), ranges(), codecs(), 0..3)
        .prop_filter("a clause names something", |(layers, heads, ..)| {
            !layers.is_empty() || !heads.is_empty()
        })
        .prop_map(|(layers, heads, spec, which)| Clause {
            layers,
            heads,
            key: (which != 1).then_some(spec.key),
            value: (which != 0).then_some(spec.value),
        })
}

proptest! {
    #[test]
    fn what_is_printed_parses_back(
        base in codecs(), sinks in 0usize..=32, recent in 0usize..500,
        sparse in prop::option::of(1e-12f32..0.999), list in prop::collection::vec(clauses(), 0..4),
    ) {
        let policy = Policy {
            rule: ExactWindow { sinks, recent, ..ExactWindow::default() },
            sparse_v: sparse.map(|p| SparseV::try_from(p).unwrap()),
            clauses: list,
            ..base.into()
        };
        prop_assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z0-9:;,= -]{0,40}|\\PC{0,20}") {
        if let Err(error) = text.parse::<Policy>() {
            prop_assert!(error.position() <= text.len());
            let _ = error.to_string();
        }
    }
}
