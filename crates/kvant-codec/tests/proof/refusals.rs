//! What is refused, with which words, and what must come back exactly.

use crate::case::{Case, PARTS, SIDES, decoded, encoded, follows};
use crate::random::{Kind, Random};
use kvant_codec::{
    Accumulator, BuildError, Calibration, CodecError, Dense, KvSpec, PageCodec, Query, Side, Tier,
};
use std::sync::Arc;

fn build(
    part: &str,
    side: Side,
    dim: usize,
    calibration: &Calibration,
) -> Result<Box<dyn PageCodec>, BuildError> {
    let spec: KvSpec = part.parse().unwrap();
    spec.side(side).build_with(side, dim, calibration, Tier::select().unwrap())
}

#[test]
fn nan_and_infinity_are_refused_by_name() {
    for side in SIDES {
        for case in Case::all(side, 72) {
            let codec = case.best();
            let mut rows = Kind::Gaussian.rows(codec.page_tokens(), 72, &mut Random::new(1));
            for (token, channel, bad) in
                [(0, 0, f32::NAN), (5, 71, f32::INFINITY), (31, 40, f32::NEG_INFINITY)]
            {
                let at = token * 72 + channel;
                let good = std::mem::replace(&mut rows[at], bad);
                let error = codec.encode(&rows, &mut vec![0; codec.page_bytes()]).unwrap_err();
                rows[at] = good;
                let CodecError::NotFinite { token: t, channel: c, value } = &error else {
                    panic!("{case:?}: {error}");
                };
                assert_eq!((*t, *c, value.to_bits()), (token, channel, bad.to_bits()), "{case:?}");
                let text = error.to_string();
                assert!(
                    text.contains(&format!("token {token}")) && text.contains(&format!("channel {channel}")),
                    "{text}"
                );
            }
            // The last number of the page, too.
            *rows.last_mut().unwrap() = f32::NAN;
            assert!(codec.encode(&rows, &mut vec![0; codec.page_bytes()]).is_err(), "{case:?}");
        }
    }
}

#[test]
fn zero_vectors_are_exact() {
    for side in SIDES {
        for case in Case::all(side, 80).filter(|case| !case.spec.options.mean) {
            let codec = case.best();
            let rows = Kind::ZeroTokens.rows(codec.page_tokens(), 80, &mut Random::new(2));
            let zeros = vec![0.0; rows.len()];
            assert_eq!(decoded(&*codec, &encoded(&*codec, &zeros)), zeros, "{case:?}");
            // Among others they are exact where they have a scale of their own and are not told by their neighbours.
            if case.twin().is_none_or(|twin| twin.per_token)
                && !["delta", "trellis"].contains(&case.spec.family.name)
            {
                let back = decoded(&*codec, &encoded(&*codec, &rows));
                assert!(
                    back.chunks_exact(80).step_by(2).all(|row| row.iter().all(|x| *x == 0.0)),
                    "{case:?}"
                );
            }
        }
    }
}

#[test]
fn constant_channels_are_exact_under_channel_zeros() {
    for side in SIDES {
        for part in ["ch1", "ch2", "ch4", "ch5", "ch8", "ch4:s32,p32"] {
            let case = Case::new(part, side, 64);
            let codec = case.best();
            // Numbers that binary16 has: zeros, subnormals, its largest, thirds of nothing.
            let constants = [0.0, -0.0, 1.0, -2.5, 6.0e-8, -65504.0, 65504.0, 0.333_251_95];
            let mut rows = Kind::Gaussian.rows(codec.page_tokens(), 64, &mut Random::new(3));
            let constant: Vec<usize> = (0..64).filter(|c| c % 3 == 0).collect();
            for row in rows.chunks_exact_mut(64) {
                for c in &constant {
                    row[*c] = half::f16::from_f32(constants[c % 8]).to_f32();
                }
            }
            let back = decoded(&*codec, &encoded(&*codec, &rows));
            for (row, back) in rows.chunks_exact(64).zip(back.chunks_exact(64)) {
                for c in &constant {
                    assert_eq!(back[*c], row[*c], "{case:?}, channel {c}");
                }
            }
        }
    }
}

