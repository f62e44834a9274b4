//! Keys by position: do bases from a short text hold far away, and would keys relative to their page's first position do better?
//!
//!     cargo run --release -p kvant-eval --example page_relative -- MODEL.gguf TEXT [TOKENS [BITS]]
//!
//! Bases of `klt:trellis` are made from windows of the built-in novel in four ways, and every page of keys of TEXT is encoded
//! and decoded with each, at the same bits:
//!
//! - *near*: the windows' own positions, below 2,048;
//! - *reach*: the same windows moved to positions all over TOKENS, as `kvant calibrate --reach` does;
//! - *page*: every key turned back by its page's first position, and queries by that of a page before them in their window;
//! - *page, reach*: the same, with queries from as far as TOKENS after the page.
//!
//! *none* is trellis codes without a basis. Printed is E (q·e)², in squared units of scores before softmax, over the real queries
//! that come after a page: the mean over all layers and kv heads, by the position of the page, and as a multiple of *reach*.
//! A pair of channels turns alike for keys and queries, so nothing has to be run again to move a window.

use kvant_cache::plan::{Findings, Klt};
use kvant_cache::{KvSlot, PassState, Queries, RecurrentState, Scoring, SequencePass, StateError, StateSlot};
use kvant_calibrate::{Moments, basis};
use kvant_codec::{CodecSpec, KvSpec, PageCodec, Side, Tier};
use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_eval::text;
use kvant_model::description::{Pairing, Rope};
use kvant_model::tokenizer::{EncodeOptions, Tokenizer};
use kvant_model::{Checkpoint, Chunk, Model};
use std::error::Error;
use std::sync::Arc;

const WINDOW: usize = 2048;
const WINDOWS: usize = 4;
/// Tokens that are not encoded.
const SINKS: usize = 4;
/// One query in so many is kept.
const EVERY: usize = 16;
const WAYS: [&str; 5] = ["near", "reach", "page", "page, reach", "none"];

/// Keys and some queries of one kv head, by position.
#[derive(Clone, Default)]
struct Head {
    keys: Vec<f32>,                  // (tokens, dim)
    queries: Vec<(usize, Vec<f32>)>, // position, (dim)
}

/// An exact cache whose keys and queries are written down.
struct Recorder {
    inner: KvCache,
    slots: Vec<Vec<Head>>, // (slots, kv heads)
    dim: usize,
}

impl Recorder {
    fn read(model: &Model, tokens: &[u32]) -> Result<Vec<Vec<Head>>, Box<dyn Error>> {
        let exact: Policy = "f32".parse()?;
        let shapes = model.slots().iter().map(|(_, slot)| slot.kind.stored().ok_or("a model without keys"));
        let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
        let dim = shapes.first().map_or(0, |shape| shape.key_dim);
        let slots = shapes.iter().map(|shape| vec![Head::default(); shape.kv_heads]).collect();
        let inner = KvCache::new(exact, model.slots(), tokens.len())?;
        let mut recorder = Self { inner, slots, dim };
        for tokens in tokens.chunks(512) {
            model.forward(&[Chunk { tokens, wanted: 0..0 }], &mut recorder)?;
        }
        Ok(recorder.slots)
    }
}

impl PassState for Recorder {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        self.inner.begin(tokens)
    }

    fn sequences(&self) -> &[SequencePass] {
        self.inner.sequences()
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        let heads = &mut self.slots[slot.index()];
        let count = heads.len();
        for (number, key) in keys.chunks_exact(self.dim).enumerate() {
            heads[number % count].keys.extend_from_slice(key);
        }
        self.inner.append(slot, keys, values)
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let SequencePass { start, tokens, .. } = self.inner.sequences()[0];
        let heads = &mut self.slots[slot.index()];
        let of_token = queries.own.len() / tokens;
        let group = of_token / self.dim / heads.len();
        for (number, query) in queries.own.chunks_exact(self.dim).enumerate() {
            let (token, head) = (number * self.dim / of_token, number % (of_token / self.dim));
            if (start + token).is_multiple_of(EVERY) {
                heads[head / group].queries.push((start + token, query.to_vec()));
            }
        }
        self.inner.attend(slot, queries, scoring, out)
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        self.inner.recurrent(slot, sequence)
    }

    fn end(&mut self) -> Result<(), StateError> {
        self.inner.end()
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }
}

