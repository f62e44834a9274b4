//! What attention over rotated 4-bit pages gains by each of its parts: the query that is rotated once, the sum that is rotated back
//! once, and products on the packed bytes.
//!
//! Every row does the same step: four query heads over all keys and values of a kv head. Where pages are decoded, they become f16
//! pages, over which the kernels of `f16` attend: all of them before attention begins, as engines do that have kernels for f16
//! alone, or one at a time. A page is decoded in the model's basis (every vector is rotated back), or in the codec's (none is).

use crate::attend::QUERY_HEADS;
use crate::rows::gaussian;
use crate::{Options, time};
use kvant_codec::{
    Accumulator, Basis, Calibration, CodecSpec, KvSpec, PageCodec, Query, Rotation, Side, Tier,
};
use std::hint::black_box;
use std::time::Duration;

const CONTEXTS: [usize; 4] = [1024, 8192, 32_768, 131_072];
const SPEC: &str = "srht4";
/// The same pages in the basis of the codec.
const UNTURNED: &str = "sym4";
/// Tokens whose scores come before their sums.
const SEGMENT: usize = 512;

/// How one side of a page is met.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Decoded, every vector rotated back.
    Decoded,
    /// Decoded in the basis of the codec.
    Unturned,
    /// By the bytes.
    Packed,
}

const ROWS: [(&str, Way, Way, bool); 6] = [
    ("dequantised first, all of it", Way::Decoded, Way::Decoded, true),
    ("dequantised page by page", Way::Decoded, Way::Decoded, false),
    ("  with the query rotated once", Way::Unturned, Way::Decoded, false),
    ("  with the sum rotated once", Way::Decoded, Way::Unturned, false),
    ("  with both", Way::Unturned, Way::Unturned, false),
    ("on the packed bytes", Way::Packed, Way::Packed, false),
];

/// One side: pages, and who reads them.
struct Pages {
    codec: Box<dyn PageCodec>,
    unturned: Box<dyn PageCodec>,
    f16: Box<dyn PageCodec>,
    bytes: Vec<u8>,
    /// A page of numbers, and the same as f16; with room for all of them.
    rows: Vec<f32>,
    decoded: Vec<u8>,
}

impl Pages {
    fn new(side: Side, dim: usize, tier: Tier, tokens: usize) -> Pages {
        let build = |spec: &str| {
            let spec: KvSpec = spec.parse().expect("a spec of the bench");
            let spec: &CodecSpec = spec.side(side);
            spec.build_with(side, dim, &Calibration::default(), tier).expect("a codec of the bench")
        };
        let (codec, f16) = (build(SPEC), build("f16"));
        let page = codec.page_tokens();
        let mut bytes = vec![0; tokens / page * codec.page_bytes()];
        let size = codec.page_bytes();
        codec.encode(&gaussian(page * dim, 1), &mut bytes[..size]).expect("finite numbers");
        for at in (size..bytes.len()).step_by(size) {
            bytes.copy_within(..size, at);
        }
        let decoded = vec![0; tokens / page * f16.page_bytes()];
        Pages { unturned: build(UNTURNED), rows: vec![0.0; page * dim], codec, f16, bytes, decoded }
    }

    fn page(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.codec.page_bytes()..][..self.codec.page_bytes()]
    }

    /// Decodes a page into place `to` of the f16 pages.
    fn decode(&mut self, number: usize, to: usize, way: Way) {
        let codec = if way == Way::Unturned { &self.unturned } else { &self.codec };
        let (page, size) = (self.codec.page_bytes(), self.f16.page_bytes());
        codec.decode(&self.bytes[number * page..][..page], &mut self.rows).expect("a page");
        self.f16.encode(&self.rows, &mut self.decoded[to * size..][..size]).expect("finite numbers");
    }

    fn f16_page(&self, number: usize) -> &[u8] {
        &self.decoded[number * self.f16.page_bytes()..][..self.f16.page_bytes()]
    }
}

/// A step of attention, part by part.
struct Step {
    keys: Pages,
    values: Pages,
    basis: Basis,
    tier: Tier,
    queries: Vec<f32>,
    weights: Vec<f32>,
    scores: Vec<f32>,
}

