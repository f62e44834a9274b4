//! The same bits, however the work was cut.

use crate::codecs::{DIMS, GROUPS, POLICIES, layout};
use crate::model::{Activations, Run, at_most, bits, taken};
use kvant_attention::Scoring;
use kvant_codec::Tier;
use kvant_threads::Pool;
use proptest::prelude::*;

fn scoring(turn: usize) -> Scoring<'static> {
    Scoring { soft_cap: turn.is_multiple_of(4).then_some(15.0), ..Scoring::new(0.7) }
}

/// Some policies leave out values.
fn sparse(policy: &str, turn: usize) -> String {
    format!("{policy}{}", if turn.is_multiple_of(3) { ";sparse-v=1e-3" } else { "" })
}

#[test]
fn neither_chunks_nor_threads_change_a_bit() {
    let mut turn = 0;
    for dim in DIMS {
        for (policy, _) in POLICIES {
            turn += 1;
            // Long enough for several segments, so that they are shared between threads.
            let tokens = if dim <= 64 { 1050 } else { 150 };
            if !taken(turn) || !turn.is_multiple_of(if dim <= 64 { 2 } else { 3 }) {
                continue;
            }
            let a =
                Activations::new(tokens, 1 + turn % 2, GROUPS[turn % GROUPS.len()], dim, dim, turn as u64);
            let window = turn.is_multiple_of(3).then_some(200);
            for tier in Tier::available()
                .filter(|tier| *tier != Tier::Scalar || (dim == 72 && turn.is_multiple_of(4)))
            {
                let layout = layout(&sparse(policy, turn), &a, window, tier);
                let whole = Run::new(&layout, tier, &a, scoring(turn)).read(tokens, &[tokens]);
                let last = bits(&whole[whole.len() - a.heads() * dim..]);
                for (threads, sizes) in [(1, vec![1, 64, 5]), (2, vec![tokens]), (3, vec![tokens - 1, 1])] {
                    // One by one takes long; the last token alone is decoding.
                    let start = if sizes[0] == 1 { tokens - 80 } else { 0 };
                    let out = Pool::new(threads).install(|| {
                        let mut run = Run::new(&layout, tier, &a, scoring(turn));
                        run.read(start, &[300, 17]);
                        run.read(tokens, &sizes)
                    });
                    let from = start * a.heads() * dim;
                    assert_eq!(
                        bits(&out),
                        bits(&whole[from..]),
                        "{policy}, d={dim}, {threads} threads, {sizes:?}, {tier}"
                    );
                    assert_eq!(bits(&out[out.len() - a.heads() * dim..]), last);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(at_most(24))]
    #[test]
    fn any_chunks_give_the_same_bits(
        policy in prop::sample::select(&POLICIES[..]),
        group in prop::sample::select(&GROUPS[..]),
        chunks in prop::collection::vec(1usize..200, 1..5),
        window in prop::option::of(1usize..250),
        tokens in 1usize..600,
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let tier = Tier::available().last().unwrap();
        let a = Activations::new(tokens, 2, group, 16, 24, seed);
        let layout = layout(&sparse(policy.0, tokens), &a, window, tier);
        let whole = Run::new(&layout, tier, &a, scoring(tokens)).read(tokens, &[tokens]);
        let cut = Pool::new(threads)
            .install(|| Run::new(&layout, tier, &a, scoring(tokens)).read(tokens, &chunks));
        prop_assert_eq!(bits(&whole), bits(&cut));
    }
}
