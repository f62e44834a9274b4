//! Perplexity from token_nlls.

use crate::mean::Mean;

/// Mean nll, gathered token by token. Between two caches on the *same* tokens the difference is known far better
/// than either value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    nll: Mean,
}

impl Estimate {
    /// Takes one more token's nll, in nats.
    pub fn push(&mut self, nll: f64) {
        self.nll.push(nll);
    }

    /// Tokens taken.
    pub fn tokens(&self) -> usize {
        self.nll.count()
    }

    /// Mean nll in nats per token.
    pub fn nll_mean(&self) -> f64 {
        self.nll.mean()
    }

    /// Standard error of [`nll_mean`](Self::nll_mean); zero for less than two tokens.
    pub fn nll_stderr(&self) -> f64 {
        self.nll.stderr()
    }

    /// Perplexity: e to the mean nll.
    pub fn ppl(&self) -> f64 {
        self.nll_mean().exp()
    }

    /// Standard error of [`ppl`](Self::ppl), to first order.
    pub fn ppl_stderr(&self) -> f64 {
        self.ppl() * self.nll_stderr()
    }
}

impl Extend<f64> for Estimate {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, token_nlls: I) {
        self.nll.extend(token_nlls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_of_a_coin_is_two() {
        let mut estimate = Estimate::default();
        estimate.extend([2f64.ln(); 10]);
        assert!((estimate.ppl() - 2.0).abs() < 1e-12 && estimate.ppl_stderr() < 1e-12);
        assert_eq!(Estimate::default().ppl_stderr(), 0.0);
    }
}
