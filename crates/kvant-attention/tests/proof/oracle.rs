//! Attention by its definition, in f64.

use crate::model::Activations;
use half::f16;
use kvant_attention::Scoring;
use kvant_cache::{CacheLayout, LatentShape, Mode, SideCodecs};
use kvant_codec::{Element, Side};
use std::ops::Range;

/// Both forms of every row of one side of one kv head, by position.
struct Forms {
    exact: Vec<Vec<f64>>,
    /// As decoded from its page; the sinks have none.
    encoded: Vec<Vec<f64>>,
    page_tokens: usize,
}

fn forms(codecs: &SideCodecs, rows: &[Vec<f32>], sinks: usize) -> Forms {
    let (codec, tokens) = (codecs.codec(), codecs.page_tokens());
    let round = |x: f32| match codecs.exact().element() {
        Element::F32 => x,
        Element::F16 => f16::from_f32(x).to_f32(),
        Element::Bf16 => half::bf16::from_f32(x).to_f32(),
    };
    let rounded: Vec<Vec<f32>> = rows.iter().map(|row| row.iter().map(|x| round(*x)).collect()).collect();
    let mut encoded: Vec<Vec<f32>> = rounded.iter().take(sinks).cloned().collect();
    for page in rounded.get(sinks..).unwrap_or_default().chunks(tokens) {
        // Padded with its last token, as strict mode does.
        let padded: Vec<f32> = (0..tokens).flat_map(|t| page[t.min(page.len() - 1)].clone()).collect();
        let mut bytes = vec![0; codec.page_bytes()];
        codec.encode(&padded, &mut bytes).unwrap();
        let mut decoded = vec![0.0; padded.len()];
        codec.decode(&bytes, &mut decoded).unwrap();
        encoded.extend(decoded.chunks(codec.dim()).take(page.len()).map(<[f32]>::to_vec));
    }
    let wide = |rows: Vec<Vec<f32>>| {
        rows.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect::<Vec<_>>()
    };
    Forms { exact: wide(rounded), encoded: wide(encoded), page_tokens: tokens }
}

impl Forms {
    /// The row at `position` as the query at `query` reads it.
    fn row(&self, layout: &CacheLayout, query: usize, position: usize) -> &[f64] {
        let rule = layout.exact_window();
        if position < rule.sinks {
            return &self.exact[position];
        }
        let page_end = rule.sinks + ((position - rule.sinks) / self.page_tokens + 1) * self.page_tokens;
        let is_encoded = match rule.mode {
            Mode::Strict => true,
            Mode::Deployed => query >= page_end && query - page_end >= rule.recent,
        };
        if is_encoded { &self.encoded[position] } else { &self.exact[position] }
    }
}

/// What every query of slot 0 gets, (tokens, heads, value_dim).
pub fn attend(layout: &CacheLayout, a: &Activations, scoring: &Scoring<'_>) -> Vec<f64> {
    let keys = |head: usize| {
        let codecs = layout.slots()[0].heads()[head].side(Side::Key).unwrap();
        vec![forms(codecs, &rows(a, &a.keys, 0..a.key_dim, head), layout.exact_window().sinks)]
    };
    attend_with(layout, a, scoring, keys)
}

/// The same where slot 0 keeps latents, and the keys are their two parts side by side.
pub fn attend_latents(
    layout: &CacheLayout,
    a: &Activations,
    shape: LatentShape,
    scoring: &Scoring<'_>,
) -> Vec<f64> {
    let keys = |head: usize| {
        let codecs = &layout.slots()[0].heads()[head];
        let rotated = codecs.side(Side::Key).map(|side| (side, 0..shape.rope_dim));
        let latent = (codecs.side(Side::Value).unwrap(), shape.rope_dim..a.key_dim);
        let parts = rotated.into_iter().chain([latent]);
        parts
            .map(|(side, part)| forms(side, &rows(a, &a.keys, part, head), layout.exact_window().sinks))
            .collect()
    };
    attend_with(layout, a, scoring, keys)
}

/// Some channels of one head, by token.
fn rows(a: &Activations, all: &[f32], channels: Range<usize>, head: usize) -> Vec<Vec<f32>> {
    let dim = all.len() / a.tokens / a.kv_heads;
    let heads = all.chunks(a.kv_heads * dim).map(|token| &token[head * dim..(head + 1) * dim]);
    heads.map(|row| row[channels.clone()].to_vec()).collect()
}

/// Keys are put together of the parts that `keys` gives for a head.
fn attend_with(
    layout: &CacheLayout,
    a: &Activations,
    scoring: &Scoring<'_>,
    keys: impl Fn(usize) -> Vec<Forms>,
) -> Vec<f64> {
    let rule = layout.exact_window();
    let slot = &layout.slots()[0];
    let mut out = vec![0.0; a.tokens * a.heads() * a.value_dim];
    for head in 0..a.kv_heads {
        let codecs = &slot.heads()[head];
        let keys = keys(head);
        let values =
            forms(codecs.side(Side::Value).unwrap(), &rows(a, &a.values, 0..a.value_dim, head), rule.sinks);
        for query in 0..a.tokens {
            let native = slot.stored().unwrap().window.unwrap_or(usize::MAX);
            let streaming = rule.streaming.unwrap_or(usize::MAX);
            let sees = |position: usize| {
                let back = query - position;
                let as_sink = position < rule.sinks && streaming < native;
                back < native.min(streaming) || as_sink
            };
            let seen: Vec<usize> = (0..=query).filter(|position| sees(*position)).collect();
            for g in 0..a.group {
                let q_head = head * a.group + g;
                let at = (query * a.heads() + q_head) * a.key_dim;
                let score = |position: usize| {
                    let queries = match &a.at_sinks {
                        Some(turned) if position < rule.sinks => turned,
                        _ => &a.queries,
                    };
                    let key = keys.iter().flat_map(|part| part.row(layout, query, position));
                    let dot: f64 =
                        queries[at..at + a.key_dim].iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                    let s = dot * f64::from(scoring.scale);
                    scoring.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = seen.iter().map(|position| score(*position)).collect();
                let logit = scoring.sink_logits.map(|logits| f64::from(logits[q_head]));
                let top = scores.iter().copied().chain(logit).fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let mass = weights.iter().sum::<f64>() + logit.map_or(0.0, |logit| (logit - top).exp());
                let out = &mut out[(query * a.heads() + q_head) * a.value_dim..][..a.value_dim];
                for (position, weight) in seen.iter().zip(weights) {
                    let row = values.row(layout, query, *position);
                    out.iter_mut().zip(row).for_each(|(x, v)| *x += weight / mass * v);
                }
            }
        }
    }
    out
}

/// The largest difference, over the root mean square of what is expected.
pub fn distance(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let size = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len() as f64).sqrt();
    let worst = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
    // NaN must not pass for a small number.
    worst.fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) }) / size
}

/// The root mean square of the difference over that of what is expected, in the row that is worst.
pub fn row_distance(got: &[f32], expected: &[f64], width: usize) -> f64 {
    let size = |row: &mut dyn Iterator<Item = f64>| (row.map(|x| x * x).sum::<f64>() / width as f64).sqrt();
    let all = size(&mut expected.iter().copied()) / ((expected.len() / width) as f64).sqrt();
    let rows = got.chunks_exact(width).zip(expected.chunks_exact(width));
    rows.map(|(got, expected)| size(&mut got.iter().zip(expected).map(|(a, b)| f64::from(*a) - b)))
        .fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
        / all
}
