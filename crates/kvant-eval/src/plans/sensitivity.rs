//! How much each layer's keys and values cost when they alone are rounded.
//!
//! A *probe* is the exact cache with one side of one layer in a codec; its divergence, measured strictly, tells layers apart. A
//! layer's share is its probe's, and a kv head's share of its layer the part of the probe's error that it makes, moved to every codec
//! by the mean square errors the codecs make there: those of `klt` from the variances of its channels, those of rotated values from
//! Gaussian vectors, which is what a rotation makes of them.
//!
//! What a codec costs when all layers of a side have it is measured too: how errors of many layers add up, and how they grow when
//! bits are few, is then no guess. That is what the sum over layers is multiplied by, a *factor* that changes slowly with bits:
//! a few codecs of a [family](super::families) are measured, and the factors of those between are interpolated.

use super::choice::Alternative;
use super::families::{families, interpolated, measured, offered, probe};
use super::search::{SearchWindows, knows_costs};
use crate::divergence::{Headway, Mode, Models, Request, divergence};
use crate::error::EvalError;
use crate::token_nll::PassLimits;
use crate::windows::Windows;
use kvant_cache::plan::SideCalibration;
use kvant_cache::{Clause, Plan, SlotKind};
use kvant_codec::allocation::{WIDTHS, distortions};
use kvant_codec::{BuildError, CodecSpec, PageCodec, Side, Tier, expected_trellis_error};
use kvant_engine::Policy;
use kvant_model::Model;
use std::sync::Arc;

/// Bytes of exact caches that are measured side by side: each pass computes the reference anew.
const ROOM: usize = 1 << 30;

/// One side of one kv head, with what it may be kept in.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which slot of the model.
    pub slot: usize,
    /// Which layer.
    pub layer: usize,
    /// Which kv head.
    pub head: usize,
    /// Which side.
    pub side: Side,
    /// Numbers a token has here.
    pub values: usize,
    /// Codecs, and what each costs and is expected to add.
    pub alternatives: Vec<(CodecSpec, Alternative)>,
}

/// What a plan knows of the codecs' costs, if it has been [told](super::spend_bits) before: by that many tokens of that text, and for
/// all codecs that may be chosen. `None` when it has to be measured.
///
/// # Errors
/// If the plan has no numbers for a codec.
pub fn known_sensitivities(
    model: &Model,
    plan: &Arc<Plan>,
    tokens: usize,
    text: &str,
) -> Result<Option<Vec<Part>>, EvalError> {
    let mut parts = Vec::new();
    for at in sides(model, plan).iter().filter(|_| knows_costs(plan, tokens, text)) {
        for head in 0..at.heads {
            let Some(found) = plan.findings(at.slot, head, at.side) else { return Ok(None) };
            let mut alternatives = Vec::new();
            for spec in offered(at.side) {
                let name = spec.to_string();
                let Some(cost) = found.costs.iter().find(|cost| cost.spec == name) else { return Ok(None) };
                let bits = at.of(&spec, head)?.0 * at.dim as f64;
                alternatives.push((spec, Alternative { bits, kl: f64::from(cost.kl) }));
            }
            parts.push(at.part(head, alternatives));
        }
    }
    Ok((!parts.is_empty()).then_some(parts))
}

/// All keys and values of a model that plans have numbers for.
fn sides<'p>(model: &Model, plan: &'p Plan) -> Vec<Errors<'p>> {
    let mut sides: Vec<Errors<'_>> = Vec::new();
    for (index, slot) in model.slots().iter() {
        match slot.kind {
            SlotKind::KeysValues(shape) => {
                let (layer, heads) = (slot.layer, shape.kv_heads);
                for (side, dim) in [(Side::Key, shape.key_dim), (Side::Value, shape.value_dim)] {
                    sides.push(Errors { plan, slot: index, layer, side, dim, heads });
                }
            }
            // Plans have numbers for keys and values alone.
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => {}
        }
    }
    sides
}

