//! Causal convolutions of every channel by itself, over a recurrent slot.

use crate::blocks::activations::{Activations, for_each_row};
use crate::blocks::function;
use kvant_cache::RecurrentState;
use kvant_model::description::Activation;

/// A convolution. A slot's state begins with its tail, the last `kernel − 1` inputs before the open chunk, and a row with the
/// token's input.
pub struct Convolution {
    /// Channels of its input and of its output.
    channels: usize,
    /// Taps.
    kernel: usize,
    /// `(kernel, channels)`; the last tap is the current token's.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Option<Activation>,
}

impl Convolution {
    /// From taps `(channels, kernel)`, as files have them.
    pub fn new(
        (channels, kernel): (usize, usize),
        weight: &[f32],
        bias: Option<Vec<f32>>,
        activation: Option<Activation>,
    ) -> Self {
        assert_eq!(weight.len(), channels * kernel, "taps of {channels} channels");
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == channels), "a bias of another width");
        let taps = (0..kernel).flat_map(|tap| weight.iter().skip(tap).step_by(kernel).copied()).collect();
        Self { channels, kernel, taps, bias, activation }
    }

    /// Channels of its input and of its output.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Numbers of its tail.
    pub fn tail(&self) -> usize {
        (self.kernel - 1) * self.channels
    }

    /// The outputs of further tokens of the open chunk, `(tokens, channels)`; `new` has their rows, not yet pushed.
    pub fn forward(&self, state: &RecurrentState, new: &Activations) -> Activations {
        let (before, width, channels) = (state.open_tokens(), new.width(), self.channels);
        let (tail, old, fresh) = (state.part(0..self.tail()), state.rows(), new.data());
        // The input of the token at this place in the chunk, counted from `kernel − 1` places before its start.
        let input = |at: usize| match at.checked_sub(self.kernel - 1) {
            None => &tail[at * channels..][..channels],
            Some(at) if at < before => &old[at * width..][..channels],
            Some(at) => &fresh[(at - before) * width..][..channels],
        };
        let mut out = Activations::unset(new.tokens(), channels);
        for_each_row(out.data_mut(), channels, |token, out| {
            match &self.bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for (tap, weights) in self.taps.chunks_exact(channels).enumerate() {
                let input = input(before + token + tap);
                out.iter_mut().zip(weights).zip(input).for_each(|((y, w), x)| *y += w * x);
            }
        });
        if let Some(activation) = self.activation {
            function::in_place(activation, out.data_mut(), channels);
        }
        out
    }

    /// Makes of the tail at a chunk's start the one at its end; `rows` are the chunk's.
    pub fn advance(&self, tail: &mut [f32], rows: &[f32], width: usize) {
        let channels = self.channels;
        let tokens = rows.len() / width;
        for at in 0..self.kernel - 1 {
            let to = at * channels;
            match (at + tokens).checked_sub(self.kernel - 1) {
                Some(row) => tail[to..][..channels].copy_from_slice(&rows[row * width..][..channels]),
                // A kernel longer than a chunk keeps inputs of the one before.
                None => tail.copy_within((at + tokens) * channels..(at + tokens + 1) * channels, to),
            }
        }
    }
}
