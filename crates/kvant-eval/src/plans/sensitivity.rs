//! How much each layer's keys and values cost when they alone are rounded.
//!
//! A *probe* is the exact cache with one side of one layer in a codec; its divergence, measured strictly, tells layers apart. What a
//! codec costs when all layers of a side have it is measured too, for every codec that may be chosen: how errors of many layers add
//! up, and how they grow when bits are few, is then no guess. A layer's share of that is its probe's, and a kv head's share of its
//! layer the part of the probe's error that it makes, moved to the codec by the mean square errors the codecs make there: those of
//! `klt` from the variances of its channels, those of rotated values from Gaussian vectors, which is what a rotation makes of them.

use super::choice::Alternative;
use super::search::knows_costs;
use crate::divergence::{Headway, Mode, Models, Request, divergence};
use crate::error::EvalError;
use crate::token_nll::PassLimits;
use crate::windows::Windows;
use kvant_cache::plan::Findings;
use kvant_cache::{Clause, Plan, SlotKind};
use kvant_codec::allocation::{WIDTHS, distortions};
use kvant_codec::{BuildError, CodecSpec, KvSpec, PageCodec, Side, Tier, expected_trellis_error};
use kvant_engine::Policy;
use kvant_model::Model;
use std::sync::Arc;

/// What keys are tried with.
const KEY_PROBE: &str = "klt3:trellis";
/// What values are tried with.
const VALUE_PROBE: &str = "trellis3";
/// What keys may get: trellis codes by quarters of a bit where bits are few, scalar ones where there are many.
const KEYS: [&str; 16] = [
    "klt2:trellis",
    "klt2.25:trellis",
    "klt2.5:trellis",
    "klt2.75:trellis",
    "klt3:trellis",
    "klt3.25:trellis",
    "klt3.5:trellis",
    "klt3.75:trellis",
    "klt4:trellis",
    "klt4.5:trellis",
    "ch4",
    "klt4",
    "klt4.5",
    "klt5",
    "klt5.5",
    "klt6",
];
/// What values may get.
const VALUES: [&str; 10] = [
    "trellis2",
    "trellis2.25",
    "trellis2.5",
    "trellis2.75",
    "trellis3",
    "trellis3.5",
    "trellis4",
    "tq4",
    "rot4g32",
    "rot5g32",
];

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

fn codec(text: &str) -> CodecSpec {
    text.parse::<KvSpec>().expect("a spec of the grammar").key
}

fn probe(side: Side) -> CodecSpec {
    codec(match side {
        Side::Key => KEY_PROBE,
        Side::Value => VALUE_PROBE,
    })
}

fn offered(side: Side) -> Vec<CodecSpec> {
    match side {
        Side::Key => KEYS.map(codec).to_vec(),
        Side::Value => VALUES.map(codec).to_vec(),
    }
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

/// Measures every side of every layer, and every codec on a whole side, and makes the alternatives that follow.
///
/// # Errors
/// If the plan has no numbers for a codec, or a pass fails.
pub fn sensitivities(
    model: &Model,
    plan: &Arc<Plan>,
    windows: &Windows,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Part>, EvalError> {
    let sides = sides(model, plan);
    let probes = sides.iter().map(|at| only(at.layer, at.side, probe(at.side)));
    let whole =
        [Side::Key, Side::Value].map(|side| offered(side).into_iter().map(move |spec| every(side, spec)));
    let caches: Vec<Policy> =
        probes.chain(whole.into_iter().flatten()).map(|policy| plan.with(&policy)).collect();
    let token: usize = sides.iter().map(|at| at.heads * at.dim * size_of::<f32>()).sum();
    let side_by_side = (ROOM / (token * windows.ctx()).max(1)).max(1);
    let models = Models { reference: model, subject: model, arithmetic: "f32" };
    let mut found: Vec<f64> = Vec::with_capacity(caches.len());
    for some in caches.chunks(side_by_side) {
        let request = Request {
            models,
            windows,
            caches: some,
            against: None,
            mode: Mode::Strict,
            limits: PassLimits::default(),
        };
        let before = found.len();
        let measured = divergence(&request, None, &mut |Headway { done, total, so_far }| {
            // A pass takes its caches equally far.
            let (done, total) = (before * total + some.len() * done, caches.len() * total);
            headway(Headway { done, total, so_far });
        })?;
        found.extend(measured.iter().map(|one| one.kl().0.max(f64::MIN_POSITIVE)));
    }
    let (probed, whole) = found.split_at(sides.len());
    let (of_keys, of_values) = whole.split_at(KEYS.len());

    let mut parts: Vec<Part> = Vec::new();
    for (at, kl) in sides.iter().zip(probed) {
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

/// Makes what all parts of a side are expected to add with each of the codecs sum up to what was measured.
fn scale(parts: &mut [Part], side: Side, measured: &[f64]) {
    for (place, whole) in measured.iter().enumerate() {
        let of_side = || parts.iter().filter(|part| part.side == side);
        let factor = whole / of_side().map(|part| part.alternatives[place].1.kl).sum::<f64>();
        for part in parts.iter_mut().filter(|part| part.side == side) {
            part.alternatives[place].1.kl *= factor;
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
        let none = Findings::default();
        let found = self.plan.findings(self.slot, head, self.side).unwrap_or(&none);
        Ok(of_head(spec, found, self.side, self.dim)?)
    }

    /// Whether errors of a codec and of the probe are in the same units: those of the plan's basis for keys.
    fn compares(&self, spec: &CodecSpec) -> bool {
        self.side == Side::Value || spec.shares_bits()
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
        (Some(klt), None) if spec.shares_bits() => {
            expected_trellis_error(&klt.variances, spec.options.budget.bits())
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
