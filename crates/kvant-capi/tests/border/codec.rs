//! Page codecs through their C functions, held against the decoded rows.

use crate::support::{fails, ok, output, rows};
use kvant::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

const DIM: usize = 64;
const TOKENS: usize = 150;
const QUERIES: usize = 3;

fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

fn codec(spec: &str, side: KvantSide) -> *mut KvantCodec {
    let (spec, mut codec) = (CString::new(spec).unwrap(), null_mut());
    // SAFETY: everything lives.
    ok(unsafe { kvant_codec_new(spec.as_ptr(), side as i32, DIM, &mut codec) });
    codec
}

#[test]
fn scores_and_sums_are_those_of_the_decoded_rows() {
    let given = numbers(TOKENS * DIM, 0.37);
    for spec in ["f32", "int8", "int4"] {
        for side in [KvantSide::Key, KvantSide::Value] {
            let codec = codec(spec, side);
            // SAFETY: everything lives.
            let (tokens, size) = unsafe { (kvant_codec_page_tokens(codec), kvant_codec_page_bytes(codec)) };
            let mut pages = vec![0u8; TOKENS.div_ceil(tokens) * size];
            let (mut back, length) = (vec![0.0; TOKENS * DIM], pages.len());
            let (queries, weights) = (numbers(QUERIES * DIM, 0.11), numbers(QUERIES * TOKENS, 0.05));
            let (mut scores, mut sums) = (vec![0.0; QUERIES * TOKENS], vec![0.0; QUERIES * DIM]);
            // SAFETY: everything lives.
            unsafe {
                ok(kvant_codec_encode(codec, TOKENS, &rows(&given), pages.as_mut_ptr(), length));
                let pages = pages.as_ptr();
                ok(kvant_codec_decode(codec, TOKENS, pages, length, &output(&mut back)));
                let out = output(&mut scores);
                ok(kvant_codec_scores(codec, TOKENS, pages, length, QUERIES, &rows(&queries), &out));
                let out = output(&mut sums);
                ok(kvant_codec_accumulate(codec, TOKENS, pages, length, QUERIES, &rows(&weights), &out));
                kvant_codec_free(codec);
            }
            let error = given.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error < if spec == "int4" { 0.3 } else { 0.01 }, "{spec} {side:?}: {error}");
            for query in 0..QUERIES {
                let own = &queries[query * DIM..][..DIM];
                for token in 0..TOKENS {
                    let pairs = own.iter().zip(&back[token * DIM..][..DIM]);
                    let want: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let got = f64::from(scores[query * TOKENS + token]);
                    // Queries are rounded to bytes.
                    assert!((got - want).abs() < 0.3, "{spec} {side:?} {query} {token}: {got} and {want}");
                }
                for channel in 0..DIM {
                    let weigh = |token: usize| f64::from(weights[query * TOKENS + token]);
                    let want: f64 = (0..TOKENS).map(|t| weigh(t) * f64::from(back[t * DIM + channel])).sum();
                    let got = f64::from(sums[query * DIM + channel]);
                    assert!((got - want).abs() < 0.5, "{spec} {side:?} {query} {channel}: {got} and {want}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut made, key) = (null_mut(), codec("int4", KvantSide::Key));
    let mut given = numbers(2 * DIM, 0.3);
    let mut pages = [0u8; 16];
    // SAFETY: everything lives.
    unsafe {
        for (spec, side, dim, status, words) in [
            ("int5000", 0, DIM, KvantStatus::InvalidArgument, "int5000"),
            ("int4", 2, DIM, KvantStatus::InvalidArgument, "side is 2"),
            ("int4", 0, 0, KvantStatus::Unsupported, "dim"),
        ] {
            let spec = CString::new(spec).unwrap();
            fails(kvant_codec_new(spec.as_ptr(), side, dim, &mut made), status, &[words]);
            assert!(made.is_null());
        }
        let refused = KvantStatus::InvalidArgument;
        fails(kvant_codec_new(null(), 0, DIM, &mut made), refused, &["spec"]);
        let status = kvant_codec_encode(key, 2, &rows(&given), pages.as_mut_ptr(), 16);
        fails(status, refused, &["16 bytes are no pages of 2 tokens"]);
        fails(kvant_codec_decode(key, 0, pages.as_ptr(), 0, &output(&mut given)), refused, &["0 tokens"]);
        let mut page = vec![0u8; kvant_codec_page_bytes(key)];
        given[5] = f32::NAN;
        let (start, length) = (page.as_mut_ptr(), page.len());
        fails(kvant_codec_encode(key, 2, &rows(&given), start, length), KvantStatus::BadNumber, &[]);
        fails(kvant_codec_encode(key, 2, &rows(&given), null_mut(), length), refused, &["pages"]);
        assert_eq!((kvant_codec_page_bytes(null()), kvant_codec_page_tokens(null())), (0, 0));
        kvant_codec_free(key);
        kvant_codec_free(null_mut());
    }
}
