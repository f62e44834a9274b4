//! Which codec for which part: the least divergence for so many bits, or the fewest bits for so little divergence.
//!
//! Small errors of different layers add up in the divergence of the predictions, so parts can be decided on one by one. Of each
//! part's alternatives only those on the lower edge of its (bits, divergence) picture can be part of a best choice for some price of
//! a bit. Beginning with the cheapest of each, the step that gains most per bit is taken, again and again: every stop on that way is
//! the best choice that its number of bits can buy.

/// A way to keep one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternative {
    /// Bits per token, all values of the part together.
    pub bits: f64,
    /// The divergence it is expected to add.
    pub kl: f64,
}

/// What to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most so many bits per token over all parts.
    Bits(f64),
    /// At most so much divergence.
    Kl(f64),
}

/// The place of the alternative chosen for each part; `None` when the goal cannot be reached.
pub fn choose(parts: &[Vec<Alternative>], goal: Goal) -> Option<Vec<usize>> {
    let edges: Vec<Vec<usize>> = parts.iter().map(|part| lower_edge(part)).collect();
    let mut chosen = Vec::with_capacity(parts.len());
    for edge in &edges {
        chosen.push(*edge.first()?);
    }
    let total = |chosen: &[usize], of: fn(&Alternative) -> f64| -> f64 {
        chosen.iter().zip(parts).map(|(&place, part)| of(&part[place])).sum()
    };
    // (gain per bit, part, from, to): along an edge gains fall, so this order takes each part's steps in turn.
    let mut steps = Vec::new();
    for (number, (edge, part)) in edges.iter().zip(parts).enumerate() {
        for pair in edge.windows(2) {
            let (from, to) = (part[pair[0]], part[pair[1]]);
            steps.push(((from.kl - to.kl) / (to.bits - from.bits), number, pair[1]));
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut steps = steps.into_iter();
    match goal {
        Goal::Bits(most) => {
            if total(&chosen, |a| a.bits) > most {
                return None;
            }
            for (_, number, to) in steps {
                let before = std::mem::replace(&mut chosen[number], to);
                if total(&chosen, |a| a.bits) > most {
                    chosen[number] = before;
                    break;
                }
            }
        }
        Goal::Kl(most) => {
            while total(&chosen, |a| a.kl) > most {
                let (_, number, to) = steps.next()?;
                chosen[number] = to;
            }
        }
    }
    Some(chosen)
}

/// The alternatives that some price of a bit makes the best, cheapest first.
fn lower_edge(part: &[Alternative]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..part.len()).collect();
    order.sort_by(|&a, &b| part[a].bits.total_cmp(&part[b].bits).then(part[a].kl.total_cmp(&part[b].kl)));
    let slope = |a: usize, b: usize| (part[b].kl - part[a].kl) / (part[b].bits - part[a].bits);
    let mut edge: Vec<usize> = Vec::new();
    for place in order {
        // More bits have to buy something, and more per bit than the step before did not.
        if edge.last().is_some_and(|&last| part[place].kl >= part[last].kl) {
            continue;
        }
        while let [.., before, last] = edge[..]
            && slope(before, last) >= slope(last, place)
        {
            edge.pop();
        }
        edge.push(place);
    }
    edge
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts with alternatives whose divergence falls with bits, more or less.
    fn parts(seed: u64) -> Vec<Vec<Alternative>> {
        let mut state = seed;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut part = || {
            let scale = 10.0 * unit();
            let mut one = |bits: u32| {
                let (bits, luck) = (f64::from(bits) + 0.5 * unit(), 0.3 + unit());
                Alternative { bits, kl: scale * luck * (-1.4 * bits).exp() }
            };
            (2..7).map(&mut one).collect()
        };
        (0..5).map(|_| part()).collect()
    }

    fn sums(parts: &[Vec<Alternative>], chosen: &[usize]) -> (f64, f64) {
        let of = chosen.iter().zip(parts).map(|(&place, part)| part[place]);
        of.fold((0.0, 0.0), |(bits, kl), one| (bits + one.bits, kl + one.kl))
    }

    #[test]
    fn nothing_of_the_same_bits_is_better() {
        for seed in 0..40 {
            let parts = parts(seed);
            for goal in [12.0, 18.0, 25.0].map(Goal::Bits).into_iter().chain([0.05, 0.5].map(Goal::Kl)) {
                let Some(chosen) = choose(&parts, goal) else { continue };
                let (bits, kl) = sums(&parts, &chosen);
                match goal {
                    Goal::Bits(most) => assert!(bits <= most),
                    Goal::Kl(most) => assert!(kl <= most),
                }
                for n in 0..5usize.pow(5) {
                    let other: Vec<usize> = (0..5u32).map(|part| n / 5usize.pow(part) % 5).collect();
                    let (other_bits, other_kl) = sums(&parts, &other);
                    assert!(other_bits > bits + 1e-9 || other_kl >= kl - 1e-9, "{seed} {goal:?}");
                }
            }
        }
    }

    #[test]
    fn goals_out_of_reach_are_none() {
        let parts = parts(1);
        assert_eq!(choose(&parts, Goal::Bits(9.0)), None);
        assert_eq!(choose(&parts, Goal::Kl(0.0)), None);
        assert!(choose(&parts, Goal::Bits(f64::INFINITY)).is_some());
        assert_eq!(choose(&[Vec::new()], Goal::Bits(9.0)), None);
    }
}
