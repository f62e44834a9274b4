//! Gated short convolutions.

use crate::blocks::recurrent::for_each_piece;
use crate::blocks::{Activations, Block, ShortConv};
use crate::pass::CpuPass;
use kvant_cache::StateError;

impl Block<'_, ShortConv> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let channels = self.conv.channels();
        let projected = self.input.forward(x); // (tokens, 3, channels): B, C, x
        let mut mixed = Activations::unset(x.tokens(), channels);
        for_each_piece(
            pass,
            self.slot,
            |state, rows| {
                let mut new = Activations::unset(rows.len(), channels);
                for (token, row) in rows.clone().enumerate() {
                    let (b, x) = (&projected.row(row)[..channels], &projected.row(row)[2 * channels..]);
                    let to = new.row_mut(token).iter_mut();
                    to.zip(b).zip(x).for_each(|((y, b), x)| *y = b * x);
                }
                let convolved = self.conv.forward(state, &new);
                for (token, row) in rows.enumerate() {
                    let c = &projected.row(row)[channels..2 * channels];
                    let to = mixed.row_mut(row).iter_mut();
                    to.zip(c).zip(convolved.row(token)).for_each(|((y, c), x)| *y = c * x);
                }
                state.push(new.data())
            },
            |state, rows| self.conv.advance(state, rows, channels),
        )?;
        Ok(self.output.forward(&mixed))
    }
}
