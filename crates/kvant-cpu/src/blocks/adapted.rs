//! What LoRA adapters add to linear layers.

use crate::blocks::activations::{Activations, for_each_row};
use kvant_model::{AdapterMix, Chunk};
use kvant_simd::Tier;
use kvant_weights::{Number, multiply_dense};
use std::ops::Range;

/// The rows of a pass that run with adapters.
///
/// **Invariant:** a row with adapters depends on its own input alone, as rows without do: `A x` and `B (A x)` are products whose sums have
/// one order, and adapters are added in the order of their mix.
pub struct AdaptedRows<'p> {
    tier: Tier,
    /// Rows that follow one another and run with the same.
    stretches: Vec<(Range<usize>, &'p AdapterMix)>,
}

impl<'p> AdaptedRows<'p> {
    /// No rows.
    pub fn none() -> Self {
        Self { tier: Tier::Scalar, stretches: Vec::new() }
    }

    /// Those of a pass over these chunks.
    pub fn new(chunks: &'p [Chunk<'p>], tier: Tier) -> Self {
        let mut stretches: Vec<(Range<usize>, &AdapterMix)> = Vec::new();
        let mut start = 0;
        for chunk in chunks {
            let end = start + chunk.tokens();
            match (chunk.adapters, stretches.last_mut()) {
                // The weights are read once for neighbours.
                (Some(mix), Some((rows, last))) if rows.end == start && *last == mix => rows.end = end,
                (Some(mix), _) => stretches.push((start..end, mix)),
                (None, _) => {}
            }
            start = end;
        }
        Self { tier, stretches }
    }

    /// Adds `scale · B (A x)` to the rows of `y` whose adapters update the weight `name`; `x` and `y` have all rows of the pass.
    pub fn add(&self, name: &str, x: &Activations, y: &mut Activations) {
        for (rows, mix) in &self.stretches {
            let (inputs, outputs) = (x.width(), y.width());
            for applied in mix.iter() {
                let Some(update) = applied.adapter.update(name) else { continue };
                let rank = update.rank();
                let mut narrow = Activations::unset(rows.len(), rank);
                let from = &x.data()[rows.start * inputs..rows.end * inputs];
                multiply_dense(self.tier, Number::F32, update.a().bytes(), inputs, from, narrow.data_mut());
                let mut wide = Activations::unset(rows.len(), outputs);
                multiply_dense(
                    self.tier,
                    Number::F32,
                    update.b().bytes(),
                    rank,
                    narrow.data(),
                    wide.data_mut(),
                );
                let scale = update.scale() * applied.scale;
                let to = &mut y.data_mut()[rows.start * outputs..rows.end * outputs];
                for_each_row(to, outputs, |row, to| {
                    to.iter_mut().zip(wide.row(row)).for_each(|(y, d)| *y += scale * d);
                });
            }
        }
    }
}
