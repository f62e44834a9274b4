//! Wrong calls are errors that say what is wrong.

use crate::codecs::layout;
use crate::model::{Activations, first_slot};
use kvant_attention::{AttendError, Attention, Scoring, StateErrorKind};
use kvant_cache::{Arena, CacheError, KvShape, Sequence, Slots};
use kvant_codec::Tier;
use std::sync::Arc;

#[test]
fn wrong_sizes_and_numbers_are_refused() {
    let a = Activations::new(10, 2, 2, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let slot = first_slot(&layout);
    let none =
        Slots::uniform(2, KvShape { kv_heads: 1, key_dim: 1, value_dim: 1, window: None }).kv(1).unwrap();
    let mut sequence = Sequence::new(layout, Arena::new());
    let mut attention = Attention::with_tier(Tier::Scalar);
    let mut out = vec![0.0; a.queries.len()];
    let plain = Scoring::new(1.0);
    let early = attention.attend(&sequence, slot, a.queries[..].into(), &plain, &mut out).unwrap_err();
    assert!(matches!(early.kind, StateErrorKind::Attend(AttendError::NoPass { layer: 0 })), "{early:?}");
    sequence.append(slot, &a.keys, &a.values).unwrap();
    let mut attend = |slot, queries: &[f32], scoring: &Scoring<'_>, out: &mut [f32]| {
        attention.attend(&sequence, slot, queries.into(), scoring, out).unwrap_err().to_string()
    };
    assert!(attend(none, &a.queries, &plain, &mut out).contains("slot 1 holds nothing"));
    assert!(attend(slot, &a.queries[1..], &plain, &mut out).contains("queries"));
    assert!(attend(slot, &a.queries[..480], &plain, &mut out).contains("evenly"));
    assert!(attend(slot, &a.queries, &plain, &mut out[1..]).contains("output"));
    let scoring = Scoring { sink_logits: Some(&[0.0]), ..plain };
    assert!(attend(slot, &a.queries, &scoring, &mut out).contains("sink logits"));
    for cap in [0.0, -1.0, f32::NAN] {
        assert!(
            attend(slot, &a.queries, &Scoring { soft_cap: Some(cap), ..plain }, &mut out)
                .contains("soft cap")
        );
    }
}

/// It said that the entry held only 0 tokens.
#[test]
fn attending_after_the_pass_has_ended_says_so() {
    let a = Activations::new(10, 2, 2, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let slot = first_slot(&layout);
    let mut sequence = Sequence::new(layout, Arena::new());
    sequence.append(slot, &a.keys, &a.values).unwrap();
    sequence.advance(10).unwrap();
    let mut out = vec![0.0; a.queries.len()];
    let mut attention = Attention::with_tier(Tier::Scalar);
    let late = attention.attend(&sequence, slot, a.queries[..].into(), &Scoring::new(1.0), &mut out);
    let message = late.unwrap_err().to_string();
    assert!(
        message.contains("nothing was appended to layer 0") && message.contains("has ended"),
        "{message}"
    );
}

/// It was accepted, and positions went on from there.
#[test]
fn advancing_over_more_than_was_appended_is_refused() {
    let a = Activations::new(300, 2, 2, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let mut sequence = Sequence::new(layout.clone(), Arena::new());
    sequence.append(first_slot(&layout), &a.keys, &a.values).unwrap();
    for tokens in [10_000, 301, 299, 0] {
        let message = sequence.advance(tokens).unwrap_err().to_string();
        assert!(message.contains(&format!("{tokens} tokens: 300 were appended to layer 0")), "{message}");
    }
    assert_eq!((sequence.advance(300), sequence.len()), (Ok(()), 300));
}

#[test]
fn numbers_that_cannot_be_stored_are_named_and_can_be_taken_back() {
    let a = Activations::new(100, 2, 1, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let mut sequence = Sequence::new(Arc::clone(&layout), Arena::new());
    let slot = first_slot(&layout);
    sequence.append(slot, &a.keys[..70 * 32], &a.values[..70 * 32]).unwrap();
    sequence.advance(70).unwrap();
    let mut broken = a.values[70 * 32..].to_vec();
    broken[5 * 32 + 17] = f32::NAN;
    let error = sequence.append(slot, &a.keys[70 * 32..], &broken).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, CacheError::Number { head: 1, position: 75, .. }), "{message}");
    assert!(message.contains("values of kv head 1, layer 0, at position 75: NaN"), "{message}");
    assert_eq!((sequence.abandon(), sequence.len()), (Ok(()), 70));
    sequence.append(slot, &a.keys[70 * 32..], &a.values[70 * 32..]).unwrap();
    sequence.advance(30).unwrap();
    let size = sequence.append(slot, &a.keys[..33], &a.values[..32]).unwrap_err().to_string();
    assert!(size.contains("keys: 33"), "{size}");
    let none =
        Slots::uniform(8, KvShape { kv_heads: 1, key_dim: 1, value_dim: 1, window: None }).kv(7).unwrap();
    assert!(sequence.append(none, &[], &[]).unwrap_err().to_string().contains("slot 7 holds nothing"));
}
