//! From sensitivities and a goal to a policy.

use super::choice::{Alternative, Goal, choose};
use super::sensitivity::{Part, clause};
use kvant_cache::Clause;
use kvant_codec::{CodecSpec, KvSpec, Side};
use kvant_engine::Policy;

/// A policy made from measurements.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The policy, without its plan.
    pub policy: Policy,
    /// Bits per value over all layers.
    pub bits: f64,
    /// The divergence that is expected of it.
    pub kl: f64,
}

/// The policy that reaches the goal, bits being those per value; `None` when none does.
pub fn policy_for(parts: &[Part], goal: Goal) -> Option<Chosen> {
    let values: usize = parts.iter().map(|part| part.values).sum();
    let goal = match goal {
        Goal::Bits(bits) => Goal::Bits(bits * values as f64),
        other => other,
    };
    let table: Vec<Vec<Alternative>> =
        parts.iter().map(|part| part.alternatives.iter().map(|(_, one)| *one).collect()).collect();
    assemble(parts, &choose(&table, goal)?)
}

/// The same parts with layers less far apart: what each is expected to add, per value, to the power of `trust`, the sum over the
/// layers of a side as it was. A layer's probe is a measurement on a few tokens; half of what it says is often the better guess.
pub fn evened(parts: &[Part], trust: f64) -> Vec<Part> {
    let mut evened = parts.to_vec();
    for part in &mut evened {
        let values = part.values as f64;
        for (place, (_, one)) in part.alternatives.iter_mut().enumerate() {
            let share = |of: &Part| {
                let values = of.values as f64;
                values * (of.alternatives[place].1.kl / values).powf(trust)
            };
            let of_side = || parts.iter().filter(|other| other.side == part.side);
            let whole: f64 = of_side().map(|other| other.alternatives[place].1.kl).sum();
            one.kl = whole * values * (one.kl / values).powf(trust) / of_side().map(share).sum::<f64>();
        }
    }
    evened
}

/// The policy that reaches the goal with one codec for all keys and one for all values; `None` when none does. What to hold
/// [`policy_for`] against.
pub fn uniform_for(parts: &[Part], goal: Goal) -> Option<Chosen> {
    let count = |side: Side| {
        let of_side = parts.iter().filter(|part| part.side == side);
        of_side.map(|part| part.alternatives.len()).min().unwrap_or(0)
    };
    let pairs = (0..count(Side::Key)).flat_map(|key| (0..count(Side::Value)).map(move |value| (key, value)));
    let all = pairs.filter_map(|(key, value)| {
        let place = |part: &Part| if part.side == Side::Key { key } else { value };
        assemble(parts, &parts.iter().map(place).collect::<Vec<usize>>())
    });
    match goal {
        Goal::Bits(most) => all.filter(|one| one.bits <= most).min_by(|a, b| a.kl.total_cmp(&b.kl)),
        Goal::Kl(most) => all.filter(|one| one.kl <= most).min_by(|a, b| a.bits.total_cmp(&b.bits)),
    }
}

/// The policy of one alternative for each part.
fn assemble(parts: &[Part], places: &[usize]) -> Option<Chosen> {
    let values: usize = parts.iter().map(|part| part.values).sum();
    let taken: Vec<(&Part, &(CodecSpec, Alternative))> =
        parts.iter().zip(places).map(|(part, &place)| (part, &part.alternatives[place])).collect();
    // The commonest of each side is the rule, the others are exceptions by layer and head.
    let specs = |side: Side| {
        let mut specs: Vec<(&CodecSpec, Vec<&Part>)> = Vec::new();
        for (part, (spec, _)) in taken.iter().filter(|(part, _)| part.side == side) {
            match specs.iter_mut().find(|(known, _)| known == &spec) {
                Some((_, parts)) => parts.push(part),
                None => specs.push((spec, vec![part])),
            }
        }
        specs.sort_by_key(|(_, parts)| std::cmp::Reverse(parts.len()));
        specs
    };
    let (keys, values_specs) = (specs(Side::Key), specs(Side::Value));
    let base = KvSpec { key: keys.first()?.0.clone(), value: values_specs.first()?.0.clone() };
    let mut policy = Policy::from(base);
    for (side, specs) in [(Side::Key, keys), (Side::Value, values_specs)] {
        for (spec, some) in specs.into_iter().skip(1) {
            for (heads, layers) in selections(parts, &some) {
                policy
                    .clauses
                    .push(Clause { heads: runs(&heads), ..clause(runs(&layers), side, spec.clone()) });
            }
        }
    }
    let sum = |of: fn(&Alternative) -> f64| taken.iter().map(|(_, (_, one))| of(one)).sum::<f64>();
    Some(Chosen { policy, bits: sum(|one| one.bits) / values as f64, kl: sum(|one| one.kl) })
}

/// Parts of one side as heads, none where it is all of a layer's, with the layers in which it is these.
fn selections(all: &[Part], some: &[&Part]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut selections: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for alike in some.chunk_by(|a, b| a.layer == b.layer) {
        let (layer, side) = (alike[0].layer, alike[0].side);
        let there = all.iter().filter(|part| part.layer == layer && part.side == side).count();
        let mut heads: Vec<usize> = alike.iter().map(|part| part.head).collect();
        if heads.len() == there {
            heads.clear();
        }
        match selections.iter_mut().find(|(known, _)| *known == heads) {
            Some((_, layers)) => layers.push(layer),
            None => selections.push((heads, vec![layer])),
        }
    }
    selections
}

