//! Real codecs at real shapes, on every instruction set.

use crate::model::{Activations, Run, taken};
use crate::oracle;
use kvant_attention::Scoring;
use kvant_cache::{CacheLayout, KvShape, Policy, Slots};
use kvant_codec::Tier;
use std::sync::Arc;

/// A policy and how far its kernels may be from the decoded pages, in units of the outputs' root mean square. Queries and
/// weights are rounded to one byte against codes of up to 4 bits, to two against wider ones.
pub const POLICIES: [(&str, f64); 17] = [
    ("f32", 1e-5),
    ("f16", 1e-5),
    ("bf16", 1e-5),
    ("int8", 1e-3),
    ("int4", 6e-2),
    ("k8v4", 6e-2),
    ("tq3", 6e-2),
    ("srft8", 1e-3),
    ("k=ch4:p128,v=rot4g32", 6e-2),
    ("k=f16:p32,v=sym8:p128", 1e-3),
    ("k=ch8,v=f16;recent=100;sinks=0", 1e-3),
    ("int4;heads 0:k=f16;sinks=9", 6e-2),
    ("k=turbo3,v=polar4", 6e-2),
    ("k=delta4,v=nf4", 6e-2),
    ("k=qjl1,v=iq4_nl", 6e-2),
    ("k=polar3,v=turbo4", 1e-4),
    ("kivi2", 6e-2),
];

pub const DIMS: [usize; 9] = [48, 64, 72, 80, 96, 128, 192, 256, 512];
pub const GROUPS: [usize; 5] = [1, 3, 4, 7, 8];

pub fn layout(policy: &str, a: &Activations, window: Option<usize>, tier: Tier) -> Arc<CacheLayout> {
    let policy: Policy = policy.parse().unwrap();
    let shape = KvShape { kv_heads: a.kv_heads, key_dim: a.key_dim, value_dim: a.value_dim, window };
    Arc::new(CacheLayout::with_tier(&policy, &Slots::uniform(1, shape), tier).unwrap())
}

#[test]
fn real_codecs_attend_as_their_decoded_pages_do() {
    let mut turn = 0;
    for dim in DIMS {
        for (policy, bound) in POLICIES {
            turn += 1;
            if !taken(turn) || (dim > 128 && !turn.is_multiple_of(3)) {
                continue;
            }
            let group = GROUPS[turn % GROUPS.len()];
            let tokens = [68, 140, 200][turn % 3];
            let a = Activations::new(tokens, 1 + turn % 2, group, dim, dim, turn as u64);
            let scoring = Scoring { soft_cap: turn.is_multiple_of(4).then_some(20.0), ..Scoring::new(1.0) };
            let window = turn.is_multiple_of(5).then_some(90);
            // Every tier writes the same bytes, so one oracle serves them all.
            let expected =
                oracle::attend(&layout(policy, &a, window, Tier::available().last().unwrap()), &a, &scoring);
            for tier in Tier::available().filter(|tier| *tier != Tier::Scalar || dim <= 64) {
                let layout = layout(policy, &a, window, tier);
                let out = Run::new(&layout, tier, &a, scoring).read(tokens, &[tokens - 20, 7, 1]);
                let far = oracle::row_distance(&out, &expected, dim);
                assert!(far < bound, "{policy}, d={dim}, group {group}, {tokens} tokens, {tier}: {far}");
            }
        }
    }
}

/// A page whose weights cannot count is left out, and the answer stays what it was; a threshold leaves out more.
#[test]
fn pages_without_weight_are_left_out() {
    let mut a = Activations::new(400, 1, 2, 64, 64, 5);
    // One loud key per page near the end; the rest far below.
    for (t, key) in a.keys.chunks_exact_mut(64).enumerate() {
        let size = if t % 64 == 10 { 40.0 } else { 0.01 };
        key.iter_mut().for_each(|x| *x = x.abs() * size);
    }
    a.queries.iter_mut().for_each(|x| *x = x.abs());
    let tier = Tier::available().last().unwrap();
    for (policy, bound) in [("f16", 3e-4), ("int8", 2e-2)] {
        let all = layout(policy, &a, None, tier);
        let expected = oracle::attend(&all, &a, &Scoring::new(1.0));
        let run = |layout| Run::new(layout, tier, &a, Scoring::new(1.0)).read(400, &[400]);
        assert!(oracle::distance(&run(&all), &expected) < bound, "{policy}");
        let some = layout(&format!("{policy};sparse-v=1e-3"), &a, None, tier);
        let sparse = run(&some);
        assert!(oracle::distance(&sparse, &expected) < 0.2, "{policy}");
        assert_ne!(sparse, run(&all), "{policy}: a threshold of 1e-3 leaves something out");
    }
}
