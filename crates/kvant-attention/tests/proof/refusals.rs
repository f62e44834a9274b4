//! Wrong calls are errors that say what is wrong.

use crate::codecs::layout;
use crate::model::Activations;
use kvant_attention::{AttendError, Attention, Scoring};
use kvant_cache::{Arena, CacheError, Sequence};
use kvant_codec::Tier;
use std::sync::Arc;

#[test]
fn wrong_sizes_and_numbers_are_refused() {
    let a = Activations::new(10, 2, 2, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let mut sequence = Sequence::new(layout, Arena::new());
    let mut attention = Attention::with_tier(Tier::Scalar);
    let mut out = vec![0.0; a.queries.len()];
    let plain = Scoring::new(1.0);
    let early = attention.attend(&sequence, 0, &a.queries, &plain, &mut out);
    assert!(matches!(early, Err(AttendError::Ahead { .. })), "{early:?}");
    sequence.append(0, &a.keys, &a.values).unwrap();
    let mut attend = |entry, queries: &[f32], scoring: &Scoring<'_>, out: &mut [f32]| {
        attention.attend(&sequence, entry, queries, scoring, out).unwrap_err().to_string()
    };
    assert!(attend(1, &a.queries, &plain, &mut out).contains("no entry 1"));
    assert!(attend(0, &a.queries[1..], &plain, &mut out).contains("queries"));
    assert!(attend(0, &a.queries[..480], &plain, &mut out).contains("evenly"));
    assert!(attend(0, &a.queries, &plain, &mut out[1..]).contains("output"));
    let scoring = Scoring { sink_logits: Some(&[0.0]), ..plain };
    assert!(attend(0, &a.queries, &scoring, &mut out).contains("sink logits"));
    for cap in [0.0, -1.0, f32::NAN] {
        assert!(
            attend(0, &a.queries, &Scoring { soft_cap: Some(cap), ..plain }, &mut out).contains("soft cap")
        );
    }
    assert!(
        attend(0, &a.queries, &Scoring { sparse_v: Some(-1.0), ..plain }, &mut out).contains("threshold")
    );
}

#[test]
fn numbers_that_cannot_be_stored_are_named_and_can_be_taken_back() {
    let a = Activations::new(100, 2, 1, 16, 16, 1);
    let layout = layout("int4", &a, None, Tier::Scalar);
    let mut sequence = Sequence::new(Arc::clone(&layout), Arena::new());
    sequence.append(0, &a.keys[..70 * 32], &a.values[..70 * 32]).unwrap();
    sequence.advance(70);
    let mut broken = a.values[70 * 32..].to_vec();
    broken[5 * 32 + 17] = f32::NAN;
    let error = sequence.append(0, &a.keys[70 * 32..], &broken).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, CacheError::Number { head: 1, position: 75, .. }), "{message}");
    assert!(message.contains("values of kv head 1, entry 0, at position 75: NaN"), "{message}");
    assert_eq!(sequence.truncate(sequence.len()), Ok(70));
    sequence.append(0, &a.keys[70 * 32..], &a.values[70 * 32..]).unwrap();
    sequence.advance(30);
    let size = sequence.append(0, &a.keys[..33], &a.values[..32]).unwrap_err().to_string();
    assert!(size.contains("keys: 33"), "{size}");
    assert!(sequence.append(7, &[], &[]).unwrap_err().to_string().contains("no entry 7"));
}
