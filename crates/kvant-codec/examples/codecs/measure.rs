//! What a codec does to real keys and values, through its own verbs.

use crate::activations::{DIM, Layer, SCALE};
use kvant_codec::{Accumulator, CodecSpec, PageCodec, Query, Side};

type Failure = Box<dyn std::error::Error>;

/// Errors of keys. All are relative and averaged over layers and heads.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyErrors {
    pub bits: f64,
    /// ‖k̂ − k‖² / ‖k‖².
    pub mse: f64,
    /// Mean cosine of k̂ and k.
    pub cosine: f64,
    /// Root mean square error of q·k̂, over the standard deviation of q·k along the tokens.
    pub score: f64,
    /// The same through the kernel, which rounds the query.
    pub kernel: f64,
    /// What the kernel's rounding adds, as a share of the codec's own noise power.
    pub rounding: f64,
}

/// Errors of values.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueErrors {
    pub bits: f64,
    pub mse: f64,
    pub cosine: f64,
    /// ‖ô − o‖ / ‖o‖ of the attention output, with the exact weights.
    pub output: f64,
    /// The same through the kernel, which rounds the weights.
    pub kernel: f64,
    /// What the kernel's rounding adds, as a share of the codec's own noise power.
    pub rounding: f64,
}

/// One head's pages, and what they decode to.
struct Encoded {
    pages: Vec<Vec<u8>>,
    /// (tokens, dim)
    decoded: Vec<f32>,
}

fn encode(codec: &dyn PageCodec, rows: &[f32]) -> Result<Encoded, Failure> {
    let mut encoded = Encoded { pages: Vec::new(), decoded: Vec::new() };
    for rows in rows.chunks_exact(codec.page_tokens() * DIM) {
        let mut page = vec![0; codec.page_bytes()];
        codec.encode(rows, &mut page)?;
        let mut decoded = vec![0.0; rows.len()];
        codec.decode(&page, &mut decoded)?;
        encoded.decoded.extend(decoded);
        encoded.pages.push(page);
    }
    Ok(encoded)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Σ (a − b)².
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn vectors(x: &[f32], y: &[f32]) -> (f64, f64) {
    let error: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let cosine = |(x, y): (&[f32], &[f32])| dot(x, y) / (dot(x, x) * dot(y, y)).sqrt().max(1e-30);
    let cosines: f64 = x.chunks_exact(DIM).zip(y.chunks_exact(DIM)).map(cosine).sum();
    (error / dot(x, x), cosines / (x.len() / DIM) as f64)
}

/// Scores of every query and token by plain products, (queries, tokens).
fn products(queries: &[f32], keys: &[f32]) -> Vec<f64> {
    queries.chunks_exact(DIM).flat_map(|q| keys.chunks_exact(DIM).map(move |k| dot(q, k))).collect()
}

/// Scores of every query and token by the codec's kernel, (queries, tokens).
fn scores(codec: &dyn PageCodec, queries: &[f32], pages: &[Vec<u8>]) -> Result<Vec<f64>, Failure> {
    let (tokens, heads) = (codec.page_tokens(), queries.len() / DIM);
    let mut query = Query::new();
    codec.prepare(queries, &mut query)?;
    let mut all = vec![0.0; heads * tokens * pages.len()];
    let mut scores = vec![0.0; heads * tokens];
    for (i, page) in pages.iter().enumerate() {
        codec.scores(&query, page, &mut scores)?;
        for (head, scores) in scores.chunks_exact(tokens).enumerate() {
            let at = (head * pages.len() + i) * tokens;
            all[at..at + tokens].iter_mut().zip(scores).for_each(|(all, score)| *all = f64::from(*score));
        }
    }
    Ok(all)
}

/// The errors of a codec for keys.
pub fn keys(spec: &CodecSpec, layers: &[Layer]) -> Result<KeyErrors, Failure> {
    let codec = spec.build(Side::Key, DIM)?;
    let mut sum = KeyErrors { bits: codec.bits_per_value(), ..KeyErrors::default() };
    let count = layers.iter().map(|layer| layer.keys.len()).sum::<usize>() as f64;
    let (mut noise, mut added) = (0.0, 0.0);
    for layer in layers {
        for (keys, queries) in layer.keys.iter().zip(&layer.queries) {
            let encoded = encode(&*codec, keys)?;
            let (mse, cosine) = vectors(keys, &encoded.decoded);
            let exact = products(queries, keys);
            let decoded = products(queries, &encoded.decoded);
            let kernel = scores(&*codec, queries, &encoded.pages)?;
            let power: f64 = exact.chunks_exact(keys.len() / DIM).map(spread).sum();
            sum.mse += mse / count;
            sum.cosine += cosine / count;
            sum.score += (distance(&decoded, &exact) / power).sqrt() / count;
            sum.kernel += (distance(&kernel, &exact) / power).sqrt() / count;
            noise += distance(&decoded, &exact) / power;
            added += distance(&kernel, &decoded) / power;
        }
    }
    sum.rounding = if noise > 0.0 { added / noise } else { 0.0 };
    Ok(sum)
}

/// Σ (x − mean)².
fn spread(x: &[f64]) -> f64 {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean) * (x - mean)).sum()
}

