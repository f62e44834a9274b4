//! How likely the model found a token, and which it found likeliest.

use std::cmp::Ordering;

/// Natural logarithms of probabilities in the model's own distribution: that of temperature 1, before penalties,
/// biases and cuts.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The likeliest tokens, the likeliest first, of equals the lower id.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Those of `token` and of the `count` likeliest; `logits` has no NaN.
    pub(crate) fn of(logits: &[f32], token: u32, count: usize) -> Self {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - highest).exp()).sum();
        let log = |logit: f32| (f64::from(logit - highest) - sum.ln()) as f32;
        let by_rank = |&a: &u32, &b: &u32| {
            let (x, y) = (logits[a as usize], logits[b as usize]);
            y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
        };
        let mut ids: Vec<u32> = if count == 0 { Vec::new() } else { (0..logits.len() as u32).collect() };
        if count > 0 && count < ids.len() {
            ids.select_nth_unstable_by(count - 1, by_rank);
            ids.truncate(count);
        }
        ids.sort_unstable_by(by_rank);
        let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| log(logit));
        Self { chosen, top: ids.into_iter().map(|id| (id, log(logits[id as usize]))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::Logprobs;

    #[test]
    fn probabilities_add_up_and_come_by_rank() {
        let logits = [0.5, 2.0, -1.0, 2.0, 1.0];
        let all = Logprobs::of(&logits, 4, 9);
        let ids: Vec<u32> = all.top.iter().map(|top| top.0).collect();
        assert_eq!(ids, [1, 3, 4, 0, 2]);
        let sum: f32 = all.top.iter().map(|top| top.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(all.chosen, all.top[2].1);
        assert!((all.top[0].1 - all.top[2].1 - 1.0).abs() < 1e-6, "differences are those of the logits");
        assert_eq!(Logprobs::of(&logits, 1, 2).top, all.top[..2]);
        assert!(Logprobs::of(&logits, 1, 0).top.is_empty());
    }

    #[test]
    fn what_is_forbidden_has_no_chance_and_harms_nobody() {
        let found = Logprobs::of(&[f32::NEG_INFINITY, 0.0], 0, 2);
        assert_eq!(
            (found.chosen, &found.top[..]),
            (f32::NEG_INFINITY, &[(1, 0.0), (0, f32::NEG_INFINITY)][..])
        );
    }
}