/// Turns a key or query as so many positions further on, or back, would.
fn turn(rope: &Rope, capacity: usize, vector: &mut [f32], by: f64) {
    for (pair, &frequency) in rope.frequencies(capacity).iter().enumerate() {
        let (a, b) = match rope.pairing() {
            Pairing::Halves => (pair, pair + rope.dims() / 2),
            Pairing::Neighbours => (2 * pair, 2 * pair + 1),
        };
        let (sin, cos) = (by * f64::from(frequency)).sin_cos();
        let (x, y) = (f64::from(vector[a]), f64::from(vector[b]));
        (vector[a], vector[b]) = ((x * cos - y * sin) as f32, (x * sin + y * cos) as f32);
    }
}

/// The first position of a token's page.
fn page_of(position: usize, page: usize) -> usize {
    SINKS + (position.saturating_sub(SINKS)) / page * page
}

/// What a plan would hold of a head whose windows are these, in one of the ways.
fn findings(
    windows: &[&Head],
    way: usize,
    rope: &Rope,
    reach: usize,
    page: usize,
) -> Result<Findings, Box<dyn Error>> {
    let dim = windows[0].queries[0].1.len();
    let (mut keys, mut queries) = (Moments::new(dim), Moments::new(dim));
    let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    for (number, head) in windows.iter().enumerate() {
        let moved = (reach.saturating_sub(WINDOW) * number / (WINDOWS - 1).max(1)) as f64;
        for (position, key) in head.keys.chunks_exact(dim).enumerate().skip(SINKS) {
            let mut key = key.to_vec();
            match way {
                1 => turn(rope, reach, &mut key, moved),
                2 | 3 => turn(rope, reach, &mut key, -(page_of(position, page) as f64)),
                _ => {}
            }
            keys.add(&wide(&key));
        }
        for (count, (position, query)) in head.queries.iter().enumerate() {
            let mut query = query.clone();
            // Some page before the query, another for each: golden steps over all that are possible.
            let share = (count as f64 * 0.618_033_988_749_895).fract();
            match way {
                1 => turn(rope, reach, &mut query, moved),
                2 => turn(
                    rope,
                    reach,
                    &mut query,
                    -(page_of((share * *position as f64) as usize, page) as f64),
                ),
                3 => turn(rope, reach, &mut query, share * reach as f64 - *position as f64),
                _ => {}
            }
            queries.add(&wide(&query));
        }
    }
    let basis::Klt { basis, variances } = basis::klt(&keys, &queries)?;
    let variances = variances.into_iter().map(|x| x as f32).collect();
    let klt = Some(Klt { basis: Arc::new(basis), variances });
    Ok(Findings { mean: Some(basis::mean(&keys, "keys")?), klt, ..Findings::default() })
}

