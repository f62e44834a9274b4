//! Statistics of a forward pass, gathered where a cache stands.

use crate::moments::{Extent, Moments};
use kvant_codec::{Rotation, Tier};
use kvant_model::cache::{Cache, CacheFull, LayerState, Queries, Scoring, Streaming};

/// What was seen at one kv head.
pub struct HeadStatistics {
    /// Keys, after their rotation.
    pub keys: Moments,
    /// Queries of the group, after theirs.
    pub queries: Moments,
    /// Values.
    pub values: Moments,
    /// Keys, in the basis of λ.
    pub key_extent: Extent,
    /// Values, in the basis of λ.
    pub value_extent: Extent,
}

/// What was seen of a model: (entries, kv heads).
pub struct Statistics {
    entries: Vec<Vec<HeadStatistics>>,
    /// First tokens of a sequence whose keys and values are not counted, because they are not encoded either.
    sinks: usize,
    /// A head's rows of a chunk, for sums and for rotations.
    wide: Vec<f64>,
    narrow: Vec<f32>,
}

impl Statistics {
    /// Of nothing yet, for a model whose layers keep `states`, with λ for this rotation. The first `sinks` keys and values of
    /// every sequence are left out.
    pub fn new(states: &[LayerState], sinks: usize, (rotation, seed): (Rotation, u64), tier: Tier) -> Self {
        let entry = |state: &LayerState| match state {
            LayerState::KeysValues(shape) => {
                let head = |_| HeadStatistics {
                    keys: Moments::new(shape.key_dim),
                    queries: Moments::new(shape.key_dim),
                    values: Moments::new(shape.value_dim),
                    key_extent: Extent::new(shape.key_dim, rotation, seed, tier),
                    value_extent: Extent::new(shape.value_dim, rotation, seed, tier),
                };
                (0..shape.heads).map(head).collect()
            }
            _ => Vec::new(),
        };
        Self { entries: states.iter().map(entry).collect(), sinks, wide: Vec::new(), narrow: Vec::new() }
    }

    /// The heads of every entry.
    pub fn entries(&self) -> &[Vec<HeadStatistics>] {
        &self.entries
    }

    /// Keys `(tokens, kv_heads, key_dim)` and values of tokens that start at `position`.
    fn append(&mut self, entry: usize, position: usize, keys: &[f32], values: &[f32]) {
        let Self { entries, sinks, wide, narrow } = self;
        let count = entries[entry].len();
        let skipped = sinks.saturating_sub(position);
        for (head, statistics) in entries[entry].iter_mut().enumerate() {
            let HeadStatistics { keys: of_keys, values: of_values, key_extent, value_extent, .. } =
                statistics;
            for (rows, moments, extent) in [(keys, of_keys, key_extent), (values, of_values, value_extent)] {
                gather(rows, moments.dim(), (count, head..head + 1), skipped, narrow);
                wide.clear();
                wide.extend(narrow.iter().map(|&x| f64::from(x)));
                moments.add(wide);
                extent.add(narrow);
            }
        }
    }

    /// Queries `(tokens, heads, key_dim)`: those of a group are counted alike.
    fn attend(&mut self, entry: usize, queries: &[f32], tokens: usize) {
        let Self { entries, wide, narrow, .. } = self;
        let kv_heads = entries[entry].len();
        for (head, statistics) in entries[entry].iter_mut().enumerate() {
            let dim = statistics.queries.dim();
            let heads = queries.len() / (tokens * dim);
            let group = heads / kv_heads;
            gather(queries, dim, (heads, head * group..(head + 1) * group), 0, narrow);
            wide.clear();
            wide.extend(narrow.iter().map(|&x| f64::from(x)));
            statistics.queries.add(wide);
        }
    }
}

/// The vectors of some heads out of rows `(tokens, heads, dim)`, from token `skipped` on.
fn gather(
    rows: &[f32],
    dim: usize,
    (heads, wanted): (usize, std::ops::Range<usize>),
    skipped: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    for token in rows.chunks_exact(heads * dim).skip(skipped) {
        out.extend_from_slice(&token[wanted.start * dim..wanted.end * dim]);
    }
}

/// A cache that is watched: everything is passed on, and counted.
pub struct Observed<'a, C> {
    cache: C,
    statistics: &'a mut Statistics,
    /// Tokens of the chunk, known from what was reserved.
    chunk: usize,
}

impl<'a, C: Cache> Observed<'a, C> {
    /// Watches a cache.
    pub fn new(cache: C, statistics: &'a mut Statistics) -> Self {
        Self { cache, statistics, chunk: 0 }
    }
}

impl<C: Cache> Cache for Observed<'_, C> {
    fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    fn streaming(&self) -> Option<Streaming> {
        self.cache.streaming()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull> {
        self.chunk = tokens;
        self.cache.reserve(tokens)
    }

    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) {
        self.statistics.append(entry, self.cache.len(), keys, values);
        self.cache.append(entry, keys, values);
    }

    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]) {
        self.statistics.attend(entry, queries.own, self.chunk);
        self.cache.attend(entry, queries, scoring, out);
    }

    fn advance(&mut self, tokens: usize) {
        self.cache.advance(tokens);
    }
}
