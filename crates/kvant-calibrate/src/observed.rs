//! Statistics of forward passes: what an observer of keys, values and queries gathers.

use crate::moments::{Extent, Moments};
use crate::reservoir::Reservoir;
use kvant_cache::{AttentionObserver, KvSlot, Queries, Scoring, SequencePass, SlotKind, Slots};
use kvant_codec::{Rotation, Tier};

/// What was seen at one kv head.
pub struct HeadStatistics {
    /// Keys, after their rotation.
    pub keys: Moments,
    /// Queries of the group, after theirs.
    pub queries: Moments,
    /// Values.
    pub values: Moments,
    /// What the heads of the group do with values: the rows of W_o at their channels, one head after the other.
    pub output_gram: Moments,
    /// Keys, in the basis of λ.
    pub key_extent: Extent,
    /// Values, in the basis of λ.
    pub value_extent: Extent,
    /// Keys and values to learn from; `None` when nothing is to be learned.
    pub samples: Option<[Reservoir; 2]>,
}

/// Positions of a sequence whose keys and values are looked at for their [`Extent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// All of them.
    #[default]
    All,
    /// The first so many.
    First(usize),
    /// One of so many, over the whole sequence.
    Every(usize),
}

impl Positions {
    fn has(self, position: usize) -> bool {
        match self {
            Positions::All => true,
            Positions::First(count) => position < count,
            Positions::Every(count) => position.is_multiple_of(count.max(1)),
        }
    }
}

/// What was seen of a model: (slots, kv heads); no heads where a slot has no keys and values of its own.
pub struct Statistics {
    slots: Vec<Vec<HeadStatistics>>,
    /// The slot that really holds what a slot reads.
    owners: Vec<usize>,
    /// First tokens of a sequence whose keys and values are not counted, because they are not encoded either.
    sinks: usize,
    /// Where extents are taken from.
    extents: Positions,
    /// A head's rows of a chunk, for sums and for rotations.
    wide: Vec<f64>,
    narrow: Vec<f32>,
}

impl Statistics {
    /// Of nothing yet, for a model with these slots, with λ for this rotation. The first `sinks` keys and values of
    /// every sequence are left out.
    pub fn new(slots: &Slots, sinks: usize, (rotation, seed): (Rotation, u64), tier: Tier) -> Self {
        let slot = |kind: &SlotKind| match kind {
            SlotKind::KeysValues(shape) => {
                let head = |_| HeadStatistics {
                    keys: Moments::new(shape.key_dim),
                    queries: Moments::new(shape.key_dim),
                    values: Moments::new(shape.value_dim),
                    output_gram: Moments::new(shape.value_dim),
                    key_extent: Extent::new(shape.key_dim, rotation, seed, tier),
                    value_extent: Extent::new(shape.value_dim, rotation, seed, tier),
                    samples: None,
                };
                (0..shape.kv_heads).map(head).collect()
            }
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => Vec::new(),
        };
        let owner = |index| slots.kv(index).map_or(index, |slot| slots.owner(slot).index());
        Self {
            slots: slots.iter().map(|(_, one)| slot(&one.kind)).collect(),
            owners: (0..slots.len()).map(owner).collect(),
            sinks,
            extents: Positions::All,
            wide: Vec::new(),
            narrow: Vec::new(),
        }
    }

    /// Extents from these positions alone.
    pub fn with_extents(self, extents: Positions) -> Self {
        Self { extents, ..self }
    }

    /// With samples of at most so many keys and values of each head.
    pub fn with_samples(mut self, rows: usize, seed: u64) -> Self {
        for head in self.slots.iter_mut().flatten() {
            let sample = |of: &Moments| Reservoir::new(of.dim(), rows, seed);
            head.samples = Some([sample(&head.keys), sample(&head.values)]);
        }
        self
    }

    /// Output weights `(outputs, heads, value_dim)` of a layer that reads the slot.
    ///
    /// # Panics
    /// When there is no such slot, or the weights are not of its shape.
    pub fn read_by(&mut self, slot: KvSlot, weights: &[f32], outputs: usize) {
        let Self { slots, owners, wide, narrow, .. } = self;
        by_group(
            &mut slots[owners[slot.index()]],
            |head| &mut head.output_gram,
            weights,
            outputs,
            (wide, narrow),
        );
    }

