//! Pages kept as files, which no change of this crate may change.

use super::agrees;
use super::reader::read;
use crate::case::{Case, SIDES, encoded};
use kvant_codec::format::{CodeMeaning, Linear, PageFormat};
use kvant_codec::{Rotation, Side, Tier};

const PRESETS: [&str; 5] = ["int4", "int8", "k8v4", "f16", "trellis3"];

/// The rows of `tests/fixtures/pages/README.md`, (tokens, dim).
fn rows(tokens: usize, dim: usize) -> Vec<f32> {
    let number = |t: usize, c: usize| {
        let draw = ((37 * t * t + 101 * c + 13 * t * c) % 257) as f32 - 128.0;
        draw / 32.0 * (1 + c % 5) as f32
    };
    (0..tokens * dim).map(|n| number(n / dim, n % dim)).collect()
}

fn fixture(preset: &str, side: Side, dim: usize) -> Vec<u8> {
    let word = match side {
        Side::Key => "key",
        Side::Value => "value",
    };
    let name = format!("tests/fixtures/pages/{preset}-{word}-{dim}.page");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
    std::fs::read(path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn kept_pages_are_encoded_to_the_byte() {
    for (preset, side) in PRESETS.into_iter().flat_map(|preset| SIDES.map(|side| (preset, side))) {
        for (dim, tier) in [64, 128].into_iter().flat_map(|dim| Tier::available().map(move |t| (dim, t))) {
            let codec = Case::new(preset, side, dim).codec(tier);
            let page = encoded(&*codec, &rows(codec.page_tokens(), dim));
            let (kept, place) = (fixture(preset, side, dim), format!("{preset}, {side:?}, {dim}, {tier}"));
            assert_eq!(page.len(), kept.len(), "{place}");
            let differs = page.iter().zip(&kept).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{place}: the first byte that differs");
            agrees(&*codec, &kept).unwrap_or_else(|e| panic!("{place}: {e}"));
        }
    }
}

/// The exact preset has no rounding to hide behind: what is read is what was encoded.
#[test]
fn kept_f16_pages_hold_their_rows() {
    for (side, dim) in SIDES.into_iter().flat_map(|side| [(side, 64), (side, 128)]) {
        let format = Case::new("f16", side, dim).best().format().unwrap();
        let read = read(&format, &fixture("f16", side, dim));
        let numbers: Vec<f32> = read.iter().flat_map(|x| &x.numbers).map(|x| *x as f32).collect();
        assert_eq!(numbers, rows(64, dim), "{side:?}, {dim}");
    }
}

/// The format of kept pages, spelled out: a reader that was written for these numbers keeps working.
#[test]
fn kept_pages_have_the_format_they_had() {
    let format = |side, dim| match Case::new("int4", side, dim).best().format() {
        Some(PageFormat::Packed(format)) => format,
        other => panic!("{other:?}"),
    };
    let key = format(Side::Key, 128);
    assert_eq!((key.channel_scale.clone(), key.channel_zero.clone()), (Some(0..256), Some(256..512)));
    assert_eq!((key.token_scale.clone(), key.token_zero.clone()), (None, None));
    assert_eq!((key.coded, key.groups, key.bytes), (128, 1, 4608));
    let spans: Vec<_> = key.spans.iter().map(|s| (s.first, s.len, s.bits, s.group, s.codes)).collect();
    assert_eq!(spans, [(0, 128, 4, 0, 512)]);
    assert_eq!(key.spans[0].meaning, CodeMeaning::WithZero);
    assert_eq!(key.basis.linear, Linear::Rotation { kind: Rotation::Identity, seed: 0 });
    let value = format(Side::Value, 128);
    assert_eq!((value.channel_scale.clone(), value.channel_zero.clone()), (None, None));
    assert_eq!((value.token_scale.clone(), value.token_zero.clone()), (Some(0..512), None));
    assert_eq!((value.coded, value.groups, value.bytes), (128, 4, 4608));
    let spans: Vec<_> = value.spans.iter().map(|s| (s.first, s.len, s.bits, s.group, s.codes)).collect();
    assert_eq!(spans, [(0, 32, 4, 0, 512), (32, 32, 4, 1, 1536), (64, 32, 4, 2, 2560), (96, 32, 4, 3, 3584)]);
    assert!(value.spans.iter().all(|span| span.meaning == CodeMeaning::Shifted));
    assert_eq!(value.basis.linear, Linear::Rotation { kind: Rotation::Srht, seed: 0 });
    assert!(value.basis.lambda.is_empty() && value.basis.mean.is_empty());
}