/// Squares of what errors of a page's keys do to the scores of queries, and how many there are.
fn squares(head: &Head, first: usize, errors: &[f32]) -> (f64, usize) {
    let dim = head.queries[0].1.len();
    let last = first + errors.len() / dim;
    let (mut sum, mut count) = (0.0, 0);
    for (_, query) in head.queries.iter().filter(|(position, _)| *position >= last).step_by(7) {
        for error in errors.chunks_exact(dim) {
            let dot: f64 = query.iter().zip(error).map(|(q, e)| f64::from(*q) * f64::from(*e)).sum();
            sum += dot * dot;
            count += 1;
        }
    }
    (sum, count)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(read)) = (arguments.next(), arguments.next()) else {
        return Err("usage: page_relative MODEL.gguf TEXT [TOKENS [BITS]]".into());
    };
    let reach: usize = arguments.next().map_or(Ok(8192), |n| n.parse())?;
    let bits = arguments.next().unwrap_or("3".to_owned());
    let checkpoint = Checkpoint::open(&path)?;
    let tokenizer = Tokenizer::of(&checkpoint)?;
    let model = kvant_cpu::load(&checkpoint, LoadOptions::default())?;
    let [rope] = &model.description().ropes[..] else {
        return Err("a model with one rotary embedding, please".into());
    };
    let encode =
        |text: &str| tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false });
    let novel = encode(text::calibration())?;
    let tokens = encode(&std::fs::read_to_string(&read)?)?;
    let tokens = tokens.get(..reach).ok_or("the text is too short")?;

    let windows: Vec<Vec<Vec<Head>>> = (0..WINDOWS)
        .map(|window| Recorder::read(&model, &novel[window * WINDOW..][..WINDOW]))
        .collect::<Result<_, _>>()?;
    let test = Recorder::read(&model, tokens)?;
    let codec = |text: &str| Ok::<CodecSpec, Box<dyn Error>>(text.parse::<KvSpec>()?.key);
    let (with, without) = (codec(&format!("klt{bits}:trellis"))?, codec(&format!("trellis{bits}"))?);
    let (page, tier) = (with.options.page.tokens(), Tier::select()?);

    // (bands, ways) of (mean squares summed over heads, heads)
    let bands: Vec<usize> =
        std::iter::successors(Some(1024), |end| Some(2 * end)).take_while(|end| *end <= reach).collect();
    let mut found = vec![[(0.0, 0usize); WAYS.len()]; bands.len()];
    for (slot, heads) in test.iter().enumerate() {
        for (number, head) in heads.iter().enumerate() {
            let dim = head.queries[0].1.len();
            let seen: Vec<&Head> = windows.iter().map(|window| &window[slot][number]).collect();
            for way in 0..WAYS.len() {
                let (spec, found_here) = match way {
                    4 => (&without, Findings::default()),
                    _ => (&with, findings(&seen, way, rope, reach, page)?),
                };
                let calibration = found_here.calibration(spec, Side::Key, dim, tier)?;
                let codec: Box<dyn PageCodec> = spec.build_with(Side::Key, dim, &calibration, tier)?;
                let mut of_bands = vec![(0.0, 0usize); bands.len()];
                let (mut bytes, mut decoded) = (vec![0; codec.page_bytes()], vec![0.0; page * dim]);
                for (place, keys) in head.keys[SINKS * dim..].chunks_exact(page * dim).enumerate() {
                    let first = SINKS + place * page;
                    let mut rows = keys.to_vec();
                    let relative = way == 2 || way == 3;
                    if relative {
                        rows.chunks_exact_mut(dim).for_each(|key| turn(rope, reach, key, -(first as f64)));
                    }
                    codec.encode(&rows, &mut bytes)?;
                    codec.decode(&bytes, &mut decoded)?;
                    let mut errors: Vec<f32> = rows.iter().zip(&decoded).map(|(a, b)| a - b).collect();
                    if relative {
                        errors.chunks_exact_mut(dim).for_each(|error| turn(rope, reach, error, first as f64));
                    }
                    let (sum, count) = squares(head, first, &errors);
                    let band = bands.iter().position(|end| first < *end).unwrap_or(bands.len() - 1);
                    of_bands[band] = (of_bands[band].0 + sum, of_bands[band].1 + count);
                }
                for (found, (sum, count)) in
                    found.iter_mut().zip(of_bands).filter(|(_, (_, count))| *count > 0)
                {
                    found[way] = (found[way].0 + sum / count as f64, found[way].1 + 1);
                }
            }
        }
        eprintln!("layer {} of {}", slot + 1, test.len());
    }
    println!("{path}, {read}: {reach} tokens, {with}; E (q·e)² of pages that begin before");
    for (way, name) in WAYS.iter().enumerate() {
        let cell = |of: &[(f64, usize); WAYS.len()]| of[way].0 / of[way].1.max(1) as f64;
        let cells: Vec<String> = (bands.iter().zip(&found))
            .map(|(end, of)| format!("{end}: {:.4} ({:.2}×)", cell(of), of[way].0 / of[1].0))
            .collect();
        println!("{name:12} {}", cells.join("  "));
    }
    Ok(())
}
