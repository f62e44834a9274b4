//! A mean with its standard error.

/// Mean surprise, gathered token by token.
///
/// The standard error takes tokens as independent. They are not quite (a hard passage is hard throughout), so
/// it is a lower bound; it is also what llama.cpp prints. Between two caches on the *same* tokens the
/// difference is known far better than either value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    tokens: usize,
    mean: f64,
    /// Σ (x − mean)², kept up to date by Welford's rule: no difference of large sums.
    squares: f64,
}

impl Estimate {
    /// Takes one more token's surprise, in nats.
    pub fn push(&mut self, surprise: f64) {
        self.tokens += 1;
        let from_old = surprise - self.mean;
        self.mean += from_old / self.tokens as f64;
        self.squares += from_old * (surprise - self.mean);
    }

    /// Tokens taken.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean surprise in nats per token.
    pub fn nll_mean(&self) -> f64 {
        self.mean
    }

    /// Standard error of [`nll_mean`](Self::nll_mean); zero for less than two tokens.
    pub fn nll_stderr(&self) -> f64 {
        let n = self.tokens as f64;
        if self.tokens < 2 { 0.0 } else { (self.squares / (n * (n - 1.0))).sqrt() }
    }

    /// Perplexity: e to the mean surprise.
    pub fn ppl(&self) -> f64 {
        self.mean.exp()
    }

    /// Standard error of [`ppl`](Self::ppl), to first order.
    pub fn ppl_stderr(&self) -> f64 {
        self.ppl() * self.nll_stderr()
    }
}

impl Extend<f64> for Estimate {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, surprises: I) {
        surprises.into_iter().for_each(|surprise| self.push(surprise));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_textbook() {
        let values: Vec<f64> = (0..500).map(|i| f64::from(i * i % 97) * 0.13 + 1e3).collect();
        let mut estimate = Estimate::default();
        estimate.extend(values.iter().copied());
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert_eq!(estimate.tokens(), 500);
        assert!((estimate.nll_mean() - mean).abs() < 1e-9);
        assert!((estimate.nll_stderr() - (variance / n).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn perplexity_of_a_coin_is_two() {
        let mut estimate = Estimate::default();
        estimate.extend([2f64.ln(); 10]);
        assert!((estimate.ppl() - 2.0).abs() < 1e-12 && estimate.ppl_stderr() < 1e-12);
        assert_eq!(Estimate::default().ppl_stderr(), 0.0);
    }
}
