//! Normalisation of rows: RMS and layer norm.

use crate::blocks::activations::{Activations, for_each_row};
use crate::blocks::dot::dot;

/// A normalisation over stretches of `weight.len()` values. Over a row it is the usual norm; over rows that
/// hold several heads, a norm of one head's width acts on each head by itself.
#[derive(Debug, Clone)]
pub struct Norm {
    weight: Vec<f32>,
    kind: Kind,
    eps: f32,
}

#[derive(Debug, Clone)]
enum Kind {
    Rms,
    Layer { bias: Option<Vec<f32>> },
}

impl Norm {
    /// `x / rms(x) · weight`. Families that store `weight − 1` pass the sum.
    pub fn rms(weight: Vec<f32>, eps: f32) -> Self {
        assert!(!weight.is_empty(), "a norm of nothing");
        Self { weight, kind: Kind::Rms, eps }
    }

    /// `(x − mean) / deviation · weight + bias`.
    pub fn layer(weight: Vec<f32>, bias: Option<Vec<f32>>, eps: f32) -> Self {
        assert!(!weight.is_empty(), "a norm of nothing");
        assert!(bias.as_ref().is_none_or(|b| b.len() == weight.len()), "a bias of another width");
        Self { weight, kind: Kind::Layer { bias }, eps }
    }

    /// Normalises a copy.
    pub fn forward(&self, x: &Activations) -> Activations {
        let mut y = Activations::unset(x.tokens(), x.width());
        self.check(&y);
        let width = self.weight.len();
        for_each_row(y.data_mut(), width, |index, row| {
            row.copy_from_slice(&x.data()[index * width..][..width]);
            self.stretch(row);
        });
        y
    }

    /// Normalises every stretch of the norm's width.
    pub fn in_place(&self, x: &mut Activations) {
        self.check(x);
        for_each_row(x.data_mut(), self.weight.len(), |_, row| self.stretch(row));
    }

    fn check(&self, x: &Activations) {
        assert!(x.width().is_multiple_of(self.weight.len()), "rows that the norm does not divide");
    }

    fn stretch(&self, row: &mut [f32]) {
        let n = row.len() as f32;
        match &self.kind {
            Kind::Rms => {
                let scale = 1.0 / (dot(row, row) / n + self.eps).sqrt();
                row.iter_mut().zip(&self.weight).for_each(|(x, w)| *x = *x * scale * w);
            }
            Kind::Layer { bias } => {
                let mean = row.iter().sum::<f32>() / n;
                row.iter_mut().for_each(|x| *x -= mean);
                let scale = 1.0 / (dot(row, row) / n + self.eps).sqrt();
                row.iter_mut().zip(&self.weight).for_each(|(x, w)| *x = *x * scale * w);
                if let Some(bias) = bias {
                    row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_divides_by_the_root_mean_square_and_weighs() {
        let mut x = Activations::from_vec(vec![3.0, -4.0, 0.0, 10.0], 2);
        Norm::rms(vec![1.0, 2.0], 0.0).in_place(&mut x);
        let rms = 12.5f32.sqrt();
        let expected = [3.0 / rms, -8.0 / rms, 0.0, 2.0 * 2f32.sqrt()];
        x.data().iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} {b}"));
    }

    #[test]
    fn a_narrow_norm_acts_on_each_head_of_a_row() {
        let row = vec![1.0, 2.0, -3.0, 5.0, 0.5, 0.25];
        let norm = Norm::rms(vec![0.5, 1.5], 1e-6);
        let mut heads = Activations::from_vec(row.clone(), 6);
        let mut apart = Activations::from_vec(row, 2);
        norm.in_place(&mut heads);
        norm.in_place(&mut apart);
        assert_eq!(heads.data(), apart.data());
    }

    #[test]
    fn layer_removes_mean_and_deviation() {
        let x = Activations::from_vec(vec![1.0, 2.0, 3.0, 6.0], 4);
        let y = Norm::layer(vec![1.0; 4], Some(vec![0.5; 4]), 0.0).forward(&x);
        let deviation = 3.5f32.sqrt();
        let expected = [-2.0, -1.0, 0.0, 3.0].map(|d: f32| d / deviation + 0.5);
        y.data().iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} {b}"));
    }
}
