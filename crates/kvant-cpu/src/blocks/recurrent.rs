//! What mixers with recurrent state share: the walk over the chunks of a pass, and decays.
//!
//! A mixer computes a token from the state at its chunk's start and the chunk's rows up to it, whichever pass they came in,
//! and adds in that order. So a token's bits depend on its place in its chunk alone.

use crate::blocks::Activations;
use crate::pass::CpuPass;
use kvant_cache::{CacheError, RecurrentState, STATE_CHUNK, StateError, StateSlot};
use std::ops::Range;

/// Calls `piece` for every piece of the pass that lies in one chunk of one sequence, with the piece's rows of activations; it
/// pushes their rows of state. `close` makes of the state at a chunk's start the one at its end, from its rows.
pub fn for_each_piece(
    pass: &mut CpuPass<'_, '_>,
    slot: StateSlot,
    mut piece: impl FnMut(&mut RecurrentState, Range<usize>) -> Result<(), CacheError>,
    close: impl Fn(&mut [f32], &[f32]),
) -> Result<(), StateError> {
    let tokens: Vec<usize> = pass.sequences().iter().map(|sequence| sequence.tokens).collect();
    let mut row = 0;
    for (sequence, tokens) in tokens.into_iter().enumerate() {
        let state = pass.recurrent(slot, sequence)?;
        let end = row + tokens;
        let mut run = || {
            while row < end {
                let count = (STATE_CHUNK - state.open_tokens()).min(end - row);
                piece(state, row..row + count)?;
                row += count;
                if state.open_tokens() == STATE_CHUNK {
                    state.close(&close)?;
                }
            }
            Ok(())
        };
        run().map_err(|error: CacheError| StateError::new(sequence, error))?;
    }
    Ok(())
}

/// `ln(1 + eˣ)`.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Columns `first .. first + width` of rows that are `stride` wide, those of `old` and then those of `new`.
pub fn gather(old: &[f32], new: &[f32], stride: usize, first: usize, width: usize) -> Activations {
    let rows = || old.chunks_exact(stride).chain(new.chunks_exact(stride));
    let mut gathered = Activations::unset((old.len() + new.len()) / stride, width);
    let to = gathered.data_mut().chunks_exact_mut(width);
    to.zip(rows()).for_each(|(to, row)| to.copy_from_slice(&row[first..first + width]));
    gathered
}

/// Makes of decays that new rows have from channel `first` on sums from the chunk's first token on.
pub fn add_up(state: &RecurrentState, new: &mut Activations, first: usize) {
    let mut sums = match state.rows().rchunks_exact(new.width()).next() {
        Some(row) => row[first..].to_vec(),
        None => vec![0.0; new.width() - first],
    };
    for token in 0..new.tokens() {
        for (sum, own) in sums.iter_mut().zip(&mut new.row_mut(token)[first..]) {
            *sum += *own;
            *own = *sum;
        }
    }
}

/// How much of every row is left at the last of them: `exp(sum of decays since row j)`. `decays` are sums from the chunk's
/// first token on, one per row.
pub fn remaining(decays: &[f32], left: &mut Vec<f32>) {
    let last = decays.last().copied().unwrap_or(0.0);
    left.clear();
    left.extend(decays.iter().map(|sum| (last - sum).exp()));
}

/// What is left of every row, times `by[j · step]`.
pub fn weighted(left: &[f32], by: &[f32], step: usize, weights: &mut Vec<f32>) {
    weights.clear();
    weights.extend(left.iter().zip(by.iter().step_by(step)).map(|(left, by)| left * by));
}
