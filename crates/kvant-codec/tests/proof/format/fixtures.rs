//! Pages kept as files, which no change of this crate may change.

use super::agrees;
use super::reader::read;
use crate::case::{Case, SIDES, encoded};
use kvant_codec::format::{CodeMeaning, Linear, PageFormat};
use kvant_codec::{Rotation, Side, Tier};

/// Presets whose pages are frozen.
const PRESETS: [&str; 4] = ["int4", "int8", "k8v4", "f16"];

/// FNV-1a over all kept pages of frozen presets.
const FROZEN: u64 = 0x0271_10bb_dc5e_7aa6;

const DIMS: [usize; 3] = [64, 80, 128];

/// Tokens that pages hold: all 64, or so many, the last of which stands for those that are not there.
const HELD: [usize; 2] = [64, 19];

/// The rows of `tests/fixtures/pages/README.md`, (tokens, dim).
fn rows(tokens: usize, held: usize, dim: usize) -> Vec<f32> {
    let number = |t: usize, c: usize| {
        let draw = ((37 * t * t + 101 * c + 13 * t * c) % 257) as f32 - 128.0;
        draw / 32.0 * (1 + c % 5) as f32
    };
    (0..tokens * dim).map(|n| number((n / dim).min(held - 1), n % dim)).collect()
}

/// A kept page. One that is not there is written if `KVANT_WRITE_PAGES` is set; one that is there is never changed.
fn fixture(preset: &str, side: Side, dim: usize, held: usize) -> Vec<u8> {
    let word = match side {
        Side::Key => "key",
        Side::Value => "value",
    };
    let part = if held < 64 { format!("-{held}") } else { String::new() };
    let name = format!("tests/fixtures/pages/{preset}-{word}-{dim}{part}.page");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
    if std::env::var_os("KVANT_WRITE_PAGES").is_some() && !path.exists() {
        let codec = Case::new(preset, side, dim).codec(Tier::Scalar);
        std::fs::write(&path, encoded(&*codec, &rows(codec.page_tokens(), held, dim))).unwrap();
    }
    std::fs::read(path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn kept_pages_are_encoded_to_the_byte() {
    let pages = PRESETS.into_iter().flat_map(|preset| SIDES.map(|side| (preset, side)));
    let sizes = DIMS.into_iter().flat_map(|dim| HELD.map(|held| (dim, held)));
    let frozen = pages.flat_map(|page| sizes.clone().map(move |size| (page, size)));
    // Not frozen, but no change goes unseen.
    let trellis = SIDES.into_iter().flat_map(|side| [64, 128].map(|dim| (("trellis3", side), (dim, 128))));
    for ((preset, side), (dim, held)) in frozen.chain(trellis) {
        let kept = fixture(preset, side, dim, held);
        for tier in Tier::available() {
            let codec = Case::new(preset, side, dim).codec(tier);
            let page = encoded(&*codec, &rows(codec.page_tokens(), held, dim));
            let place = format!("{preset}, {side:?}, {dim}, {held} tokens, {tier}");
            assert_eq!(page.len(), kept.len(), "{place}");
            let differs = page.iter().zip(&kept).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{place}: the first byte that differs");
            agrees(&*codec, &kept).unwrap_or_else(|e| panic!("{place}: {e}"));
        }
    }
}

/// A change that rewrites the files as well is seen here.
#[test]
fn kept_pages_are_those_that_were_frozen() {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for (preset, side) in PRESETS.into_iter().flat_map(|preset| SIDES.map(|side| (preset, side))) {
        for (dim, held) in DIMS.into_iter().flat_map(|dim| HELD.map(|held| (dim, held))) {
            // FNV-1a.
            for byte in fixture(preset, side, dim, held) {
                sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    assert_eq!(sum, FROZEN, "{sum:#018x}");
}

/// The exact preset has no rounding to hide behind: what is read is what was encoded.
#[test]
fn kept_f16_pages_hold_their_rows() {
    for (side, dim) in SIDES.into_iter().flat_map(|side| DIMS.map(|dim| (side, dim))) {
        let format = Case::new("f16", side, dim).best().format().unwrap();
        for held in HELD {
            let read = read(&format, &fixture("f16", side, dim, held));
            let numbers: Vec<f32> = read.iter().flat_map(|x| &x.numbers).map(|x| *x as f32).collect();
            assert_eq!(numbers, rows(64, held, dim), "{side:?}, {dim}, {held}");
        }
    }
}

/// The layout of kept pages by the table of `docs/page-format.md`: a reader that was written for these numbers keeps working.
#[test]
fn frozen_presets_lie_where_the_document_says() {
    let dims = [1, 7, 8, 9, 16, 17, 24, 33, 40, 48, 64, 72, 80, 96, 100, 112, 128, 192, 256];
    for (preset, dim) in ["int4", "int8", "k8v4"].into_iter().flat_map(|p| dims.map(|dim| (p, dim))) {
        let format = |side| match Case::new(preset, side, dim).best().format() {
            Some(PageFormat::Packed(format)) => format,
            other => panic!("{other:?}"),
        };
        let place = format!("{preset}, {dim}");
        let (key, channels) = (format(Side::Key), dim.next_multiple_of(8));
        let bits = if preset == "int4" { 4 } else { 8 };
        assert_eq!(key.channel_scale, Some(0..2 * channels), "{place}");
        assert_eq!(key.channel_zero, Some(2 * channels..4 * channels), "{place}");
        assert_eq!((&key.token_scale, &key.token_zero), (&None, &None), "{place}");
        assert_eq!((key.tokens, key.coded, key.bytes), (64, channels, (4 + 8 * bits) * channels), "{place}");
        let mut at = 4 * channels;
        for span in &key.spans {
            assert_eq!(
                (span.codes, span.bits, span.meaning),
                (at, bits as u8, CodeMeaning::WithZero),
                "{place}"
            );
            at += 8 * bits * span.len;
        }
        assert_eq!(key.basis.linear, Linear::Rotation { kind: Rotation::Identity, seed: 0 }, "{place}");

        let (value, channels, groups) = (format(Side::Value), dim.next_multiple_of(16), dim.div_ceil(32));
        let (bits, kind) = if preset == "int8" { (8, Rotation::Identity) } else { (4, Rotation::Srht) };
        assert_eq!((&value.channel_scale, &value.channel_zero), (&None, &None), "{place}");
        assert_eq!(value.token_scale, Some(0..128 * groups), "{place}");
        assert_eq!(value.token_zero, None, "{place}");
        assert_eq!((value.tokens, value.coded, value.groups), (64, channels, groups), "{place}");
        assert_eq!(value.bytes, 128 * groups + 8 * bits * channels, "{place}");
        let mut at = 128 * groups;
        for span in &value.spans {
            assert_eq!((span.group, span.first % 32), (span.first / 32, 0), "{place}");
            assert_eq!(
                (span.codes, span.bits, span.meaning),
                (at, bits as u8, CodeMeaning::Shifted),
                "{place}"
            );
            at += 8 * bits * span.len;
        }
        assert_eq!(value.basis.linear, Linear::Rotation { kind, seed: 0 }, "{place}");
        for basis in [&key.basis, &value.basis] {
            assert!(basis.lambda.is_empty() && basis.mean.is_empty(), "{place}");
        }
    }
}
