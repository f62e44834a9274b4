//! encode and decode against the twin.

use crate::case::{Case, DIMS, PARTS, SIDES, decoded, encoded, follows, taken, taken_of_many};
use crate::random::{Kind, Random};
use proptest::prelude::*;

/// Encodes and decodes one page, and checks both with the formulas.
fn check(case: &Case, kind: Kind, seed: u64) -> Result<(), String> {
    let codec = case.best();
    let rows = kind.rows(codec.page_tokens(), case.dim, &mut Random::new(seed));
    let page = encoded(&*codec, &rows);
    let decoded = decoded(&*codec, &page);
    follows(case, &rows, &page, &decoded).map_err(|e| format!("{case:?}, {kind:?}, seed {seed}: {e}"))
}

/// Every codec at every dimension, the kinds of data taking turns.
#[test]
fn every_codec_follows_its_formula_at_every_dimension() {
    let mut turn = 0;
    for dim in DIMS {
        for side in SIDES {
            for case in Case::all(side, dim) {
                // The largest dimensions cost the twin most, and differ only in their transforms.
                turn += 1;
                let small = dim < 192 || turn % 4 == 0;
                if taken_of_many(turn) && (small || (dim == 576 && case.spec.to_string().starts_with("srft")))
                {
                    check(&case, Kind::ALL[turn % Kind::ALL.len()], turn as u64)
                        .unwrap_or_else(|e| panic!("{e}"));
                }
            }
        }
    }
}

/// No head has such dimensions, but the padding of a page must not depend on luck.
#[test]
fn odd_dimensions_are_padded_correctly() {
    for dim in [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 33, 50, 100, 1024] {
        if dim == 1024 && !taken(dim) {
            continue;
        }
        for side in SIDES {
            for part in [
                "ch4",
                "rot4g32",
                "asym3g16",
                "tq3",
                "chg4",
                "sym8g32",
                "f16",
                "srft4:token",
                "iq4",
                "qjl1",
                "turbo3",
                "polar4",
                "delta4",
            ] {
                // An SRFT needs an even length, and a uniformly random rotation d³ operations to make.
                if (dim % 2 == 1 && part.starts_with("srft"))
                    || (dim > 512 && ["qjl1", "turbo3"].contains(&part))
                {
                    continue;
                }
                check(&Case::new(part, side, dim), Kind::Gaussian, dim as u64)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_codec_follows_its_formula(
        part in prop::sample::select(&PARTS[..]),
        side in prop::sample::select(&SIDES[..]),
        dim in prop::sample::select(&DIMS[..7]),
        kind in prop::sample::select(&Kind::ALL[..]),
        seed in any::<u64>(),
    ) {
        check(&Case::new(part, side, dim), kind, seed).map_err(TestCaseError::fail)?;
    }
}
