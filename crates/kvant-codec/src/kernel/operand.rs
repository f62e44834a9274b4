//! What a step carries between pages: prepared queries and running sums. Both keep their buffers when reused.

use super::round::Rounded;
use kvant_simd::LANES;
use std::sync::atomic::{AtomicU64, Ordering};

/// One span of one head, rounded to bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PreparedSpan {
    pub rounded: Rounded,
    /// Σ q over the span, for zeros.
    pub exact_sum: f32,
}

/// Queries of one group of heads in the codec's basis, made by [`crate::PageCodec::prepare`].
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub(super) heads: usize,
    /// The codec that prepared it, or [`Query::MODEL`].
    owner: u64,
    dim: usize,
    /// Floats per head: dim, padded with zeros so that a vector load past any span stays inside.
    stride: usize,
    /// (heads, stride).
    floats: Vec<f32>,
    /// (heads, 2 planes, stride).
    bytes: Vec<i8>,
    /// (heads, spans).
    pub(super) spans: Vec<PreparedSpan>,
    /// (heads): q·μ, added to every score.
    pub(super) bias: Vec<f32>,
    /// The queries of the codecs that a codec is made of.
    parts: Vec<Query>,
}

impl Query {
    /// An empty query; [`crate::PageCodec::prepare`] fills it.
    pub fn new() -> Query {
        Query::default()
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// The coordinates of a head in the codec's basis.
    pub fn floats(&self, head: usize) -> &[f32] {
        &self.floats[head * self.stride..head * self.stride + self.dim]
    }

    /// The owner of queries in the model's basis: any codec that decodes may use them.
    pub(crate) const MODEL: u64 = 0;

    /// A number that tells the queries of a new codec from all others.
    pub(crate) fn owner() -> u64 {
        static BUILT: AtomicU64 = AtomicU64::new(Query::MODEL + 1);
        BUILT.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes queries as they are for a codec that is made of `count` others, whose own queries are returned to be filled.
    pub(crate) fn split(&mut self, owner: u64, dim: usize, queries: &[f32], count: usize) -> &mut [Query] {
        self.copy(queries.len() / dim, dim, queries);
        self.owner = owner;
        self.parts.resize_with(count, Query::new);
        &mut self.parts
    }

    /// The queries of the codecs that a codec is made of.
    pub(crate) fn parts(&self) -> &[Query] {
        &self.parts
    }

    pub(super) fn reset(&mut self, owner: u64, heads: usize, dim: usize, spans: usize) {
        self.owner = owner;
        self.heads = heads;
        self.dim = dim;
        self.stride = dim.next_multiple_of(LANES) + LANES;
        self.floats.clear();
        self.floats.resize(heads * self.stride, 0.0);
        self.bytes.resize(heads * 2 * self.stride, 0);
        self.spans.resize(heads * spans, PreparedSpan::default());
        self.bias.clear();
        self.bias.resize(heads, 0.0);
    }

    /// Takes queries, (heads, dim), as they are.
    pub(crate) fn copy(&mut self, heads: usize, dim: usize, queries: &[f32]) {
        self.reset(Query::MODEL, heads, dim, 0);
        for (head, q) in queries.chunks_exact(dim).enumerate() {
            self.floats_mut(head)[..dim].copy_from_slice(q);
        }
    }

    /// The coordinates of a head with the zeros after them: whole vectors, and one more.
    pub(crate) fn padded(&self, head: usize) -> &[f32] {
        &self.floats[head * self.stride..(head + 1) * self.stride]
    }

    pub(super) fn floats_mut(&mut self, head: usize) -> &mut [f32] {
        &mut self.floats[head * self.stride..(head + 1) * self.stride]
    }

    pub(super) fn floats_of(&self, head: usize) -> *const f32 {
        self.floats[head * self.stride..].as_ptr()
    }

    pub(super) fn span(&self, head: usize, index: usize, spans: usize) -> PreparedSpan {
        self.spans[head * spans + index]
    }

    /// Bytes from one plane of a head to the next.
    pub(super) fn plane(&self) -> usize {
        self.stride
    }

    pub(super) fn bytes_of(&self, head: usize, first: usize) -> *const i8 {
        self.bytes[head * 2 * self.stride + first..].as_ptr()
    }

    pub(super) fn bytes_mut(&mut self, head: usize, first: usize) -> *mut i8 {
        self.bytes[head * 2 * self.stride + first..].as_mut_ptr()
    }

    /// Whether it was prepared for vectors of this dimension by this codec.
    pub(crate) fn fits(&self, dim: usize, owner: u64) -> bool {
        self.dim == dim && self.owner == owner
    }
}

/// Running sums Σ w·v and denominators Σ w of one group of heads, in the codec's basis.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    pub(super) heads: usize,
    pub(super) stride: usize,
    /// (heads, stride).
    pub(super) sums: Vec<f32>,
    /// (heads).
    pub(super) denominator: Vec<f32>,
}

impl Accumulator {
    /// Zero sums for `heads` query heads of `dim` channels.
    pub fn new(heads: usize, dim: usize) -> Accumulator {
        let mut sums = Accumulator::default();
        sums.reset(heads, dim);
        sums
    }

