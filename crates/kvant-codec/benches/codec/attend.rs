//! `scores` and `accumulate` over an arena of pages: the inner loops of decoding one token.
//!
//! The arena is many kv heads of 8,192 tokens, keys and values apart, every page at its own address. Four query heads
//! share a kv head. Weights are given (the softmax between the two verbs belongs to attention, not to the codec).

use crate::rows::{gaussian, smooth};
use crate::{Options, stream, time};
use kvant_codec::{Accumulator, Calibration, KvSpec, PageCodec, Query, Side, Tier};
use std::hint::black_box;
use std::time::Duration;

const QUERY_HEADS: usize = 4;
const CONTEXT: usize = 8192;
const SPECS: [&str; 11] =
    ["f16", "int8", "int8g32", "k8v4", "int4", "asym4", "srft4", "q4_0", "tq4", "tq3", "trellis3"];

struct Contender {
    name: String,
    tier: Tier,
    key: Box<dyn PageCodec>,
    value: Box<dyn PageCodec>,
    keys: Vec<u8>,
    values: Vec<u8>,
    best: Duration,
    floor: Duration,
}

impl Contender {
    fn new(spec: &str, tier: Tier, dim: usize, bytes: usize) -> Contender {
        let parsed: KvSpec = spec.parse().expect("a spec of the bench");
        let none = Calibration::default();
        let build =
            |side| parsed.side(side).build_with(side, dim, &none, tier).expect("a codec of the bench");
        let (key, value) = (build(Side::Key), build(Side::Value));
        let per_head = CONTEXT / key.page_tokens();
        let pages = (bytes / (key.page_bytes() + value.page_bytes())).div_ceil(per_head) * per_head;
        let (keys, values) = (arena(key.as_ref(), pages), arena(value.as_ref(), pages));
        let best = Duration::MAX;
        Contender { name: parsed.to_string(), tier, key, value, keys, values, best, floor: best }
    }

    fn pages(&self) -> usize {
        self.keys.len() / self.key.page_bytes()
    }

    fn vectors(&self) -> usize {
        self.pages() * self.key.page_tokens()
    }

    /// Nanoseconds per vector of the best pass.
    fn per_vector(&self) -> f64 {
        self.best.as_secs_f64() * 1e9 / self.vectors() as f64
    }

    /// One pass over the whole arena.
    fn attend(&self) {
        let (dim, tokens) = (self.key.dim(), self.key.page_tokens());
        let queries = gaussian(QUERY_HEADS * dim, 3);
        let weights: Vec<f32> = gaussian(QUERY_HEADS * tokens, 5).iter().map(|x| x.exp()).collect();
        let mut scores = vec![0.0; QUERY_HEADS * tokens];
        let mut out = vec![0.0; QUERY_HEADS * dim];
        let (mut query, mut sums) = (Query::new(), Accumulator::new(QUERY_HEADS, dim));
        let keys = self.keys.chunks_exact(self.key.page_bytes());
        let values = self.values.chunks_exact(self.value.page_bytes());
        for (i, (key, value)) in keys.zip(values).enumerate() {
            if i % (CONTEXT / tokens) == 0 {
                self.key.prepare(&queries, &mut query).expect("whole heads");
                sums.reset(QUERY_HEADS, dim);
            }
            let next = ahead(&self.keys, self.key.page_bytes(), i + 1);
            self.key.scores_ahead(&query, key, next, &mut scores).expect("a page");
            black_box(&mut scores);
            let next = ahead(&self.values, self.value.page_bytes(), i + 1);
            self.value.accumulate_ahead(black_box(&weights), value, next, &mut sums).expect("a page");
            if (i + 1) % (CONTEXT / tokens) == 0 {
                self.value.finish(&sums, &mut out).expect("whole heads");
                black_box(&mut out);
            }
        }
    }

    fn measure(&mut self) {
        let floor = time(|| {
            black_box(stream::read(&self.keys));
            black_box(stream::read(&self.values));
        });
        self.floor = self.floor.min(floor);
        self.best = self.best.min(time(|| self.attend()));
    }
}

/// The page at `index`; past the end, nothing.
fn ahead(pages: &[u8], size: usize, index: usize) -> &[u8] {
    pages.get(index * size..(index + 1) * size).unwrap_or_default()
}

/// Pages at addresses of their own: a few encoded ones, copied over and over.
fn arena(codec: &dyn PageCodec, pages: usize) -> Vec<u8> {
    let size = codec.page_bytes();
    let mut bytes = vec![0; size * pages];
    for (i, page) in bytes.chunks_exact_mut(size).take(8).enumerate() {
        let rows = smooth(codec.page_tokens() * codec.dim(), codec.dim(), i as u64);
        codec.encode(&rows, page).expect("finite numbers");
    }
    let mut filled = 8.min(pages) * size;
    while filled < bytes.len() {
        let count = filled.min(bytes.len() - filled);
        bytes.copy_within(..count, filled);
        filled += count;
    }
    bytes
}

/// Prints the table for every dimension.
pub fn run(options: &Options) {
    for dim in &options.dims {
        println!(
            "attend: scores + accumulate, d={dim}, {QUERY_HEADS} query heads per kv head, {} MiB of pages",
            options.mib
        );
        println!(
            "{:<9} {:<7} {:>9} {:>10} {:>8} {:>8} {:>11} {:>8}",
            "codec", "tier", "bits", "ns/vector", "GB/s", "read GB/s", "× plain read", "× f16"
        );
        let best = options.tiers().last().unwrap_or(Tier::Scalar);
        // The baseline runs again beside every other codec, pass by pass, so that a ratio compares the same moments.
        let mut baseline = Contender::new("f16", best, *dim, options.mib << 20);
        for spec in SPECS.iter().filter(|spec| **spec == "f16" || spec.contains(&options.only)) {
            for tier in options.tiers() {
                // Slower tiers are compute-bound, so a smaller arena says the same.
                let mib = if tier == best { options.mib } else { options.mib.min(64) };
                let mut contender = Contender::new(spec, tier, *dim, mib << 20);
                let passes = if tier == Tier::Scalar { 1 } else { options.repeats };
                baseline.best = Duration::MAX;
                for _ in 0..passes {
                    contender.measure();
                    if tier == best {
                        baseline.measure();
                    }
                }
                let ratio =
                    if tier == best { baseline.per_vector() / contender.per_vector() } else { f64::NAN };
                print_row(&contender, ratio);
            }
        }
        println!();
    }
}

fn print_row(contender: &Contender, against_f16: f64) {
    let per_vector = contender.per_vector();
    let bytes = (contender.keys.len() + contender.values.len()) as f64;
    let bits = 0.5 * (contender.key.bits_per_value() + contender.value.bits_per_value());
    let (seconds, floor) = (contender.best.as_secs_f64(), contender.floor.as_secs_f64());
    let versus = if against_f16.is_nan() { String::from("–") } else { format!("{against_f16:.2}") };
    println!(
        "{:<9} {:<7} {bits:>9.3} {per_vector:>10.2} {:>8.2} {:>9.2} {:>12.2} {versus:>8}",
        contender.name,
        contender.tier.name(),
        bytes / seconds / 1e9,
        bytes / floor / 1e9,
        seconds / floor,
    );
}
