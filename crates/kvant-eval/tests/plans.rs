//! Plans made from a model, and caches kept by them.

use kvant_cache::Plan;
use kvant_codec::{KvSpec, Side};
use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_eval::divergence::Mode;
use kvant_eval::layers::layer_views;
use kvant_eval::plans::{PlanError, PlanRequest, Positions, Progress, calibrate};
use kvant_eval::{PassLimits, Score, Windows};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_threads::Pool;
use std::path::Path;
use std::sync::Arc;

const WINDOW: usize = 160;

fn model() -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/smollm2");
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::AS_STORED).unwrap()
}

/// Windows of ids without a pattern, from a seed.
fn windows(model: &Model, count: usize, seed: u64) -> Windows {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % model.vocabulary() as u64) as u32
    };
    let ids: Vec<u32> = (0..count * WINDOW).map(|_| next()).collect();
    Windows::of_ids(&[], &ids, WINDOW, count, Score::All).unwrap()
}

fn plan(model: &Model, policy: &str) -> Arc<Plan> {
    let mut told = Progress::Read(0);
    let plan = learned(model, policy, &[], Positions::All, &mut |progress| told = progress).unwrap();
    assert_eq!(told, Progress::Read(12 * WINDOW));
    Arc::new(plan)
}

fn learned(
    model: &Model,
    policy: &str,
    learn: &[&str],
    ranges: Positions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Plan, PlanError> {
    let policy = policy.parse().unwrap();
    let learn: Vec<KvSpec> = learn.iter().map(|spec| spec.parse().unwrap()).collect();
    let request =
        PlanRequest { model: [3; 32], policy: &policy, text: "noise", learn: &learn, ranges, reach: 0 };
    calibrate(model, request, &windows(model, 12, 1), progress)
}

/// The mean square by which logits are off those of the exact cache, on ids that no plan has seen.
fn off(model: &Model, policy: &Policy) -> f64 {
    let ids = windows(model, 1, 2).iter().next().unwrap().to_vec();
    let logits = |policy: &Policy| {
        let mut kv = KvCache::new(policy, model.slots(), WINDOW).unwrap();
        let chunk = Chunk::new(&ids, 0..ids.len());
        let rows = model.forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()]).unwrap().into_logits();
        (0..ids.len()).flat_map(|row| rows.row(row).to_vec()).collect::<Vec<f32>>()
    };
    let exact = logits(&"f32".parse().unwrap());
    let squares = logits(policy).into_iter().zip(exact).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>() / ids.len() as f64
}

fn key_bits(model: &Model, policy: &Policy) -> f64 {
    let kv = KvCache::new(policy, model.slots(), 1).unwrap();
    kv.sequence().layout().slots()[0].heads()[0].side(Side::Key).unwrap().codec().bits_per_value()
}

#[test]
fn a_plan_from_a_model_makes_its_cache_closer_to_the_exact_one() {
    let model = model();
    let plan = plan(&model, "k=klt4:p32,v=f16");
    assert_eq!(plan.made(), "from 1920 tokens of noise");
    // Of the rule that takes extremes: noise has no more for a basis to use than fitted scales find without one.
    let (plain, planned): (Policy, _) = ("k=ch4:asym,p32,v=f16".parse().unwrap(), plan.with(plan.policy()));
    let errors = [off(&model, &plain), off(&model, &planned)];
    assert!(errors[1] < errors[0], "{errors:?}");
    assert!(key_bits(&model, &planned) <= key_bits(&model, &plain));
}

#[test]
fn one_plan_serves_every_codec_that_takes_numbers() {
    let model = model();
    let plan = plan(&model, "k=klt4:p32,v=f16");
    let with = |policy: &str| plan.with(&policy.parse().unwrap());
    let mut last = f64::INFINITY;
    for spec in ["k=klt2.5:p32,v=f16", "k=klt4:p32,v=f16", "k=klt5.5:p32,v=f16"] {
        let error = off(&model, &with(spec));
        assert!(error < 0.7 * last, "{spec}: {error}, {last} with fewer bits");
        last = error;
    }
    let plain = off(&model, &"k=rot4g32:p32,v=f16".parse().unwrap());
    let balanced = off(&model, &with("k=rot4g32:p32,mean,balanced,v=f16"));
    assert!(balanced < plain, "{balanced} with the balanced basis, {plain} without");
    assert!(off(&model, &with("k=srft4g32:p32,lambda,mean,v=rot4g32:mean")).is_finite());
}

