//! How much each layer's keys and values cost when they alone are rounded, and from that a policy for the whole model.
//!
//! A *probe* is the exact cache with one side of one layer in a codec. Its divergence is measured, strictly, in short windows: there
//! are many probes, and they are to tell layers apart. What all layers of a side do together is measured in a long window, where
//! errors of keys count for more, and the probes are scaled to add up to it.
//!
//! Other widths of the same side follow by the mean square errors the codecs make there: those of `klt` from the variances of its
//! channels, those of rotated values from Gaussian vectors, which is what a rotation makes of them. Nothing far coarser than the
//! probes is among them, for that law holds for small errors.

use super::choice::{Alternative, Goal, choose};
use crate::divergence::{Headway, Mode, Models, Request, divergence};
use crate::error::EvalError;
use crate::surprise::PassLimits;
use crate::windows::Windows;
use kvant_cache::plan::Findings;
use kvant_cache::{Clause, Plan};
use kvant_codec::allocation::{WIDTHS, distortions};
use kvant_codec::{BuildError, CodecSpec, KvSpec, PageCodec, Side, Tier};
use kvant_engine::Policy;
use kvant_model::Model;
use kvant_model::cache::LayerState;
use std::sync::Arc;

/// What keys are tried with.
const KEY_PROBES: [&str; 1] = ["klt3.5"];
/// What values are tried with.
const VALUE_PROBES: [&str; 2] = ["tq3", "rot4g32"];
/// What keys may get: by quarters of a bit.
const KEYS: [&str; 13] = [
    "klt3", "klt3.25", "klt3.5", "klt3.75", "klt4", "klt4.25", "klt4.5", "klt4.75", "klt5", "klt5.25",
    "klt5.5", "klt5.75", "klt6",
];
/// What values may get, with the probe that each follows from.
const VALUES: [(&str, usize); 5] = [("tq3", 0), ("rot3g32", 0), ("tq4", 1), ("rot4g32", 1), ("rot5g32", 1)];

/// One side of one layer, with what it may be kept in.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which layer.
    pub entry: usize,
    /// Which side.
    pub side: Side,
    /// Numbers a token has here.
    pub values: usize,
    /// Codecs, and what each costs and is expected to add.
    pub alternatives: Vec<(CodecSpec, Alternative)>,
}

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

fn codec(text: &str) -> CodecSpec {
    text.parse::<KvSpec>().expect("a spec of the grammar").key
}

/// Measures every side of every layer in `short` windows and all of a side in `long` ones, and makes the alternatives that follow.
///
/// # Errors
/// If the plan has no numbers for a probe, or a pass fails.
pub fn sensitivities(
    model: &Model,
    plan: &Arc<Plan>,
    (short, long): (&Windows, &Windows),
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Part>, EvalError> {
    let mut sides: Vec<(usize, Side, usize, usize)> = Vec::new();
    for (entry, state) in model.states().iter().enumerate() {
        if let LayerState::KeysValues(shape) = state {
            sides.push((entry, Side::Key, shape.key_dim, shape.heads));
            sides.push((entry, Side::Value, shape.value_dim, shape.heads));
        }
    }
    let probes = |side: Side| match side {
        Side::Key => &KEY_PROBES[..],
        Side::Value => &VALUE_PROBES[..],
    };
    let probed = sides
        .iter()
        .flat_map(|&(entry, side, ..)| probes(side).iter().map(move |probe| only(entry, side, codec(probe))));
    let caches: Vec<Policy> = probed.map(|policy| plan.with(&policy)).collect();
    let mut measure = |windows: &Windows, caches: &[Policy]| {
        let models = Models { reference: model, subject: model, arithmetic: "f32" };
        let limits = PassLimits::default();
        let request = Request { models, windows, caches, mode: Mode::Strict, limits };
        let found = divergence(&request, None, headway)?;
        Ok::<_, EvalError>(
            found.iter().map(|found| found.kl().0.max(f64::MIN_POSITIVE)).collect::<Vec<f64>>(),
        )
    };
    let found = measure(short, &caches)?;
    let mut measured = found.iter().copied();
    let whole = [(Side::Key, KEY_PROBES[0]), (Side::Value, VALUE_PROBES[0]), (Side::Value, VALUE_PROBES[1])]
        .map(|(side, probe)| plan.with(&every(side, codec(probe))));
    let [keys, coarse, fine]: [f64; 3] =
        measure(long, &whole)?.try_into().expect("as many results as caches");
    // (keys, values coarse, values fine), layer after layer.
    let sum = |probe: usize| found.iter().skip(probe).step_by(3).sum::<f64>();
    let scales = [vec![keys / sum(0)], vec![coarse / sum(1), fine / sum(2)]];

    let mut parts = Vec::with_capacity(sides.len());
    for (entry, side, dim, heads) in sides {
        let scales = &scales[usize::from(side == Side::Value)];
        let kl: Vec<f64> = scales.iter().zip(measured.by_ref()).map(|(scale, kl)| scale * kl).collect();
        let unit = Errors { plan, entry, side, dim, heads };
        let options: Vec<(&str, usize)> = match side {
            Side::Key => KEYS.iter().map(|spec| (*spec, 0)).collect(),
            Side::Value => VALUES.to_vec(),
        };
        let mut alternatives = Vec::with_capacity(options.len());
        for (spec, probe) in options {
            let (spec, probe_spec) = (codec(spec), codec(probes(side)[probe]));
            let (bits, error) = unit.of(&spec)?;
            let (_, probe_error) = unit.of(&probe_spec)?;
            let values = (heads * dim) as f64;
            alternatives
                .push((spec, Alternative { bits: bits * values, kl: kl[probe] * error / probe_error }));
        }
        parts.push(Part { entry, side, values: heads * dim, alternatives });
    }
    Ok(parts)
}

/// The exact cache with one side of all layers in a codec.
fn every(side: Side, spec: CodecSpec) -> Policy {
    let mut policy: Policy = "f32".parse().expect("a spec of the grammar");
    match side {
        Side::Key => policy.base.key = spec,
        Side::Value => policy.base.value = spec,
    }
    policy
}

/// The exact cache with one side of one layer in a codec.
fn only(entry: usize, side: Side, spec: CodecSpec) -> Policy {
    let mut policy: Policy = "f32".parse().expect("a spec of the grammar");
    policy.clauses.push(clause(vec![entry..=entry], side, spec));
    policy
}

fn clause(layers: Vec<std::ops::RangeInclusive<usize>>, side: Side, spec: CodecSpec) -> Clause {
    let (key, value) = match side {
        Side::Key => (Some(spec), None),
        Side::Value => (None, Some(spec)),
    };
    Clause { layers, heads: Vec::new(), key, value }
}

/// What codecs cost on one side of one layer, and the errors they make there, up to a factor of the side.
struct Errors<'p> {
    plan: &'p Plan,
    entry: usize,
    side: Side,
    dim: usize,
    heads: usize,
}

