//! Made-up activations, and a cache that is run over them.

use kvant_attention::{Attention, Queries, Scoring};
use kvant_cache::{Arena, CacheLayout, KvSlot, Sequence};
use kvant_codec::Tier;
use proptest::prelude::ProptestConfig;
use std::sync::Arc;

/// Keys, values and queries of one layer.
#[derive(Clone)]
pub struct Activations {
    pub tokens: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// (tokens, kv heads, key_dim).
    pub keys: Vec<f32>,
    /// (tokens, kv heads, value_dim).
    pub values: Vec<f32>,
    /// (tokens, kv heads · group, key_dim).
    pub queries: Vec<f32>,
    /// The same as they meet the sinks of a streaming window, where there is one.
    pub at_sinks: Option<Vec<f32>>,
}

impl Activations {
    pub fn new(
        tokens: usize,
        kv_heads: usize,
        group: usize,
        key_dim: usize,
        value_dim: usize,
        seed: u64,
    ) -> Self {
        let mut noise = Noise(seed);
        let keys = noise.rows(tokens * kv_heads, key_dim, 1.0);
        let values = noise.rows(tokens * kv_heads, value_dim, 1.0);
        let queries = noise.rows(tokens * kv_heads * group, key_dim, 2.0);
        Activations { tokens, kv_heads, group, key_dim, value_dim, keys, values, queries, at_sinks: None }
    }

    pub fn heads(&self) -> usize {
        self.kv_heads * self.group
    }
}

/// Roughly Gaussian numbers; channels differ in size, as keys' do.
pub struct Noise(pub u64);

impl Noise {
    pub fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    fn gaussian(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f32>() * 1.414 - 4.243
    }

    fn rows(&mut self, count: usize, dim: usize, size: f32) -> Vec<f32> {
        let channels: Vec<f32> = (0..dim).map(|c| if c % 13 == 5 { 3.0 } else { 1.0 }).collect();
        (0..count * dim).map(|n| self.gaussian() * channels[n % dim] * size / (dim as f32).sqrt()).collect()
    }
}

/// A sequence with its driver.
pub struct Run<'a> {
    pub sequence: Sequence,
    pub attention: Attention,
    activations: &'a Activations,
    scoring: Scoring<'a>,
}

impl<'a> Run<'a> {
    pub fn new(
        layout: &Arc<CacheLayout>,
        tier: Tier,
        activations: &'a Activations,
        scoring: Scoring<'a>,
    ) -> Self {
        Run {
            sequence: Sequence::new(Arc::clone(layout), Arena::new()),
            attention: Attention::with_tier(tier),
            activations,
            scoring,
        }
    }

    /// Reads the next tokens in one chunk and returns what they attended to, (tokens, heads, value_dim).
    pub fn chunk(&mut self, tokens: usize) -> Vec<f32> {
        let Activations { key_dim, value_dim, kv_heads, .. } = *self.activations;
        let (start, heads) = (self.sequence.len(), self.activations.heads());
        let part = |all: &[f32], width: usize| all[start * width..(start + tokens) * width].to_vec();
        let keys = part(&self.activations.keys, kv_heads * key_dim);
        let values = part(&self.activations.values, kv_heads * value_dim);
        let queries = part(&self.activations.queries, heads * key_dim);
        let mut out = vec![f32::NAN; tokens * heads * value_dim];
        self.sequence.reserve(tokens).unwrap();
        let slot = first_slot(self.sequence.layout());
        self.sequence.append(slot, &keys, &values).unwrap();
        let at_sinks = self.activations.at_sinks.as_ref().map(|all| part(all, heads * key_dim));
        let queries = Queries { own: &queries, at_sinks: at_sinks.as_deref() };
        self.attention.attend(&self.sequence, slot, queries, &self.scoring, &mut out).unwrap();
        self.sequence.advance(tokens).unwrap();
        out
    }

    /// Reads up to `end`, in chunks of these sizes over and over.
    pub fn read(&mut self, end: usize, sizes: &[usize]) -> Vec<f32> {
        let mut out = Vec::new();
        for size in sizes.iter().cycle() {
            let left = end - self.sequence.len();
            if left == 0 {
                break;
            }
            out.extend(self.chunk((*size).min(left)));
        }
        out
    }
}

/// The slot of a layout with one.
pub fn first_slot(layout: &CacheLayout) -> KvSlot {
    layout.slot_list().kv(0).unwrap()
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// So many cases of a property, or the few that `PROPTEST_CASES` asks for under an emulator.
pub fn at_most(most: u32) -> ProptestConfig {
    ProptestConfig::with_cases(most.min(asked_cases()))
}

/// Whether to take this turn of a long list: every one, or one in seven where `PROPTEST_CASES` asks for haste, as it does
/// under an emulator.
pub fn taken(turn: usize) -> bool {
    asked_cases() >= 64 || turn.is_multiple_of(7)
}

fn asked_cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}