/// Rotary embeddings see distances alone, so a model computes the same anywhere, with keys that are turned farther.
#[test]
fn far_away_values_are_the_same_and_keys_are_turned() {
    let model = model();
    let policy = "k=klt4:p32,v=f16".parse().unwrap();
    let at = |reach: usize| {
        let request = PlanRequest {
            model: [3; 32],
            policy: &policy,
            text: "noise",
            learn: &[],
            ranges: Positions::All,
            reach,
        };
        calibrate(&model, request, &windows(&model, 12, 1), &mut |_| ()).unwrap()
    };
    let (near, far) = (at(0), at(5000));
    assert!(far.made().contains(" at positions up to 5000"), "{}", far.made());
    let apart = |side: Side| {
        let mean = |plan: &Plan, head: usize| plan.findings(0, head, side).unwrap().mean.clone().unwrap();
        let (a, b) = (mean(&near, 0), mean(&far, 0));
        let square = |rows: &mut dyn Iterator<Item = f32>| rows.map(|x| x * x).sum::<f32>().sqrt();
        square(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / square(&mut a.iter().copied())
    };
    let [keys, values] = [Side::Key, Side::Value].map(apart);
    assert!(values < 1e-3 && keys > 0.05, "values off by {values}, keys by {keys}");
}

#[test]
fn values_have_a_basis_by_what_reads_them() {
    let model = model();
    let plan = plan(&model, "k=f16,v=klt4:p32");
    let [rough, fine] = ["k=f16,v=klt2.5:p32", "k=f16,v=klt5:p32"]
        .map(|policy| off(&model, &plan.with(&policy.parse().unwrap())));
    assert!(fine < 0.5 * rough, "{rough} {fine}");
}

#[test]
fn what_is_learned_is_in_the_plan_and_the_same_for_any_number_of_threads() {
    let model = model();
    let specs = ["srft4:p32,cayley", "k=sym4:p32,scaled,v=f16"];
    let mut told = Vec::new();
    let learn =
        |told: &mut dyn FnMut(Progress)| learned(&model, "int4", &specs, Positions::All, told).unwrap();
    let first = Pool::new(3).install(|| learn(&mut |progress| told.push(progress)));
    assert_eq!(told.last(), Some(&Progress::Learned(model.slots().len())));
    assert!(
        first.made().ends_with("of noise, learned srft4g32:p32,cayley sym4g32:p32,scaled"),
        "{}",
        first.made()
    );
    assert_eq!(learn(&mut |_| ()), first);

    let plan = Arc::new(first);
    // What was trained is the error of keys and values, here on ids that were not trained on.
    let ids = windows(&model, 1, 2).iter().next().unwrap().to_vec();
    let with = |policy: &str| {
        let policy = plan.with(&policy.parse().unwrap());
        let views = layer_views(&model, &ids, &[policy], Mode::Strict, PassLimits::default()).unwrap();
        let layers = &views.caches[0].layers;
        [layers.iter().map(|one| one.key_error).sum::<f64>(), layers.iter().map(|one| one.value_error).sum()]
    };
    let [plain, scaled] = ["k=sym4:p32,v=f16", "k=sym4:p32,scaled,v=f16"].map(with);
    assert!(scaled[0] < plain[0], "{plain:?} without, {scaled:?} with learned scales");
    let [plain, turned] = ["srft4:p32", "srft4:p32,cayley"].map(with);
    assert!(turned[0] < plain[0] && turned[1] < plain[1], "{plain:?} without, {turned:?} with a rotation");
    let values = plan.with(&"k=f16,v=sym4:p32,scaled".parse().unwrap());
    let refused = KvCache::new(values, model.slots(), 1).err().unwrap().to_string();
    assert!(refused.contains("learned for srft4g32:p32,cayley alone"), "{refused}");
}

#[test]
fn what_cannot_be_learned_is_refused_before_anything_is_read() {
    let model = model();
    let mut read = 0;
    for (spec, why) in
        [("int4", "none of scaled"), ("k=ch4:cayley,v=f16", "channels"), ("tq3:cayley", "rule")]
    {
        let result = learned(&model, "int4", &[spec], Positions::All, &mut |_| read += 1);
        assert!(
            matches!(&result, Err(error @ PlanError::Learning(_)) if error.to_string().contains(why)),
            "{result:?}"
        );
    }
    assert_eq!(read, 0);
}

#[test]
fn ranges_are_of_the_positions_asked_for() {
    let model = model();
    let ends = |ranges| {
        let plan = learned(&model, "int4", &[], ranges, &mut |_| ()).unwrap();
        let [low, high] = plan.findings(1, 0, Side::Key).unwrap().range.clone().unwrap();
        (low, high, plan.made().to_owned())
    };
    let (all, first) = (ends(Positions::All), ends(Positions::First(20)));
    assert!(first.2.ends_with("the first 20 positions"), "{}", first.2);
    assert!(all.0.iter().zip(&first.0).all(|(all, first)| all <= first) && all.0 != first.0);
    assert!(all.1.iter().zip(&first.1).all(|(all, first)| all >= first));
}
