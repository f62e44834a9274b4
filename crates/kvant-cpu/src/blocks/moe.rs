//! Mixtures of experts: a router picks a few small MLPs for each token.

use crate::blocks::{Activations, AdaptedRows, Block, Moe, Router};
use kvant_model::description::{ExpertGroups, Renormalise, RouterScore};

impl Block<'_, Moe> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    ///
    /// Tokens are gathered by expert so that an expert's weights are read once; a token's experts are added in
    /// the order of their numbers, so its sum does not depend on the other tokens.
    pub fn forward(&self, x: &Activations, residual: &Activations) -> Activations {
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()]; // (token, share)
        let router = Block(&self.router);
        let mut logits = router.logits(if router.reads_residual { residual } else { x });
        for token in 0..x.tokens() {
            for (expert, share) in router.choose(logits.row_mut(token)) {
                visits[expert].push((token, share));
            }
        }
        let narrow = self.latent.as_ref().map(|(into, _)| into.forward(x));
        let input = narrow.as_ref().unwrap_or(x);
        let mut out = Activations::zeros(x.tokens(), input.width());
        for (expert, visits) in self.experts.iter().zip(&visits).filter(|(_, visits)| !visits.is_empty()) {
            let tokens: Vec<usize> = visits.iter().map(|&(token, _)| token).collect();
            let results = Block(expert).forward(&input.gather(&tokens), &AdaptedRows::none());
            for (i, &(token, share)) in visits.iter().enumerate() {
                add(out.row_mut(token), results.row(i), share);
            }
        }
        if let Some((_, back)) = &self.latent {
            out = back.forward(&out);
        }
        if let Some(shared) = &self.shared {
            let results = Block(&shared.mlp).forward(x, &AdaptedRows::none()); // (tokens, hidden)
            let gates = shared.gate.as_ref().map(|gate| gate.forward(x)); // (tokens, 1)
            for token in 0..x.tokens() {
                let share = gates.as_ref().map_or(1.0, |gates| sigmoid(gates.row(token)[0]));
                add(out.row_mut(token), results.row(token), share);
            }
        }
        out
    }
}

impl Block<'_, Router> {
    /// One logit per expert, `(tokens, experts)`.
    fn logits(&self, x: &Activations) -> Activations {
        if self.norm.is_none() && self.input_scale.is_none() {
            return self.linear.forward(x);
        }
        let mut input = x.clone();
        if let Some(norm) = &self.norm {
            norm.in_place(&mut input);
        }
        if let Some(scale) = &self.input_scale {
            for token in 0..input.tokens() {
                input.row_mut(token).iter_mut().zip(scale).for_each(|(x, s)| *x *= s);
            }
        }
        self.linear.forward(&input)
    }

    /// The experts of a token and their weights, from one logit each; the lower number wins a tie.
    fn choose(&self, logits: &mut [f32]) -> Vec<(usize, f32)> {
        if self.logit_scale != 1.0 {
            logits.iter_mut().for_each(|x| *x *= self.logit_scale);
        }
        match self.score {
            RouterScore::Softmax => softmax(logits),
            RouterScore::Sigmoid => logits.iter_mut().for_each(|x| *x = sigmoid(*x)),
            RouterScore::SoftmaxOfChosen => {}
        }
        let scores = &*logits;
        let ranks: Vec<f32> = match &self.bias {
            Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
            None => scores.to_vec(),
        };
        let mut order = self.eligible(&ranks);
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)));
        order.truncate(self.chosen);
        let mut shares: Vec<f32> = order.iter().map(|&expert| scores[expert]).collect();
        if self.score == RouterScore::SoftmaxOfChosen {
            softmax(&mut shares);
        }
        if let Some(Renormalise { epsilon, least }) = self.renormalise {
            let total = shares.iter().sum::<f32>().max(least) + epsilon;
            shares.iter_mut().for_each(|share| *share /= total);
        }
        let weight = |(expert, share): (usize, f32)| {
            let own = self.expert_scale.as_ref().map_or(1.0, |scales| scales[expert]);
            (expert, share * self.scale * own)
        };
        order.into_iter().zip(shares).map(weight).collect()
    }

    /// The experts of the best groups; all of them where there are no groups.
    fn eligible(&self, ranks: &[f32]) -> Vec<usize> {
        let all = 0..ranks.len();
        let Some(ExpertGroups { count, kept, best }) = self.groups else { return all.collect() };
        let size = ranks.len() / count.max(1);
        let mut groups: Vec<(usize, f32)> = ranks
            .chunks_exact(size.max(1))
            .map(|group| {
                let mut sorted = group.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted.iter().take(best).sum()
            })
            .enumerate()
            .collect();
        groups.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        groups.truncate(kept);
        all.filter(|expert| groups.iter().any(|&(group, _)| group == expert / size.max(1))).collect()
    }
}

fn add(out: &mut [f32], values: &[f32], share: f32) {
    out.iter_mut().zip(values).for_each(|(x, v)| *x += share * v);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let total: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= total);
}