impl Step {
    fn new(dim: usize, tier: Tier, tokens: usize) -> Step {
        Step {
            keys: Pages::new(Side::Key, dim, tier, tokens),
            values: Pages::new(Side::Value, dim, tier, tokens),
            basis: Basis::new(Rotation::Srht, dim, 0),
            tier,
            queries: gaussian(QUERY_HEADS * dim, 3),
            weights: gaussian(QUERY_HEADS * SEGMENT, 5).iter().map(|x| x.exp()).collect(),
            scores: vec![0.0; QUERY_HEADS * SEGMENT],
        }
    }

    fn run(&mut self, key: Way, value: Way, first: bool) {
        let Step { keys, values, basis, tier, queries, weights, scores } = self;
        let (dim, page) = (keys.codec.dim(), keys.codec.page_tokens());
        let mut turned = queries.clone();
        let mut query = Query::new();
        match key {
            Way::Packed => keys.codec.prepare(queries, &mut query),
            Way::Decoded => keys.f16.prepare(queries, &mut query),
            Way::Unturned => {
                basis.apply(&mut turned, *tier).expect("whole heads");
                keys.f16.prepare(&turned, &mut query)
            }
        }
        .expect("whole heads");
        let pages = keys.bytes.len() / keys.codec.page_bytes();
        if first {
            for number in 0..pages {
                keys.decode(number, number, key);
                values.decode(number, number, value);
            }
        }
        let mut sums = Accumulator::new(QUERY_HEADS, dim);
        for segment in (0..pages).step_by(SEGMENT / page) {
            let numbers = segment..(segment + SEGMENT / page).min(pages);
            for (number, scores) in numbers.clone().zip(scores.chunks_exact_mut(QUERY_HEADS * page)) {
                if key == Way::Packed {
                    let next = if number + 1 < pages { keys.page(number + 1) } else { &[] };
                    keys.codec.scores_ahead(&query, keys.page(number), next, scores).expect("a page");
                    continue;
                }
                if !first {
                    keys.decode(number, 0, key);
                }
                let place = if first { number } else { 0 };
                keys.f16.scores(&query, keys.f16_page(place), scores).expect("a page");
            }
            black_box(&mut *scores);
            for (number, weights) in numbers.zip(weights.chunks_exact(QUERY_HEADS * page)) {
                if value == Way::Packed {
                    let next = if number + 1 < pages { values.page(number + 1) } else { &[] };
                    values
                        .codec
                        .accumulate_ahead(weights, values.page(number), next, &mut sums)
                        .expect("a page");
                    continue;
                }
                if !first {
                    values.decode(number, 0, value);
                }
                let place = if first { number } else { 0 };
                values.f16.accumulate(weights, values.f16_page(place), &mut sums).expect("a page");
            }
        }
        let mut out = vec![0.0; QUERY_HEADS * dim];
        match value {
            Way::Packed => values.codec.finish(&sums, &mut out),
            _ => values.f16.finish(&sums, &mut out),
        }
        .expect("whole heads");
        if value == Way::Unturned {
            basis.undo(&mut out, *tier).expect("whole heads");
        }
        black_box(&mut out);
    }
}

/// Prints a table for every dimension.
pub fn run(options: &Options) {
    let tier = options.tiers().last().unwrap_or(Tier::Scalar);
    for dim in &options.dims {
        println!(
            "stages: {SPEC}, d={dim}, one kv head with {QUERY_HEADS} query heads, µs per step on {tier} (best of {})",
            options.repeats
        );
        print!("{:<32}", "tokens");
        CONTEXTS.iter().for_each(|tokens| print!(" {tokens:>10}"));
        println!();
        let mut best = [[Duration::MAX; CONTEXTS.len()]; ROWS.len()];
        for (column, tokens) in CONTEXTS.into_iter().enumerate() {
            let mut step = Step::new(*dim, tier, tokens);
            for _ in 0..options.repeats {
                for (row, (_, key, value, first)) in ROWS.into_iter().enumerate() {
                    best[row][column] = best[row][column].min(time(|| step.run(key, value, first)));
                }
            }
        }
        for ((name, ..), times) in ROWS.iter().zip(best) {
            print!("{name:<32}");
            times.iter().for_each(|time| print!(" {:>10.1}", time.as_secs_f64() * 1e6));
            println!();
        }
        println!();
    }
}
