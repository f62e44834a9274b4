//! `scores` and `accumulate` over an arena of pages: the inner loops of decoding one token.
//!
//! The arena is many kv heads of 8,192 tokens, keys and values apart, every page at its own address. Four query heads
//! share a kv head; segments of 512 tokens are scored, then summed up. Weights are given (the softmax between the two verbs belongs to attention, not to the codec).

use crate::rows::{gaussian, smooth};
use crate::{Options, stream, time};
use kvant_codec::{
    Accumulator, Calibration, CodecSpec, Dense, KvSpec, PageCodec, Query, Side, Tier, allocation,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Query heads that share a kv head.
pub const QUERY_HEADS: usize = 4;
const CONTEXT: usize = 8192;
/// Tokens whose scores come before their sums.
const SEGMENT: usize = 512;
const SPECS: [&str; 13] = [
    "f16",
    "int8",
    "int8g32",
    "k8v4",
    "int4",
    "asym4",
    "srft4",
    "q4_0",
    "tq4",
    "tq3",
    "trellis3",
    "k=klt3.75,v=rot4g32",
    "k=klt4.25,v=rot4g32",
];

/// A codec on one instruction set, and its pages.
pub struct Contender {
    pub name: String,
    tier: Tier,
    pub key: Box<dyn PageCodec>,
    pub value: Box<dyn PageCodec>,
    pub keys: Vec<u8>,
    pub values: Vec<u8>,
    best: Duration,
    floor: Duration,
}

impl Contender {
    /// With at least so many bytes of pages, and those of whole contexts.
    pub fn new(spec: &str, tier: Tier, dim: usize, bytes: usize, context: usize) -> Contender {
        let parsed: KvSpec = spec.parse().expect("a spec of the bench");
        let build = |side| {
            let spec = parsed.side(side);
            let calibration =
                if spec.shares_bits() { falling(spec, side, dim) } else { Calibration::default() };
            spec.build_with(side, dim, &calibration, tier).expect("a codec of the bench")
        };
        let (key, value) = (build(Side::Key), build(Side::Value));
        let count = |codec: &dyn PageCodec| context / codec.page_tokens();
        let size = |codec: &dyn PageCodec| count(codec) * codec.page_bytes();
        let contexts = bytes.div_ceil(size(key.as_ref()) + size(value.as_ref()));
        let pages = |codec: &dyn PageCodec| arena(codec, contexts * count(codec));
        let (keys, values) = (pages(key.as_ref()), pages(value.as_ref()));
        let best = Duration::MAX;
        Contender { name: parsed.to_string(), tier, key, value, keys, values, best, floor: best }
    }

    /// Pages of each side.
    pub fn pages(&self) -> usize {
        self.keys.len() / self.key.page_bytes()
    }

    /// Keys, and as many values.
    pub fn vectors(&self) -> usize {
        self.pages() * self.key.page_tokens()
    }

    /// Nanoseconds per vector of the best pass.
    fn per_vector(&self) -> f64 {
        self.best.as_secs_f64() * 1e9 / self.vectors() as f64
    }

    /// One pass over the whole arena.
    fn attend(&self) {
        let mut verbs = Verbs::new(self);
        let mut out = vec![0.0; QUERY_HEADS * self.key.dim()];
        for _ in 0..self.vectors() / CONTEXT {
            verbs.begin();
            (0..CONTEXT / SEGMENT).for_each(|_| verbs.segment());
            self.value.finish(&verbs.sums, &mut out).expect("whole heads");
            black_box(&mut out);
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

/// `scores` and `accumulate` over the pages of a contender, a segment at a time as attention takes them.
pub struct Verbs<'a> {
    of: &'a Contender,
    keys: Vec<&'a [u8]>,
    values: Vec<&'a [u8]>,
    queries: Vec<f32>,
    weights: Vec<f32>,
    query: Query,
    scores: Vec<f32>,
    sums: Accumulator,
    /// The first token of the next segment.
    at: usize,
}

impl<'a> Verbs<'a> {
    /// At the first token.
    pub fn new(of: &'a Contender) -> Verbs<'a> {
        let dim = of.key.dim();
        let weights = gaussian(QUERY_HEADS * SEGMENT, 5).iter().map(|x| x.exp()).collect();
        let mut verbs = Verbs {
            of,
            keys: of.keys.chunks_exact(of.key.page_bytes()).collect(),
            values: of.values.chunks_exact(of.value.page_bytes()).collect(),
            queries: gaussian(QUERY_HEADS * dim, 3),
            weights,
            query: Query::new(),
            scores: vec![0.0; QUERY_HEADS * SEGMENT],
            sums: Accumulator::new(QUERY_HEADS, dim),
            at: 0,
        };
        verbs.begin();
        verbs
    }

    /// Prepares the queries and begins the sums.
    fn begin(&mut self) {
        self.of.key.prepare(&self.queries, &mut self.query).expect("whole heads");
        self.sums.reset(QUERY_HEADS, self.of.key.dim());
    }

    /// The next segment; after the last, the first.
    pub fn segment(&mut self) {
        let Verbs { of, ref keys, ref values, at, .. } = *self;
        let pages = |codec: &dyn PageCodec| at / codec.page_tokens()..(at + SEGMENT) / codec.page_tokens();
        let size = |codec: &dyn PageCodec| QUERY_HEADS * codec.page_tokens();
        let page = |pages: &[&'a [u8]], index: usize| pages.get(index).copied().unwrap_or_default();
        let (of_keys, of_values) = (pages(of.key.as_ref()), pages(of.value.as_ref()));
        let scores = self.scores.chunks_exact_mut(size(of.key.as_ref()));
        for (i, scores) in of_keys.clone().zip(scores) {
            let next = if i + 1 < of_keys.end { page(keys, i + 1) } else { values[of_values.start] };
            of.key.scores_ahead(&self.query, keys[i], next, scores).expect("a page");
        }
        black_box(&mut self.scores);
        let weights = black_box(&self.weights).chunks_exact(size(of.value.as_ref()));
        for (i, weights) in of_values.clone().zip(weights) {
            let next = if i + 1 < of_values.end { values[i + 1] } else { page(keys, of_keys.end) };
            of.value.accumulate_ahead(weights, values[i], next, &mut self.sums).expect("a page");
        }
        self.at = if at + SEGMENT == of.vectors() { 0 } else { at + SEGMENT };
    }

    /// All segments.
    pub fn pass(&mut self) {
        (0..self.of.vectors() / SEGMENT).for_each(|_| self.segment());
        black_box(&mut self.sums);
    }
}

/// Numbers for channels whose variance falls a hundredfold from the first to the last, as that of keys in their own basis does.
fn falling(spec: &CodecSpec, side: Side, dim: usize) -> Calibration {
    let variances: Vec<f32> = (0..dim).map(|c| 0.01f32.powf(c as f32 / dim as f32)).collect();
    let unit: Vec<f32> = (0..dim * dim).map(|i| f32::from(u8::from(i % (dim + 1) == 0))).collect();
    let basis = Dense::new(dim, unit.clone(), unit).expect("a basis");
    let widths = allocation::widths(&variances, side, spec.options.budget, spec.options.page);
    Calibration {
        mean: Some(vec![0.0; dim]),
        basis: Some(Arc::new(basis)),
        widths: Some(widths.expect("widths of the budget")),
        ..Calibration::default()
    }
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
        let mut baseline = Contender::new("f16", best, *dim, options.mib << 20, CONTEXT);
        for spec in SPECS.iter().filter(|spec| **spec == "f16" || spec.contains(&options.only)) {
            for tier in options.tiers() {
                // Slower tiers are compute-bound, so a smaller arena says the same.
                let mib = if tier == best { options.mib } else { options.mib.min(64) };
                let mut contender = Contender::new(spec, tier, *dim, mib << 20, CONTEXT);
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
