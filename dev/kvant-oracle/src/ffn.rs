//! Feed-forward layers: MLPs, and mixtures of them.

use crate::function::{activate, add, sigmoid, softmax};
use crate::oracle::scaled;
use crate::weights::Weights;
use kvant_model::description::{
    ClampedSwiglu, ExpertGroups, Ffn, Inner, Mlp, Moe, Renormalise, Router, RouterScore, SharedExpert,
};

/// One row; `residual` is the stream that `x` was normed from.
pub fn ffn(weights: &Weights, of: &Ffn, x: &[f64], residual: &[f64]) -> Vec<f64> {
    match of {
        Ffn::Dense(mlp) => gated_mlp(weights, mlp, x),
        Ffn::Experts(moe) => experts(weights, moe, x, residual),
    }
}

fn gated_mlp(weights: &Weights, of: &Mlp, x: &[f64]) -> Vec<f64> {
    let inner = match &of.inner {
        Inner::Gated { gate, up } => gated(of, weights.linear(gate, x), &weights.linear(up, x)),
        Inner::GatedFused(both) => {
            let mut gate = weights.linear(both, x);
            let up = gate.split_off(gate.len() / 2);
            gated(of, gate, &up)
        }
        Inner::Plain(up) => weights.linear(up, x).iter().map(|&x| activate(of.activation, x)).collect(),
    };
    scaled(weights.linear(&of.down, &inner), of.down_scale)
}

/// `act(gate) · up`, value by value.
fn gated(of: &Mlp, gate: Vec<f64>, up: &[f64]) -> Vec<f64> {
    let mut gate = scaled(gate, of.gate_scale);
    if let Some(deviations) = of.sparsity {
        let count = gate.len() as f64;
        let mean = gate.iter().sum::<f64>() / count;
        let deviation = (gate.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
        let cut = mean + deviation * f64::from(deviations);
        gate.iter_mut().for_each(|x| *x = (*x - cut).max(0.0));
    }
    let one = |(&gate, &up): (&f64, &f64)| match of.clamp {
        None => activate(of.activation, gate) * up,
        Some(ClampedSwiglu { limit, alpha }) => {
            let limit = f64::from(limit);
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(f64::from(alpha) * gate) * (up + 1.0)
        }
    };
    assert_eq!(gate.len(), up.len(), "a gate and what it gates");
    gate.iter().zip(up).map(one).collect()
}

fn experts(weights: &Weights, of: &Moe, x: &[f64], residual: &[f64]) -> Vec<f64> {
    let narrow = of.latent.as_ref().map(|(into, _)| weights.linear(into, x));
    let input = narrow.as_deref().unwrap_or(x);
    let mut sum = vec![0.0; input.len()];
    for (expert, share) in choose(weights, &of.router, if of.router.reads_residual { residual } else { x }) {
        add(&mut sum, &gated_mlp(weights, &of.experts[expert], input), share);
    }
    if let Some((_, out)) = &of.latent {
        sum = weights.linear(out, &sum);
    }
    if let Some(SharedExpert { mlp, gate }) = &of.shared {
        let share = gate.as_ref().map_or(1.0, |gate| sigmoid(weights.linear(gate, x)[0]));
        add(&mut sum, &gated_mlp(weights, mlp, x), share);
    }
    sum
}

/// The experts of a token and the weights of what they give.
fn choose(weights: &Weights, of: &Router, x: &[f64]) -> Vec<(usize, f64)> {
    let mut input = weights.norm_if(of.norm.as_ref(), x.to_vec());
    if let Some(scale) = &of.input_scale {
        input.iter_mut().zip(weights.vector(scale)).for_each(|(x, scale)| *x *= scale);
    }
    let logits = scaled(weights.linear(&of.linear, &input), of.logit_scale);
    let scores = match of.score {
        RouterScore::Softmax => softmax(&logits),
        RouterScore::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
        RouterScore::SoftmaxOfChosen => logits,
    };
    let bias = of.bias.as_ref().map_or_else(|| vec![0.0; scores.len()], |bias| weights.vector(bias));
    let ranks: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let eligible: Vec<usize> = match of.groups {
        None => (0..ranks.len()).collect(),
        Some(ExpertGroups { count, kept, best }) => {
            let size = ranks.len() / count;
            let worth =
                |group: &[f64]| -> f64 { largest(group).iter().take(best).map(|&at| group[at]).sum() };
            let groups: Vec<f64> = ranks.chunks(size).map(worth).collect();
            let kept = &largest(&groups)[..kept];
            (0..ranks.len()).filter(|expert| kept.contains(&(expert / size))).collect()
        }
    };
    let chosen = largest(&ranks).into_iter().filter(|expert| eligible.contains(expert)).take(of.chosen);
    let chosen: Vec<usize> = chosen.collect();
    let mut shares: Vec<f64> = chosen.iter().map(|&expert| scores[expert]).collect();
    match of.score {
        RouterScore::SoftmaxOfChosen => shares = softmax(&shares),
        RouterScore::Softmax | RouterScore::Sigmoid => {}
    }
    if let Some(Renormalise { epsilon, least }) = of.renormalise {
        let divisor = shares.iter().sum::<f64>().max(f64::from(least)) + f64::from(epsilon);
        shares.iter_mut().for_each(|share| *share /= divisor);
    }
    let own = of.expert_scale.as_ref().map(|scale| weights.vector(scale));
    let weight = |(expert, share): (usize, f64)| {
        (expert, share * f64::from(of.scale) * own.as_ref().map_or(1.0, |own| own[expert]))
    };
    chosen.into_iter().zip(shares).map(weight).collect()
}

/// Places by value, the largest first; of equal ones the lower.
fn largest(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order
}
