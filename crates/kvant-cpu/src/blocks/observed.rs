//! A product that shows somebody its inputs.

use crate::blocks::{Activations, Multiply};
use kvant_model::InputObserver;
use kvant_model::description::Matrix;
use std::sync::Arc;

/// A product whose inputs are observed.
pub struct Observed {
    pub product: Box<dyn Multiply>,
    pub matrix: Matrix,
    pub observer: Arc<dyn InputObserver>,
}

impl Multiply for Observed {
    fn inputs(&self) -> usize {
        self.product.inputs()
    }

    fn outputs(&self) -> usize {
        self.product.outputs()
    }

    fn bytes(&self) -> &[u8] {
        self.product.bytes()
    }

    fn multiply(&self, x: &Activations) -> Activations {
        self.observer.observe(&self.matrix, x.data());
        self.product.multiply(x)
    }
}