/// The fewest bits per value that a policy of the search can have.
///
/// # Errors
/// If the plan has no numbers for a codec.
pub fn fewest_bits(model: &Model, plan: &Plan) -> Result<f64, EvalError> {
    let (mut bits, mut values) = (0.0, 0);
    for at in sides(model, plan) {
        let mut fewest = f64::INFINITY;
        for spec in offered(at.side) {
            fewest = fewest.min(at.codec(&spec, 0)?.0.bits_per_value());
        }
        bits += fewest * (at.heads * at.dim) as f64;
        values += at.heads * at.dim;
    }
    Ok(bits / values.max(1) as f64)
}

/// How much [`sensitivities`] computes, in tokens that pass through the whole model: a probe begins at the layer that it rounds.
pub fn sensitivity_tokens(model: &Model, plan: &Plan, windows: &SearchWindows) -> f64 {
    let tokens = |windows: &Windows| (windows.ctx() * windows.chunks()) as f64;
    let sides = sides(model, plan);
    let layers = sides.iter().map(|at| at.layer + 1).max().unwrap_or(1) as f64;
    let probes: f64 = sides.iter().map(|at| 1.0 - at.layer as f64 / layers).sum();
    let whole = measured(Side::Key).len() + measured(Side::Value).len();
    tokens(&windows.probed) * (1.0 + probes) + tokens(&windows.sides) * (1 + whole) as f64
}

/// The caches that [`sensitivities`] measures: one side of one layer rounded at a time, and a whole side by some codecs.
struct Probes<'p> {
    sides: Vec<Errors<'p>>,
    /// One for each of the sides.
    single: Vec<Policy>,
    /// Keys by what is [measured], then values.
    whole: Vec<Policy>,
}

impl<'p> Probes<'p> {
    fn new(model: &Model, plan: &'p Arc<Plan>) -> Self {
        let sides = sides(model, plan);
        let with = |policy: Policy| plan.with(&policy);
        let single = sides.iter().map(|at| with(only(at.layer, at.side, probe(at.side)))).collect();
        let whole = [Side::Key, Side::Value]
            .into_iter()
            .flat_map(|side| measured(side).into_iter().map(move |spec| every(side, spec)))
            .map(with)
            .collect();
        Self { sides, single, whole }
    }
}

/// All caches that a search may measure before policies are made: what a device has to be able to keep.
pub fn probed_policies(model: &Model, plan: &Arc<Plan>) -> Vec<Policy> {
    let Probes { mut single, whole, .. } = Probes::new(model, plan);
    single.extend(whole);
    single
}