/// Softmax of a head's scores with its own keys, (queries, tokens).
fn weights(queries: &[f32], keys: &[f32]) -> Vec<f32> {
    let mut weights = Vec::new();
    for scores in products(queries, keys).chunks_exact(keys.len() / DIM) {
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let raw: Vec<f64> = scores.iter().map(|s| (SCALE * (s - top)).exp()).collect();
        let total: f64 = raw.iter().sum();
        weights.extend(raw.iter().map(|w| (w / total) as f32));
    }
    weights
}

/// Σ w·v, (queries, dim).
fn outputs(weights: &[f32], values: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for weights in weights.chunks_exact(values.len() / DIM) {
        let mut sum = [0.0; DIM];
        for (w, v) in weights.iter().zip(values.chunks_exact(DIM)) {
            sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += f64::from(*w) * f64::from(*v));
        }
        out.extend(sum);
    }
    out
}

/// Σ w·v by the codec's kernel, (queries, dim).
fn accumulated(codec: &dyn PageCodec, weights: &[f32], pages: &[Vec<u8>]) -> Result<Vec<f64>, Failure> {
    let tokens = codec.page_tokens();
    let heads = weights.len() / (tokens * pages.len());
    let mut sums = Accumulator::new(heads, DIM);
    for (i, page) in pages.iter().enumerate() {
        let share = weights.chunks_exact(tokens * pages.len()).flat_map(|w| &w[i * tokens..(i + 1) * tokens]);
        codec.accumulate(&share.copied().collect::<Vec<_>>(), page, &mut sums)?;
    }
    let mut out = vec![0.0; heads * DIM];
    codec.finish(&sums, &mut out)?;
    Ok(out.iter().map(|x| f64::from(*x)).collect())
}

/// The errors of a codec for values.
pub fn values(spec: &CodecSpec, layers: &[Layer]) -> Result<ValueErrors, Failure> {
    let codec = spec.build(Side::Value, DIM)?;
    let mut sum = ValueErrors { bits: codec.bits_per_value(), ..ValueErrors::default() };
    let count = layers.iter().map(|layer| layer.values.len()).sum::<usize>() as f64;
    let (mut noise, mut added) = (0.0, 0.0);
    for layer in layers {
        for ((values, keys), queries) in layer.values.iter().zip(&layer.keys).zip(&layer.queries) {
            let encoded = encode(&*codec, values)?;
            let (mse, cosine) = vectors(values, &encoded.decoded);
            let weights = weights(queries, keys);
            let exact = outputs(&weights, values);
            let decoded = outputs(&weights, &encoded.decoded);
            let kernel = accumulated(&*codec, &weights, &encoded.pages)?;
            let power: f64 = exact.iter().map(|x| x * x).sum();
            sum.mse += mse / count;
            sum.cosine += cosine / count;
            sum.output += (distance(&decoded, &exact) / power).sqrt() / count;
            sum.kernel += (distance(&kernel, &exact) / power).sqrt() / count;
            noise += distance(&decoded, &exact) / power;
            added += distance(&kernel, &decoded) / power;
        }
    }
    sum.rounding = if noise > 0.0 { added / noise } else { 0.0 };
    Ok(sum)
}