impl Errors<'_> {
    /// Bits per value, and the error, means over the heads.
    fn of(&self, spec: &CodecSpec) -> Result<(f64, f64), EvalError> {
        let mut sums = (0.0, 0.0);
        for head in 0..self.heads {
            let none = Findings::default();
            let found = self.plan.findings(self.entry, head, self.side).unwrap_or(&none);
            let (bits, error) = of_head(spec, found, self.side, self.dim)?;
            sums = (sums.0 + bits, sums.1 + error);
        }
        let heads = self.heads as f64;
        Ok((sums.0 / heads, sums.1 / heads))
    }
}

fn of_head(spec: &CodecSpec, found: &Findings, side: Side, dim: usize) -> Result<(f64, f64), BuildError> {
    let tier = Tier::select()?;
    let calibration = found.calibration(spec, side, dim, tier)?;
    let codec = spec.build_with(side, dim, &calibration, tier)?;
    let error = match (&found.klt, calibration.widths) {
        (Some(klt), Some(widths)) => {
            let table = distortions(spec.options.page.tokens());
            let distortion = |channel: usize| {
                let width = widths[channel * widths.len() / dim];
                WIDTHS.iter().position(|known| *known == width).map_or(0.0, |place| table[place])
            };
            klt.variances.iter().enumerate().map(|(c, variance)| f64::from(*variance) * distortion(c)).sum()
        }
        _ => gaussian_error(&*codec),
    };
    Ok((codec.bits_per_value(), error))
}

/// The mean square error of a codec on vectors of independent Gaussian numbers.
fn gaussian_error(codec: &dyn PageCodec) -> f64 {
    const PAGES: usize = 8;
    let mut state = 1u64;
    let mut gaussian = || {
        let mut sum = -6.0;
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 11) as f64 / (1u64 << 53) as f64;
        }
        sum as f32
    };
    let count = codec.page_tokens() * codec.dim();
    let (mut page, mut decoded) = (vec![0; codec.page_bytes()], vec![0.0; count]);
    let mut sum = 0.0;
    for _ in 0..PAGES {
        let rows: Vec<f32> = (0..count).map(|_| gaussian()).collect();
        if codec.encode(&rows, &mut page).and_then(|()| codec.decode(&page, &mut decoded)).is_err() {
            return f64::INFINITY;
        }
        sum += rows.iter().zip(&decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    }
    sum / (PAGES * count) as f64
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

/// The policy that reaches the goal with one codec for all keys and one for all values; `None` when none does. What to hold
/// [`policy_for`] against: its law is one of small errors, and they are not always.
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
    // The commonest of each side is the rule, the others are exceptions by layer.
    let specs = |side: Side| {
        let mut specs: Vec<(&CodecSpec, Vec<usize>)> = Vec::new();
        for (part, (spec, _)) in taken.iter().filter(|(part, _)| part.side == side) {
            match specs.iter_mut().find(|(known, _)| known == &spec) {
                Some((_, layers)) => layers.push(part.entry),
                None => specs.push((spec, vec![part.entry])),
            }
        }
        specs.sort_by_key(|(_, layers)| std::cmp::Reverse(layers.len()));
        specs
    };
    let (keys, values_specs) = (specs(Side::Key), specs(Side::Value));
    let base = KvSpec { key: keys.first()?.0.clone(), value: values_specs.first()?.0.clone() };
    let mut policy = Policy::from(base);
    for (side, specs) in [(Side::Key, keys), (Side::Value, values_specs)] {
        let exceptions = specs.into_iter().skip(1);
        policy.clauses.extend(exceptions.map(|(spec, layers)| clause(runs(&layers), side, spec.clone())));
    }
    let sum = |of: fn(&Alternative) -> f64| taken.iter().map(|(_, (_, one))| of(one)).sum::<f64>();
    Some(Chosen { policy, bits: sum(|one| one.bits) / values as f64, kl: sum(|one| one.kl) })
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