/// Numbers in order as ranges.
fn runs(numbers: &[usize]) -> Vec<std::ops::RangeInclusive<usize>> {
    let mut runs: Vec<std::ops::RangeInclusive<usize>> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some(run) if *run.end() + 1 == number => *run = *run.start()..=number,
            _ => runs.push(number..=number),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and values of four layers, the later ones worth more; the last has twice the values.
    fn parts() -> Vec<Part> {
        let part = |layer: usize, side: Side| {
            let values = if layer == 3 { 128 } else { 64 };
            let weight = [1.0, 2.0, 8.0, 40.0][layer] * if side == Side::Key { 3.0 } else { 1.0 };
            let alternative = |bits: u8| {
                let spec = format!("rot{bits}g32").parse::<KvSpec>().unwrap().key;
                let (bits, kl) = (f64::from(bits) * values as f64, weight * 0.25f64.powi(i32::from(bits)));
                (spec, Alternative { bits, kl })
            };
            Part {
                slot: layer,
                layer,
                head: 0,
                side,
                values,
                alternatives: (2..=6).map(alternative).collect(),
            }
        };
        (0..4).flat_map(|layer| [part(layer, Side::Key), part(layer, Side::Value)]).collect()
    }

    #[test]
    fn evening_keeps_the_sums_of_sides_and_brings_layers_together() {
        let parts = parts();
        let kl = |part: &Part, place: usize| part.alternatives[place].1.kl;
        let sum = |parts: &[Part], side: Side, place: usize| {
            parts.iter().filter(|part| part.side == side).map(|part| kl(part, place)).sum::<f64>()
        };
        let mut apart = f64::INFINITY;
        for trust in [1.0, 0.5, 0.0] {
            let evened = evened(&parts, trust);
            for (side, place) in [(Side::Key, 0), (Side::Key, 4), (Side::Value, 2)] {
                let (before, after) = (sum(&parts, side, place), sum(&evened, side, place));
                assert!((before / after - 1.0).abs() < 1e-12, "{trust} {side:?} {place}");
            }
            let now = kl(&evened[6], 1) / kl(&evened[0], 1);
            assert!(now < apart, "{trust}: {now}");
            apart = now;
        }
        assert!((apart - 2.0).abs() < 1e-12, "nothing believed, only the values count: {apart}");
        assert!((kl(&evened(&parts, 1.0)[4], 3) / kl(&parts[4], 3) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn layers_told_apart_do_better_than_one_width_for_all() {
        let parts = parts();
        for goal in [Goal::Bits(3.5), Goal::Bits(4.2), Goal::Kl(1.0), Goal::Kl(0.1)] {
            let (mixed, uniform) = (policy_for(&parts, goal).unwrap(), uniform_for(&parts, goal).unwrap());
            match goal {
                Goal::Bits(most) => {
                    assert!(mixed.bits <= most && uniform.bits <= most);
                    assert!(mixed.kl < uniform.kl, "{goal:?}: {mixed:?} {uniform:?}");
                }
                Goal::Kl(most) => {
                    assert!(mixed.kl <= most && uniform.kl <= most);
                    assert!(mixed.bits <= uniform.bits, "{goal:?}: {mixed:?} {uniform:?}");
                }
            }
            assert!(uniform.policy.clauses.is_empty() && !mixed.policy.clauses.is_empty());
        }
        assert!(
            policy_for(&parts, Goal::Bits(1.9)).is_none() && uniform_for(&parts, Goal::Kl(0.0)).is_none()
        );
    }

    #[test]
    fn heads_are_named_where_they_differ_from_their_layer() {
        let spec = |bits: usize| format!("rot{bits}g32").parse::<KvSpec>().unwrap().key;
        let part = |layer: usize, head: usize| {
            let alternatives = (3..=5).map(|bits| (spec(bits), Alternative { bits: bits as f64, kl: 0.0 }));
            Part {
                slot: layer,
                layer,
                head,
                side: Side::Key,
                values: 1,
                alternatives: alternatives.collect(),
            }
        };
        let mut parts: Vec<Part> =
            (0..4).flat_map(|layer| (0..3).map(move |head| part(layer, head))).collect();
        let mut places = vec![0; 12];
        // Head 1 of layers 0 and 1, all of layer 2, heads 0 and 1 of layer 3.
        for place in [1, 4, 9, 10] {
            places[place] = 1;
        }
        places[6..9].fill(2);
        parts.push(Part { side: Side::Value, ..part(0, 0) });
        places.push(0);
        let policy = assemble(&parts, &places).unwrap().policy;
        for (part, place) in parts.iter().zip(&places) {
            assert_eq!(policy.spec(part.layer, part.head, part.side), &spec(3 + place), "{policy}");
        }
        assert_eq!(policy.clauses.len(), 3, "{policy}");
        assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
    }
}
