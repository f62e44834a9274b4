//! Every verb on small pages in buffers without a byte to spare: what Miri and AddressSanitizer run.

use kvant_codec::{Accumulator, Calibration, Dense, KvSpec, PageCodec, Query, Side, Tier};
use std::sync::Arc;

/// Every rule, scaling, rotation, width and format once.
const PARTS: [&str; 29] = [
    "f32:p32",
    "f16:p32",
    "bf16:p32",
    "ch1:p32,s32",
    "ch2:p32,lm",
    "ch3:p32,max",
    "ch4:p32,mean",
    "ch8:p32,sym,s32",
    "rot2:p32",
    "rot4:p32,g16",
    "rot5:p32,s32",
    "srft4:p32,lambda,mean",
    "srft8:p32,token",
    "sym7:p32,had64",
    "asym1:p32,g64",
    "asym6:p32,g16,s32",
    "tq1:p32",
    "tq3:p32",
    "tq5:p32,g16",
    "chg4:p32",
    "chg6:p32,max,chg16,s32",
    "klt:p32",
    "uniform4:p32",
    "nf4:p32",
    "iq4:p32",
    "qjl1:p32",
    "turbo3:p32",
    "polar4:p32",
    "delta4:p32,srht",
];

/// Radices 2, 3, 5, 7 and 11, odd parts, and padding of every kind. Miri has time for a few.
const DIMS: &[usize] =
    if cfg!(miri) { &[10, 24] } else { &[1, 2, 8, 10, 14, 16, 22, 24, 33, 40, 64, 72, 80] };

fn calibration(side: Side, dim: usize) -> Calibration {
    let identity: Vec<f32> = (0..dim * dim).map(|n| f32::from(u8::from(n / dim == n % dim))).collect();
    let rows = dim.div_ceil(if side == Side::Key { 8 } else { 16 });
    Calibration {
        mean: Some(vec![0.5; dim]),
        lambda: Some(vec![2.0; dim]),
        basis: Dense::new(dim, identity.clone(), identity).ok().map(Arc::new),
        widths: Some((0..rows).map(|row| [8, 5, 1, 0][4 * row / rows]).collect()),
    }
}

/// A vector cut to size, so that one element further is out of bounds.
fn exact<T: Clone>(value: T, count: usize) -> Box<[T]> {
    vec![value; count].into_boxed_slice()
}

fn run(codec: &dyn PageCodec, heads: usize) {
    let (tokens, dim) = (codec.page_tokens(), codec.dim());
    let wave = |n: usize| (n as f32 * 0.7).sin();
    let rows: Box<[f32]> = (0..tokens * dim).map(wave).collect();
    let mut page = exact(0u8, codec.page_bytes());
    codec.encode(&rows, &mut page).unwrap();
    let mut back = exact(f32::NAN, tokens * dim);
    codec.decode(&page, &mut back).unwrap();
    assert!(back.iter().all(|x| x.is_finite()));
    let queries: Box<[f32]> = (0..heads * dim).map(wave).collect();
    let mut query = Query::new();
    codec.prepare(&queries, &mut query).unwrap();
    let mut scores = exact(f32::NAN, heads * tokens);
    codec.scores(&query, &page, &mut scores).unwrap();
    assert!(scores.iter().all(|x| x.is_finite()));
    let weights: Box<[f32]> = (0..heads * tokens).map(wave).collect();
    let mut sums = Accumulator::new(heads, dim);
    codec.accumulate(&weights, &page, &mut sums).unwrap();
    let mut out = exact(f32::NAN, heads * dim);
    codec.finish(&sums, &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_finite()));
    // Arbitrary bytes are a page as well.
    page.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 37) as u8);
    codec.decode(&page, &mut back).unwrap();
    codec.scores(&query, &page, &mut scores).unwrap();
    codec.accumulate(&weights, &page, &mut sums).unwrap();
}

#[test]
fn every_verb_stays_within_its_buffers() {
    for tier in Tier::available() {
        for (i, part) in PARTS.iter().enumerate() {
            for (side, dim) in
                [Side::Key, Side::Value].into_iter().flat_map(|side| DIMS.iter().map(move |d| (side, *d)))
            {
                let spec: KvSpec = part.parse().unwrap();
                if dim % 2 == 1 && part.starts_with("srft") {
                    continue;
                }
                let codec = spec.side(side).build_with(side, dim, &calibration(side, dim), tier).unwrap();
                run(&*codec, 1 + i % 5);
            }
        }
    }
}
