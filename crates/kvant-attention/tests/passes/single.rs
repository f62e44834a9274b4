//! The cache of one sequence: capacity, policies, and what it says of itself.

use crate::model::{HEADS, KV_HEADS, Toy, WIDTH, bits};
use kvant_attention::{CacheFull, KvCache};
use kvant_cache::{KvShape, Policy, Slots};

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

#[test]
fn a_policy_that_cannot_be_had_is_refused_by_name() {
    let slots = Slots::uniform(2, KvShape { kv_heads: 3, key_dim: 64, value_dim: 32, window: None });
    let error = KvCache::new(policy("klt"), &slots, 8).err().unwrap().to_string();
    assert!(error.contains("klt") && error.contains("plan"), "{error}");
    let layers = KvCache::new(policy("int4;layers 2:k=f16"), &slots, 8).err().unwrap().to_string();
    assert!(layers.contains("layer 2"), "{layers}");
}

#[test]
fn capacity_is_kept_and_what_is_held_can_be_repeated_and_cut() {
    let toy = Toy::new(None);
    let mut cache = KvCache::new(policy("f32"), &toy.slots, 150).unwrap();
    for chunk in [100, 1, 40] {
        toy.read(&mut cache, 3, chunk);
    }
    // Two slots hold, the third is a view.
    assert_eq!((cache.len(), cache.bytes()), (141, 141 * 2 * 2 * 32 * 4));
    let full = toy.pass(&mut cache, &[3], &[10], |_, _| {}).unwrap_err();
    assert_eq!(full.kind, CacheFull { held: 141, asked: 10, capacity: 150 }.into());
    assert!(cache.fill(151).is_err());
    cache.fill(150).unwrap();
    assert_eq!((cache.len(), cache.capacity()), (150, 150));
    // 141 lies in the third page, whose rows are exact; 100 in the second, which starts at 68.
    assert_eq!((cache.truncate(141), cache.truncate(100)), (141, 68));
    let empty = KvCache::new(policy("f32"), &toy.slots, 150).unwrap().fill(10).unwrap_err().to_string();
    assert!(empty.contains("nothing to repeat"), "{empty}");
}

/// With a sink logit that takes nearly all weight, hardly anything is left of the values.
#[test]
fn sink_logits_take_part_in_the_softmax() {
    use kvant_attention::{PassState, Scoring};
    let toy = Toy::new(None);
    let slot = toy.slots.kv(0).unwrap();
    let rows = [0.5; 16 * KV_HEADS];
    let attend = |logits: Option<&[f32]>| {
        let mut cache = toy.cache("f32", None);
        cache.begin(&[1]).unwrap();
        cache.append(slot, &rows, &rows).unwrap();
        let mut out = [0.0; 16 * HEADS];
        let scoring = Scoring { sink_logits: logits, ..Scoring::new(0.0) };
        cache.attend(slot, [0.5; 16 * HEADS][..].into(), &scoring, &mut out).unwrap();
        out
    };
    assert_eq!(attend(None), [0.5; 16 * HEADS]);
    // Softmax over (0, ln 3): a quarter for the token.
    let shared = attend(Some(&[3f32.ln(); HEADS]));
    assert!(shared.iter().all(|x| (x - 0.125).abs() < 1e-6), "{shared:?}");
}

/// A layer that reads another's slot gets what it would get from a slot of its own with the same rows.
#[test]
fn a_view_reads_what_its_owner_holds() {
    let toy = Toy::new(Some(90));
    let mut cache = toy.cache("int4", None);
    let all = toy.read(&mut cache, 1, 200);
    let mut again = toy.cache("int4", None);
    let mut cut = toy.read(&mut again, 1, 120);
    cut.extend(toy.read(&mut again, 1, 80));
    assert_eq!(bits(&all), bits(&cut));
    assert!(all.chunks_exact(WIDTH).all(|row| row[2 * 64..] != row[64..2 * 64]));
    let view = toy.slots.kv(2).unwrap();
    assert_eq!(cache.sequence().slot_len(view), 200);
}