/// Measures every side of every layer, and some codecs on a whole side, and makes the alternatives that follow. `headway` counts
/// positions over all caches.
///
/// Where reference and subject are one model on the CPU, a probe begins at the layer that it rounds, with what the exact pass left there.
///
/// # Errors
/// If the plan has no numbers for a codec, or a pass fails.
pub fn sensitivities(
    models: &Models<'_>,
    plan: &Arc<Plan>,
    windows: &SearchWindows,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Part>, EvalError> {
    let Probes { sides, single: probes, whole } = Probes::new(models.subject, plan);
    let token: usize = sides.iter().map(|at| at.heads * at.dim * size_of::<f32>()).sum();
    let positions =
        |caches: &[Policy], windows: &Windows| caches.len() * (windows.ctx() - 1) * windows.chunks();
    let total = positions(&probes, &windows.probed) + positions(&whole, &windows.sides);
    let mut before = 0;
    let mut found = |caches: &[Policy], windows: &Windows| -> Result<Vec<f64>, EvalError> {
        let mut found: Vec<f64> = Vec::with_capacity(caches.len());
        for some in caches.chunks((ROOM / (token * windows.ctx()).max(1)).max(1)) {
            let request = Request {
                models: *models,
                windows,
                caches: some,
                mode: Mode::Strict,
                limits: PassLimits::default(),
            };
            let all = positions(some, windows);
            let measured = divergence(&request, None, &mut |now| {
                // A pass takes its caches equally far.
                headway(Headway { done: before + all * now.done / now.total.max(1), total, ..now });
            })?;
            before += all;
            found.extend(measured.iter().map(|one| one.kl().0.max(f64::MIN_POSITIVE)));
        }
        Ok(found)
    };
    let (probed, whole) = (found(&probes, &windows.probed)?, found(&whole, &windows.sides)?);
    let (of_keys, of_values) = whole.split_at(measured(Side::Key).len());

    let mut parts: Vec<Part> = Vec::new();
    for (at, kl) in sides.iter().zip(&probed) {
        let probes: Vec<f64> = (0..at.heads)
            .map(|head| Ok(at.of(&probe(at.side), head)?.1))
            .collect::<Result<_, EvalError>>()?;
        let of_layer: f64 = probes.iter().sum();
        for (head, probe_error) in probes.into_iter().enumerate() {
            let mut alternatives = Vec::new();
            for spec in offered(at.side) {
                let (bits, error) = at.of(&spec, head)?;
                // Errors in another basis do not compare: such a codec is as good or bad everywhere.
                let error = if at.compares(&spec) { error } else { probe_error };
                let kl = kl * error / of_layer;
                alternatives.push((spec, Alternative { bits: bits * at.dim as f64, kl }));
            }
            parts.push(at.part(head, alternatives));
        }
    }
    scale(&mut parts, Side::Key, of_keys);
    scale(&mut parts, Side::Value, of_values);
    Ok(parts)
}

/// Makes what all parts of a side are expected to add with each of the measured codecs sum up to what was measured, and multiplies
/// the other codecs of a family by factors between: linear in bits on a logarithmic scale, and beyond the ends that of the end.
fn scale(parts: &mut [Part], side: Side, measured: &[f64]) {
    let sum = |place: usize, of: fn(&Alternative) -> f64| -> f64 {
        parts.iter().filter(|part| part.side == side).map(|part| of(&part.alternatives[place].1)).sum()
    };
    let (mut measured, mut first, mut factors) = (measured.iter(), 0, Vec::new());
    for family in families(side) {
        // (bits, ln factor) of the measured ones, fewest bits first.
        let known: Vec<(f64, f64)> = (family.measured.iter().zip(&mut measured))
            .filter_map(|(name, whole)| {
                let place = first + family.offered.iter().position(|offered| offered == name)?;
                Some((sum(place, |one| one.bits), (whole / sum(place, |one| one.kl)).ln()))
            })
            .collect();
        for place in first..first + family.offered.len() {
            factors.push(interpolated(&known, sum(place, |one| one.bits)).exp());
        }
        first += family.offered.len();
    }
    for part in parts.iter_mut().filter(|part| part.side == side) {
        for ((_, one), factor) in part.alternatives.iter_mut().zip(&factors) {
            one.kl *= factor;
        }
    }
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
fn only(layer: usize, side: Side, spec: CodecSpec) -> Policy {
    let mut policy: Policy = "f32".parse().expect("a spec of the grammar");
    policy.clauses.push(clause(vec![layer..=layer], side, spec));
    policy
}

pub(super) fn clause(layers: Vec<std::ops::RangeInclusive<usize>>, side: Side, spec: CodecSpec) -> Clause {
    let (key, value) = match side {
        Side::Key => (Some(spec), None),
        Side::Value => (None, Some(spec)),
    };
    Clause { layers, heads: Vec::new(), key, value }
}

/// A codec, and the widths of its channels where they differ.
type BuiltCodec = (Box<dyn PageCodec>, Option<Vec<u8>>);

/// What codecs cost on one side of one layer, and the errors they make there, up to a factor of the side.
struct Errors<'p> {
    plan: &'p Plan,
    slot: usize,
    layer: usize,
    side: Side,
    dim: usize,
    heads: usize,
}

impl Errors<'_> {
    fn part(&self, head: usize, alternatives: Vec<(CodecSpec, Alternative)>) -> Part {
        let Errors { slot, layer, side, dim: values, .. } = *self;
        Part { slot, layer, head, side, values, alternatives }
    }

    /// Bits per value, and the error of a head.
    fn of(&self, spec: &CodecSpec, head: usize) -> Result<(f64, f64), EvalError> {
        let none = SideCalibration::default();
        let found = self.plan.findings(self.slot, head, self.side).unwrap_or(&none);
        let (codec, widths) = self.codec(spec, head)?;
        let error = match (&found.klt, widths) {
            (Some(klt), Some(widths)) => {
                let table = distortions(spec.options.page.tokens());
                let distortion = |channel: usize| {
                    let width = widths[channel * widths.len() / self.dim];
                    WIDTHS.iter().position(|known| *known == width).map_or(0.0, |place| table[place])
                };
                let variances = klt.variances.iter().enumerate();
                variances.map(|(channel, variance)| f64::from(*variance) * distortion(channel)).sum()
            }
            (Some(klt), None) if spec.shares_bits() => {
                expected_trellis_error(&klt.variances, spec.options.budget.bits())
            }
            _ => gaussian_error(&*codec),
        };
        Ok((codec.bits_per_value(), error))
    }

    /// A codec with the numbers of a head, and the widths of its channels where they differ.
    fn codec(&self, spec: &CodecSpec, head: usize) -> Result<BuiltCodec, BuildError> {
        let none = SideCalibration::default();
        let found = self.plan.findings(self.slot, head, self.side).unwrap_or(&none);
        let tier = Tier::select()?;
        let calibration = found.calibration(spec, self.side, self.dim, tier)?;
        let codec = spec.build_with(self.side, self.dim, &calibration, tier)?;
        Ok((codec, calibration.widths))
    }

    /// Whether errors of a codec and of the probe are in the same units: those of the plan's basis for keys.
    fn compares(&self, spec: &CodecSpec) -> bool {
        self.side == Side::Value || spec.shares_bits()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers of a side whose codecs cost 4^−bits of what each layer weighs.
    fn parts(side: Side) -> Vec<Part> {
        let part = |layer: usize| {
            let one = |(place, spec): (usize, CodecSpec)| {
                let bits = 2.0 + 0.3 * place as f64;
                (spec, Alternative { bits: 64.0 * bits, kl: (1.0 + layer as f64) * 0.25f64.powf(bits) })
            };
            let alternatives = offered(side).into_iter().enumerate().map(one).collect();
            Part { slot: layer, layer, head: 0, side, values: 64, alternatives }
        };
        (0..2).map(part).collect()
    }

    #[test]
    fn few_measurements_give_what_all_would_where_factors_are_smooth() {
        for side in [Side::Key, Side::Value] {
            // What a whole side costs: a factor that is exponential in bits, another for each family.
            let truth: Vec<f64> = {
                let (parts, mut place) = (parts(side), 0);
                let mut truth = Vec::new();
                for (number, family) in families(side).iter().enumerate() {
                    for _ in family.offered {
                        let kl: f64 = parts.iter().map(|part| part.alternatives[place].1.kl).sum();
                        let bits = parts[0].alternatives[place].1.bits / 64.0;
                        let slope = if family.measured.len() > 1 { 0.2 } else { 0.0 };
                        truth.push(kl * (1.0 + number as f64) * (slope * bits).exp());
                        place += 1;
                    }
                }
                truth
            };
            let names: Vec<&str> = families(side).iter().flat_map(|family| family.offered).copied().collect();
            let asked = families(side).iter().flat_map(|family| family.measured);
            let told: Vec<f64> =
                asked.map(|name| truth[names.iter().position(|one| one == name).unwrap()]).collect();
            let mut scaled = parts(side);
            scale(&mut scaled, side, &told);
            for (place, name) in names.iter().enumerate() {
                let sum: f64 = scaled.iter().map(|part| part.alternatives[place].1.kl).sum();
                // Beyond the last that is measured a factor is held.
                if *name != "klt4.5:trellis" {
                    assert!((sum / truth[place] - 1.0).abs() < 1e-9, "{name}: {sum}, {}", truth[place]);
                }
                let apart = scaled[1].alternatives[place].1.kl / scaled[0].alternatives[place].1.kl;
                assert!((apart - 2.0).abs() < 1e-9, "{name}: layers as far apart as before");
            }
        }
    }
}