    /// The heads of every slot.
    pub fn slots(&self) -> &[Vec<HeadStatistics>] {
        &self.slots
    }

    /// Keys `(tokens, kv_heads, key_dim)` and values of tokens that start at `position`.
    pub fn add_keys_values(&mut self, slot: KvSlot, position: usize, keys: &[f32], values: &[f32]) {
        let Self { slots, sinks, extents, wide, narrow, .. } = self;
        let heads = &mut slots[slot.index()];
        let count = heads.len();
        let skipped = sinks.saturating_sub(position);
        for (head, statistics) in heads.iter_mut().enumerate() {
            let HeadStatistics {
                keys: of_keys, values: of_values, key_extent, value_extent, samples, ..
            } = statistics;
            let [of_key_rows, of_value_rows] = match samples {
                Some([keys, values]) => [Some(keys), Some(values)],
                None => [None, None],
            };
            for (rows, moments, sample, extent) in
                [(keys, of_keys, of_key_rows, key_extent), (values, of_values, of_value_rows, value_extent)]
            {
                gather(rows, moments.dim(), (count, head..head + 1), skipped, narrow);
                wide.clear();
                wide.extend(narrow.iter().map(|&x| f64::from(x)));
                moments.add(wide);
                if let Some(sample) = sample {
                    sample.add(narrow);
                }
                keep(narrow, moments.dim(), |token| extents.has(position + skipped + token));
                extent.add(narrow);
            }
        }
    }

    /// Queries `(tokens, heads, key_dim)`: those of a group are counted alike.
    pub fn add_queries(&mut self, slot: KvSlot, queries: &[f32], tokens: usize) {
        let Self { slots, owners, wide, narrow, .. } = self;
        by_group(&mut slots[owners[slot.index()]], |head| &mut head.queries, queries, tokens, (wide, narrow));
    }
}

/// Adds rows `(count, heads, dim)` of all heads to those moments of each kv head whose group they belong to.
fn by_group(
    of_slot: &mut [HeadStatistics],
    moments: impl Fn(&mut HeadStatistics) -> &mut Moments,
    rows: &[f32],
    count: usize,
    (wide, narrow): (&mut Vec<f64>, &mut Vec<f32>),
) {
    let kv_heads = of_slot.len();
    for (head, statistics) in of_slot.iter_mut().enumerate() {
        let moments = moments(statistics);
        let dim = moments.dim();
        let heads = rows.len() / (count * dim);
        let group = heads / kv_heads;
        gather(rows, dim, (heads, head * group..(head + 1) * group), 0, narrow);
        wide.clear();
        wide.extend(narrow.iter().map(|&x| f64::from(x)));
        moments.add(wide);
    }
}

/// Leaves only the vectors of `rows`, (n, dim), whose number is wanted.
fn keep(rows: &mut Vec<f32>, dim: usize, wanted: impl Fn(usize) -> bool) {
    let mut number = 0;
    rows.retain(|_| {
        number += 1;
        wanted((number - 1) / dim)
    });
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

impl AttentionObserver for Statistics {
    fn append(&mut self, sequences: &[SequencePass], slot: KvSlot, keys: &[f32], values: &[f32]) {
        let rows: usize = sequences.iter().map(|one| one.tokens).sum();
        let (key_width, value_width) = (keys.len() / rows.max(1), values.len() / rows.max(1));
        let mut row = 0;
        for one in sequences {
            let end = row + one.tokens;
            let (keys, values) =
                (&keys[row * key_width..end * key_width], &values[row * value_width..end * value_width]);
            self.add_keys_values(slot, one.start, keys, values);
            row = end;
        }
    }

    fn attend(
        &mut self,
        sequences: &[SequencePass],
        slot: KvSlot,
        queries: Queries<'_>,
        _: &Scoring<'_>,
        _: &[f32],
    ) {
        self.add_queries(slot, queries.own, sequences.iter().map(|one| one.tokens).sum());
    }
}
