//! Mixtures of experts: a router picks a few small perceptrons for each token.

use crate::blocks::{Linear, Mlp, Rows};

/// A mixture of experts.
pub struct Moe {
    /// From the residual stream to one logit per expert.
    pub router: Linear,
    /// The experts.
    pub experts: Vec<Mlp>,
    /// Experts per token.
    pub chosen: usize,
    /// Whether the chosen experts' shares are scaled to add up to one.
    pub renormalise: bool,
    /// An expert every token visits, and the gate whose sigmoid weighs it.
    pub shared: Option<(Mlp, Linear)>,
}

impl Moe {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    ///
    /// Tokens are gathered by expert so that an expert's weights are read once; a token's experts are added in
    /// the order of their numbers, so its sum does not depend on the other tokens.
    pub fn forward(&self, x: &Rows) -> Rows {
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()]; // (token, share)
        let mut shares = self.router.forward(x); // (tokens, experts)
        for token in 0..x.tokens() {
            let shares = shares.row_mut(token);
            softmax(shares);
            for (expert, share) in self.choose(shares) {
                visits[expert].push((token, share));
            }
        }
        let mut out = Rows::zeros(x.tokens(), x.width());
        for (expert, visits) in self.experts.iter().zip(&visits).filter(|(_, visits)| !visits.is_empty()) {
            let tokens: Vec<usize> = visits.iter().map(|&(token, _)| token).collect();
            let results = expert.forward(&x.gather(&tokens));
            for (i, &(token, share)) in visits.iter().enumerate() {
                add(out.row_mut(token), results.row(i), share);
            }
        }
        if let Some((expert, gate)) = &self.shared {
            let (results, gates) = (expert.forward(x), gate.forward(x)); // (tokens, hidden), (tokens, 1)
            for token in 0..x.tokens() {
                let share = 1.0 / (1.0 + (-gates.row(token)[0]).exp());
                add(out.row_mut(token), results.row(token), share);
            }
        }
        out
    }

    /// The experts with the largest shares; the lower number wins a tie.
    fn choose(&self, shares: &[f32]) -> Vec<(usize, f32)> {
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]).then(a.cmp(&b)));
        order.truncate(self.chosen);
        let total: f32 = if self.renormalise { order.iter().map(|&e| shares[e]).sum() } else { 1.0 };
        order.into_iter().map(|expert| (expert, shares[expert] / total)).collect()
    }
}

fn add(out: &mut [f32], values: &[f32], share: f32) {
    out.iter_mut().zip(values).for_each(|(x, v)| *x += share * v);
}

fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let mass: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= mass);
}