#[test]
fn scales_beyond_binary16_are_refused_and_s32_takes_them() {
    for part in
        PARTS.iter().filter(|part| !part.starts_with('f') && !part.starts_with("bf") && !part.contains("s32"))
    {
        for side in SIDES {
            let case = Case::new(part, side, 64);
            let codec = case.best();
            let rows: Vec<f32> = Kind::Gaussian
                .rows(codec.page_tokens(), 64, &mut Random::new(4))
                .iter()
                .map(|x| x * 1e8)
                .collect();
            let error = codec.encode(&rows, &mut vec![0; codec.page_bytes()]).unwrap_err();
            assert_eq!(error, CodecError::OutOfRange { format: "f16" }, "{case:?}");
            assert!(error.to_string().contains("s32"));
            let separator = if part.contains(':') { "," } else { ":" };
            let case = Case::new(&format!("{part}{separator}s32"), side, 64);
            let codec = case.best();
            let page = encoded(&*codec, &rows);
            follows(&case, &rows, &page, &decoded(&*codec, &page))
                .unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
    let codec = Case::new("f16", Side::Key, 64).best();
    let mut rows = vec![65519.99; 64 * 64];
    assert!(encoded(&*codec, &rows).len() == 8192);
    rows[77] = -65520.0;
    assert_eq!(codec.encode(&rows, &mut [0; 8192]), Err(CodecError::OutOfRange { format: "f16" }));
}

/// A bug once: lanes past the last channel read what the thread's scratch held from the page before.
#[test]
fn a_page_is_not_refused_for_what_was_encoded_before_it() {
    let large = Case::new("ch4:s32", Side::Key, 512).best();
    encoded(&*large, &vec![1e20; 64 * 512]);
    for part in ["ch4", "ch8:sym", "ch3:lm", "chg4", "klt"] {
        for dim in [8, 24, 40, 56, 72] {
            let codec = Case::new(part, Side::Key, dim).best();
            encoded(&*codec, &Kind::Gaussian.rows(codec.page_tokens(), dim, &mut Random::new(7)));
        }
    }
}

/// Numbers at the ends of f32: a page is refused, or all tiers write the same finite page.
#[test]
fn the_ends_of_f32_never_make_a_page_that_is_not_finite() {
    for part in [
        "rot4:s32",
        "srft4:s32",
        "srft8:lambda,s32",
        "asym4:s32",
        "ch4:s32",
        "ch4:sym,s32",
        "tq3:s32",
        "chg4:s32",
        "klt:s32",
        "sym8:s32",
        "max4:s32",
        "f32",
        "bf16",
    ] {
        for (side, size) in SIDES
            .into_iter()
            .flat_map(|side| [3.4e38, 1e37, 1e36, 1e35, 1e34, 1e-36, 1e-38, 1e-41, 1e-45].map(|x| (side, x)))
        {
            let case = Case::new(part, side, 64);
            let codec = case.codec(Tier::Scalar);
            let mut random = Random::new(5);
            let rows: Vec<f32> = (0..codec.page_tokens() * 64)
                .map(|n| match n % 7 {
                    0 => 0.0,
                    // Mixed signs, some tokens all of one sign.
                    _ => (size * if (n / 64) % 3 == 0 { 1.0 } else { random.unit() * 2.0 - 1.0 }) as f32,
                })
                .collect();
            let mut page = vec![0; codec.page_bytes()];
            let verdict = codec.encode(&rows, &mut page);
            for tier in Tier::available() {
                let mut other = vec![0; codec.page_bytes()];
                assert_eq!(case.codec(tier).encode(&rows, &mut other), verdict, "{case:?}, {size:e}, {tier}");
                assert!(verdict.is_err() || other == page, "{case:?}, {size:e}, {tier}: other bytes");
            }
            if verdict.is_ok() {
                let worst = rows
                    .iter()
                    .zip(decoded(&*codec, &page))
                    .map(|(x, y)| f64::from(x - y).abs())
                    .fold(0.0, f64::max);
                // Channels without bits are off by up to the mean that was taken away.
                let mean = if case.spec.options.mean { 8.0 } else { 0.0 };
                assert!(
                    worst.is_finite() && worst <= 8.0 * size + 1e-36 + mean,
                    "{case:?}, {size:e}: off by {worst:e}"
                );
            } else {
                assert!(size > 1e30, "{case:?}: {size:e} refused");
            }
        }
    }
}

#[test]
fn buffers_of_the_wrong_size_are_refused_by_name() {
    for (case, what) in SIDES.into_iter().flat_map(|side| {
        ["ch4", "rot4g32", "tq3", "f16", "turbo3", "polar4", "delta4", "trellis3"]
            .map(|part| (Case::new(part, side, 64), part))
    }) {
        let codec = case.best();
        let (tokens, bytes) = (codec.page_tokens(), codec.page_bytes());
        let (rows, page) = (vec![1.0; tokens * 64], vec![0; bytes]);
        let named = |result: Result<(), CodecError>, name: &str| {
            let error = result.expect_err(what);
            assert!(matches!(&error, CodecError::Size { what, .. } if *what == name), "{what}: {error}");
        };
        named(codec.encode(&rows[1..], &mut page.clone()), "rows");
        named(codec.encode(&rows, &mut page[1..].to_vec()), "page");
        named(codec.encode(&rows, &mut vec![0; bytes + 1]), "page");
        named(codec.decode(&page[1..], &mut rows.clone()), "page");
        named(codec.decode(&page, &mut rows[1..].to_vec()), "rows");
        let mut query = Query::new();
        assert!(matches!(
            codec.prepare(&[0.0; 65], &mut query),
            Err(CodecError::NotWhole { got: 65, dim: 64, .. })
        ));
        codec.prepare(&[0.0; 128], &mut query).unwrap();
        named(codec.scores(&query, &page[1..], &mut vec![0.0; 2 * tokens]), "page");
        named(codec.scores(&query, &page, &mut vec![0.0; 2 * tokens + 1]), "scores");
        let mut sums = Accumulator::new(2, 64);
        named(codec.accumulate(&vec![0.0; 2 * tokens], &page[1..], &mut sums), "page");
        named(codec.accumulate(&vec![0.0; tokens], &page, &mut sums), "weights");
        named(codec.finish(&sums, &mut [0.0; 127]), "output");
        for mut foreign in [Accumulator::new(2, 128), Accumulator::new(2, 32)] {
            let refused = Err(CodecError::ForeignSums { heads: 2, dim: 64 });
            assert_eq!(codec.accumulate(&vec![0.0; 2 * tokens], &page, &mut foreign), refused);
            assert_eq!(codec.finish(&foreign, &mut [0.0; 128]), refused);
        }
    }
}

/// A query is in its codec's basis and rounded for its codec's widths: nobody else may use it.
#[test]
fn queries_of_other_codecs_are_refused() {
    let keys = [
        "ch4",
        "ch8",
        "sym4:token",
        "rot4g32",
        "srft4",
        "rot4g32:seed=1",
        "sym8g32",
        "f16",
        "turbo3",
        "turbo4",
        "delta4",
    ];
    let codecs = keys.map(|part| Case::new(part, Side::Key, 64).best());
    for (i, from) in codecs.iter().enumerate() {
        let mut query = Query::new();
        from.prepare(&[1.0; 64], &mut query).unwrap();
        for (j, to) in codecs.iter().enumerate() {
            let verdict = to.scores(&query, &vec![0; to.page_bytes()], &mut [0.0; 64]);
            let want = if i == j { Ok(()) } else { Err(CodecError::Unprepared) };
            assert_eq!(verdict, want, "{} to {}", keys[i], keys[j]);
        }
    }
    for (codec, side) in [("ch4", Side::Key), ("ch4", Side::Value), ("f16", Side::Key), ("f16", Side::Value)]
    {
        let codec = Case::new(codec, side, 64).best();
        let verdict = codec.scores(&Query::new(), &vec![0; codec.page_bytes()], &mut [0.0; 64]);
        assert_eq!(verdict, Err(CodecError::Unprepared));
    }
}

#[test]
fn dimensions_out_of_range_are_refused() {
    for side in SIDES {
        for part in ["f32", "f16", "ch4", "rot4g32", "tq3", "srft4", "turbo3", "polar4", "delta4", "trellis3"]
        {
            for dim in [0, 1025, 4096] {
                let error = build(part, side, dim, &Calibration::default()).err().expect(part);
                assert!(matches!(error, BuildError::Dim { dim: d, .. } if d == dim), "{part}: {error}");
                assert!(error.to_string().contains("1024"), "{error}");
            }
            assert!(build(part, side, 1024, &Calibration::default()).is_ok(), "{part}");
        }
        for part in ["srft4", "turbo3:srft", "polar4:srft", "delta4:srft"] {
            let error = build(part, side, 65, &Calibration::default()).err().unwrap();
            assert!(error.to_string().contains("even") && error.to_string().contains("SRHT"), "{error}");
        }
        assert!(build("rot4g32", side, 65, &Calibration::default()).is_ok());
    }
}

#[test]
fn combinations_without_meaning_are_refused() {
    for (part, hint) in [
        ("ch4:chg32", "asymmetric zero"),
        ("ch1:sym", "width"),
        ("sym8:lm", "width"),
        ("asym1:max", "width"),
        ("uniform4:chg32", "asymmetric zero"),
        ("delta4:ch", "g32"),
    ] {
        let error = build(part, Side::Key, 64, &Calibration::default()).err().expect(part);
        assert!(
            matches!(error, BuildError::Combination { .. }) && error.to_string().contains(hint),
            "{part}: {error}"
        );
    }
}

#[test]
fn plans_that_are_missing_or_do_not_fit_are_refused() {
    for (part, missing) in [
        ("srft4:lambda", "λ"),
        ("rot4:mean", "mean"),
        ("klt", "widths"),
        ("rot4:balanced", "balanced"),
        ("srft4:scaled", "scales learned"),
        ("srft4:cayley", "basis learned"),
        ("sym4:householder", "basis learned"),
    ] {
        let error = build(part, Side::Key, 64, &Calibration::default()).err().expect(part);
        assert!(
            matches!(error, BuildError::Uncalibrated { .. }) && error.to_string().contains(missing),
            "{error}"
        );
    }
    let identity =
        |dim: usize| (0..dim * dim).map(|n| f32::from(u8::from(n / dim == n % dim))).collect::<Vec<_>>();
    let good = Calibration {
        mean: Some(vec![0.0; 64]),
        lambda: Some(vec![1.0; 64]),
        basis: Some(Arc::new(Dense::new(64, identity(64), identity(64)).unwrap())),
        widths: Some(vec![8, 6, 5, 4, 3, 2, 1, 0]),
    };
    let small = Arc::new(Dense::new(32, identity(32), identity(32)).unwrap());
    let list = |x: f32| Some((0..64).map(|c| if c == 9 { x } else { 1.0 }).collect::<Vec<f32>>());
    let widths = |widths: &[u8]| Calibration { widths: Some(widths.to_vec()), ..good.clone() };
    assert!(build("klt", Side::Key, 64, &good).is_ok());
    assert!(build("srft4:lambda,mean", Side::Key, 64, &good).is_ok());
    assert!(build("rot4:mean,balanced", Side::Key, 64, &good).is_ok());
    let both = build("srft4:lambda,balanced", Side::Key, 64, &good).err().unwrap().to_string();
    assert!(both.contains("use one of them"), "{both}");
    for learned in ["scaled", "cayley", "householder"] {
        assert!(build(&format!("srft4:mean,{learned}"), Side::Key, 64, &good).is_ok());
        for other in ["lambda", "balanced"] {
            let both = build(&format!("srft4:{other},{learned}"), Side::Key, 64, &good).err().unwrap();
            assert!(both.to_string().contains("use one of them"), "{both}");
        }
    }
    for (part, calibration, hint) in [
        ("srft4:lambda", Calibration { lambda: Some(vec![1.0; 63]), ..good.clone() }, "per channel"),
        ("srft4:lambda", Calibration { lambda: list(0.0), ..good.clone() }, "positive"),
        ("srft4:lambda", Calibration { lambda: list(-1.0), ..good.clone() }, "positive"),
        ("srft4:lambda", Calibration { lambda: list(f32::NAN), ..good.clone() }, "positive"),
        ("srft4:lambda", Calibration { lambda: list(1e-40), ..good.clone() }, "positive"),
        ("rot4:mean", Calibration { mean: Some(vec![0.0; 65]), ..good.clone() }, "per channel"),
        ("rot4:mean", Calibration { mean: list(f32::INFINITY), ..good.clone() }, "finite"),
        ("klt", Calibration { basis: Some(small.clone()), ..good.clone() }, "dimension"),
        ("rot4:balanced", Calibration { basis: Some(small.clone()), ..good.clone() }, "dimension"),
        ("srft4:cayley", Calibration { basis: Some(small.clone()), ..good.clone() }, "dimension"),
        ("srft4:scaled", Calibration { lambda: list(0.0), ..good.clone() }, "positive"),
        ("klt", widths(&[4; 7]), "8 needed"),
        ("klt", widths(&[4; 9]), "8 needed"),
        ("klt", widths(&[8, 7, 6, 5, 4, 3, 2, 1]), "7 bits"),
        ("klt", widths(&[9, 6, 6, 5, 4, 3, 2, 1]), "9 bits"),
        ("klt", widths(&[4, 4, 4, 4, 4, 4, 4, 5]), "increase"),
        ("klt", widths(&[0; 8]), "at least one bit"),
    ] {
        let error = build(part, Side::Key, 64, &calibration).err().expect(hint);
        assert!(
            matches!(error, BuildError::Calibration { .. }) && error.to_string().contains(hint),
            "{hint}: {error}"
        );
    }
    assert!(Dense::new(2, vec![1.0; 4], vec![1.0; 4]).is_err());
    assert!(Dense::new(2, vec![1.0; 3], vec![1.0; 4]).is_err());
    assert!(Dense::new(1, vec![f32::NAN], vec![1.0]).is_err());
}
