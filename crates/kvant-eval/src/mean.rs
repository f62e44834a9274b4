//! A mean with its standard error.

/// The mean of numbers that come one by one, and how well it is known.
///
/// The standard error takes the numbers as independent. Those of neighbouring tokens are not quite (a hard passage is
/// hard throughout), so it is a lower bound; it is also what llama.cpp prints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    count: usize,
    mean: f64,
    /// Σ (x − mean)², kept up to date by Welford's rule: no difference of large sums.
    squares: f64,
}

impl Mean {
    /// Takes one more.
    pub fn push(&mut self, number: f64) {
        self.count += 1;
        let from_old = number - self.mean;
        self.mean += from_old / self.count as f64;
        self.squares += from_old * (number - self.mean);
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Their mean; zero for none.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Standard error of [`mean`](Self::mean); zero for less than two.
    pub fn stderr(&self) -> f64 {
        let n = self.count as f64;
        if self.count < 2 { 0.0 } else { (self.squares / (n * (n - 1.0))).sqrt() }
    }
}

impl Extend<f64> for Mean {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, numbers: I) {
        numbers.into_iter().for_each(|number| self.push(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_textbook() {
        let values: Vec<f64> = (0..500).map(|i| f64::from(i * i % 97) * 0.13 + 1e3).collect();
        let mut found = Mean::default();
        found.extend(values.iter().copied());
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert_eq!(found.count(), 500);
        assert!((found.mean() - mean).abs() < 1e-9);
        assert!((found.stderr() - (variance / n).sqrt()).abs() < 1e-9);
        assert_eq!(Mean::default().stderr(), 0.0);
    }
}
