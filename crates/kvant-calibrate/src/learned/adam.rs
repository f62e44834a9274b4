//! Adam (Kingma and Ba): steps along the mean gradient, each number's over the root of its mean square.

const MEAN_DECAY: f64 = 0.9;
const SQUARE_DECAY: f64 = 0.999;
/// Against a division by nothing.
const FLOOR: f64 = 1e-12;

pub(super) struct Adam {
    means: Vec<f64>,
    squares: Vec<f64>,
    steps: i32,
}

impl Adam {
    pub fn new(parameters: usize) -> Self {
        Self { means: vec![0.0; parameters], squares: vec![0.0; parameters], steps: 0 }
    }

    /// Moves the parameters against their gradient.
    pub fn step(&mut self, parameters: &mut [f64], gradient: &[f64], rate: f64) {
        self.steps += 1;
        // Both averages start at zero, and are too small by these shares.
        let [mean_share, square_share] = [MEAN_DECAY, SQUARE_DECAY].map(|decay| 1.0 - decay.powi(self.steps));
        let averages = self.means.iter_mut().zip(&mut self.squares);
        for ((parameter, g), (mean, square)) in parameters.iter_mut().zip(gradient).zip(averages) {
            *mean += (1.0 - MEAN_DECAY) * (g - *mean);
            *square += (1.0 - SQUARE_DECAY) * (g * g - *square);
            *parameter -= rate * (*mean / mean_share) / ((*square / square_share).sqrt() + FLOOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_the_rate_whatever_the_size_of_the_gradient() {
        let mut parameters = [1.0, 1.0, 1.0];
        Adam::new(3).step(&mut parameters, &[1e-3, -5.0, 0.0], 0.1);
        for (found, want) in parameters.iter().zip([0.9, 1.1, 1.0]) {
            assert!((found - want).abs() < 1e-6, "{parameters:?}");
        }
    }

    #[test]
    fn it_finds_the_bottom_of_a_bowl() {
        let mut x = [3.0, -2.0];
        let mut adam = Adam::new(2);
        for step in 0..400 {
            let gradient = [2.0 * (x[0] - 1.0), 200.0 * (x[1] + 0.5)];
            adam.step(&mut x, &gradient, 0.1 * (1.0 - f64::from(step) / 400.0));
        }
        assert!((x[0] - 1.0).abs() < 1e-2 && (x[1] + 0.5).abs() < 1e-2, "{x:?}");
    }
}
