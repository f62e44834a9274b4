//! What every channel of every layer is multiplied with: mean squares over a text.
//!
//! An error δ in a row of weights changes an output by δ·x. If channels are uncorrelated, its mean square is Σ δ²·E[x²]: the
//! mean squares are how much a channel's rounding matters.

use kvant_model::InputObserver;
use kvant_model::description::Matrix;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Share of the mean over all channels that is added to each: a channel that was silent in the text still counts.
const FLOOR: f64 = 1e-3;

/// Mean squares of the inputs of linear layers. Give it to a backend that shows inputs, and run a text.
#[derive(Debug, Default)]
pub struct Importance {
    /// By tensor, and by expert in a tensor of all experts.
    layers: Mutex<HashMap<(String, Option<usize>), Moments>>,
    /// How often something was asked for and found.
    used: AtomicUsize,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Moments {
    /// Sums of squares.
    pub squares: Vec<f64>, // (inputs)
    pub tokens: u64,
}

impl InputObserver for Importance {
    fn observe(&self, matrix: &Matrix, x: &[f32]) {
        let inputs = matrix.inputs();
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let moments = layers.entry((matrix.tensor.name.clone(), matrix.expert)).or_default();
        moments.squares.resize(inputs, 0.0);
        for row in x.chunks_exact(inputs.max(1)) {
            moments.squares.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
            moments.tokens += 1;
        }
    }
}

impl Importance {
    /// Layers that saw something.
    pub fn layers(&self) -> usize {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The weights of a matrix's inputs; none where the text did not reach it, or said nothing.
    pub(crate) fn of(&self, tensor: &str, expert: Option<usize>, inputs: usize) -> Option<Arc<[f32]>> {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = layers.get(&(tensor.to_owned(), expert)).map(|moments| moments.squares.as_slice());
        // A file may have all experts of a tensor one after another.
        let among_all = || {
            let all =
                &layers.get(&(tensor.to_owned(), None)).filter(|all| all.squares.len() > inputs)?.squares;
            all.get(expert? * inputs..)?.get(..inputs)
        };
        let squares = own.or_else(among_all).filter(|squares| squares.len() == inputs)?;
        let mean = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
        // Relative to the mean, so that f32 holds them whatever the activations are.
        let weight = |&square: &f64| (square / mean + FLOOR) as f32;
        self.used.fetch_add(1, Ordering::Relaxed);
        (mean.is_finite() && mean > 0.0).then(|| squares.iter().map(weight).collect())
    }

    /// How many matrices have been weighed with it.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn of_layers(layers: Vec<((String, Option<usize>), Moments)>) -> Self {
        Self { layers: Mutex::new(layers.into_iter().collect()), used: AtomicUsize::new(0) }
    }

    pub(crate) fn snapshot(&self) -> Vec<((String, Option<usize>), Moments)> {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        layers.iter().map(|(key, moments)| (key.clone(), moments.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::description::TensorRef;

    #[test]
    fn weights_are_mean_squares_over_their_mean() {
        let matrix = Matrix::whole(TensorRef { name: "w".into(), shape: vec![3, 2] });
        let importance = Importance::default();
        assert!(importance.of("w", None, 2).is_none());
        importance.observe(&matrix, &[1.0, 0.0, -1.0, 2.0]);
        importance.observe(&matrix, &[1.0, 1.0]);
        let found = importance.of("w", None, 2).unwrap();
        let expected = [3.0 / 4.0 + FLOOR, 5.0 / 4.0 + FLOOR].map(|w| w as f32);
        assert_eq!(*found, expected);
        assert!(importance.of("w", Some(0), 2).is_none());
    }
}