    /// Starts again at zero, keeping the buffers.
    pub fn reset(&mut self, heads: usize, dim: usize) {
        self.heads = heads;
        self.stride = dim.next_multiple_of(LANES);
        self.sums.clear();
        self.sums.resize(heads * self.stride, 0.0);
        self.denominator.clear();
        self.denominator.resize(heads, 0.0);
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Σ w of a head so far.
    pub fn denominator(&self, head: usize) -> f32 {
        self.denominator[head]
    }

    /// Multiplies a head's sums and denominator, as an online softmax does when its maximum moves.
    pub fn rescale(&mut self, head: usize, factor: f32) {
        self.denominator[head] *= factor;
        for x in &mut self.sums[head * self.stride..(head + 1) * self.stride] {
            *x *= factor;
        }
    }

    /// Adds another partial result of the same codec, as a split over pages does at its end.
    ///
    /// # Panics
    /// When the two have different shapes.
    pub fn merge(&mut self, other: &Accumulator) {
        assert!(self.heads == other.heads && self.stride == other.stride, "partial sums of different shapes");
        for (a, b) in self.sums.iter_mut().zip(&other.sums) {
            *a += b;
        }
        for (a, b) in self.denominator.iter_mut().zip(&other.denominator) {
            *a += b;
        }
    }

    /// For one head, multiplies its sums and denominator by `mine` and adds `theirs` times those of another partial result of
    /// the same codec: how an online softmax joins two parts with different maxima.
    ///
    /// # Panics
    /// When the two have different shapes.
    pub fn join(&mut self, head: usize, mine: f32, other: &Accumulator, theirs: f32) {
        assert!(self.heads == other.heads && self.stride == other.stride, "partial sums of different shapes");
        self.denominator[head] = self.denominator[head] * mine + other.denominator[head] * theirs;
        let range = head * self.stride..(head + 1) * self.stride;
        for (a, b) in self.sums[range.clone()].iter_mut().zip(&other.sums[range]) {
            *a = *a * mine + b * theirs;
        }
    }

    /// The sums of a head in the codec's basis, zeros after the last channel.
    pub fn sums(&self, head: usize) -> &[f32] {
        self.row(head)
    }

    pub(crate) fn row(&self, head: usize) -> &[f32] {
        &self.sums[head * self.stride..(head + 1) * self.stride]
    }

    /// The sums of a head, whole vectors.
    pub(crate) fn row_mut(&mut self, head: usize) -> &mut [f32] {
        &mut self.sums[head * self.stride..(head + 1) * self.stride]
    }

    /// Σ w of a head.
    pub(crate) fn denominator_mut(&mut self, head: usize) -> &mut f32 {
        &mut self.denominator[head]
    }

    pub(crate) fn add_row(&mut self, head: usize, weight: f32, row: &[f32]) {
        self.denominator[head] += weight;
        for (sum, x) in self.sums[head * self.stride..].iter_mut().zip(row) {
            *sum += weight * x;
        }
    }

    /// Whether it has room for vectors of this dimension.
    pub(crate) fn fits(&self, dim: usize) -> bool {
        self.stride == dim.next_multiple_of(LANES)
    }
}
