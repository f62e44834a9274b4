//! Plans in files, and caches built from them.

use kvant_cache::plan::{
    Cost, Klt, LearnedTransform, Plan, PlanError, PlannedHead, PlannedSlot, SideCalibration,
};
use kvant_cache::{Arena, CacheLayout, KvShape, Policy, Sequence, Slots};
use kvant_codec::{Dense, KvSpec, Side, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIM: usize = 16;
const MODEL: [u8; 32] = [7; 32];
const SHAPE: KvShape = KvShape { kv_heads: 2, key_dim: DIM, value_dim: 8, window: None };

/// A basis that doubles and exchanges channels, different for every head.
fn basis(by: usize) -> Vec<f32> {
    (0..DIM * DIM).map(|n| if (n % DIM + by) % DIM == n / DIM { 2.0 } else { 0.0 }).collect()
}

fn wave(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() + 0.5).collect()
}

fn plan() -> Plan {
    let head = |slot: usize, head: usize| PlannedHead {
        key: SideCalibration {
            mean: Some(wave(DIM, 5 * slot + head)),
            klt: Some(Klt {
                basis: Arc::new(Dense::of(DIM, basis(2 * slot + head)).unwrap()),
                variances: (0..DIM).map(|c| 0.5f32.powi(c as i32)).collect(),
            }),
            balanced: (slot == 0).then(|| basis(head)),
            ..SideCalibration::default()
        },
        value: SideCalibration {
            range: (head == 1).then(|| [vec![-1.5; 8], vec![1.0; 8]]),
            ..SideCalibration::default()
        },
    };
    let slot = |slot: usize| PlannedSlot {
        key_dim: DIM,
        value_dim: 8,
        heads: (0..2).map(|h| head(slot, h)).collect(),
    };
    let policy: Policy = "k=klt4:p32,v=rot4g32;layers 1 heads 1:v=srft4g32:lambda;recent=20".parse().unwrap();
    Plan::new(MODEL, policy, "a test, by hand", vec![slot(0), slot(1)]).unwrap()
}

/// The policy of the plan, with the plan in it.
fn planned() -> Policy {
    let plan = Arc::new(plan());
    plan.with(plan.policy())
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-1.kvplan")
}

#[test]
fn version_1_loads() {
    let loaded = Plan::open(&fixture()).unwrap();
    assert_eq!((loaded.model(), loaded.made()), (&MODEL, "a test, by hand"));
    assert_eq!(loaded.slots(), plan().slots());
    assert!(loaded.to_bytes() == std::fs::read(fixture()).unwrap(), "it is written as it was read");
    assert_eq!(loaded, plan());
}

#[test]
fn what_is_saved_comes_back_and_its_header_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.kvplan");
    let plan = plan();
    plan.save(&file).unwrap();
    let loaded = Plan::open(&file).unwrap();
    assert_eq!((loaded.slots(), loaded.policy()), (plan.slots(), plan.policy()));
    assert_eq!(loaded.digest(), plan.digest());
    let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    assert!(text.contains(&format!("model {}\npolicy k=klt4:p32,", "07".repeat(32))), "{text}");
    assert!(matches!(Plan::open(&folder.path().join("none")), Err(PlanError::Io { .. })));
}

#[test]
fn a_cache_with_a_plan_keeps_each_head_in_its_own_basis() {
    let policy = planned();
    let layout = Arc::new(CacheLayout::new(&policy, &Slots::uniform(2, SHAPE)).unwrap());
    let mut sequence = Sequence::new(layout, Arena::new());
    // Numbers that f16 holds: what waits to be encoded is kept in it.
    let coarse = |rows: Vec<f32>| rows.into_iter().map(|x| (x * 64.0).round() / 64.0).collect::<Vec<f32>>();
    let (keys, values) = (coarse(wave(100 * 2 * DIM, 1)), wave(100 * 2 * 8, 2));
    let slots = Slots::uniform(2, SHAPE);
    for slot in slots.kv_slots() {
        sequence.append(slot, &keys, &values).unwrap();
    }
    sequence.advance(100).unwrap();
    for (slot, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let store = sequence.side(slots.kv(slot).unwrap(), head, Side::Key).unwrap();
        let mut found = vec![0.0; 32 * DIM];
        store.codecs().codec().decode(store.encoded(0).unwrap(), &mut found).unwrap();
        let spec = "klt4:p32".parse::<KvSpec>().unwrap().key;
        let (own, tier) = (plan(), Tier::select().unwrap());
        let own = own.findings(slot, head, Side::Key).unwrap();
        let own = own.calibration(&spec, Side::Key, DIM, tier).unwrap();
        assert_eq!(own.widths, Some(vec![6, 2]));
        let codec = spec.build_with(Side::Key, DIM, &own, tier).unwrap();
        let rows: Vec<f32> =
            (4..36).flat_map(|token| keys[(token * 2 + head) * DIM..][..DIM].to_vec()).collect();
        let (mut page, mut expected) = (vec![0; codec.page_bytes()], vec![0.0; 32 * DIM]);
        codec.encode(&rows, &mut page).unwrap();
        codec.decode(&page, &mut expected).unwrap();
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "slot {slot}, head {head}: {worst}");
    }
}

#[test]
fn other_policies_take_their_numbers_from_a_plan_too() {
    let plan = Arc::new(plan());
    let layout = |policy: &str| {
        CacheLayout::new(&plan.with(&policy.parse().unwrap()), &Slots::uniform(2, SHAPE)).err()
    };
    assert!(layout("k=klt6.5,v=f16").is_none() && layout("k=rot4:mean,v=tq3").is_none());
    assert!(layout("k=ch4,v=f16;layers 0:k=rot4:mean,balanced").is_none());
    let error = layout("k=rot4:balanced,v=f16").unwrap().to_string();
    assert!(error.contains("layer 1") && error.contains("balanced basis"), "{error}");
    let error = layout("k=srft4:lambda,v=f16").unwrap().to_string();
    assert!(error.contains("λ"), "{error}");
}

/// A plan whose keys have learned something for two codecs.
fn learned() -> Plan {
    let trained = |spec: &str, numbers: Vec<f32>| LearnedTransform { spec: spec.to_owned(), numbers };
    let key = || SideCalibration {
        mean: Some(wave(DIM, 3)),
        learned: vec![
            trained("srft4g32:scaled", (0..DIM).map(|c| 1.0 + c as f32).collect()),
            trained("sym4g32:mean,cayley", basis(3)),
        ],
        ..SideCalibration::default()
    };
    let head = |_| PlannedHead { key: key(), value: SideCalibration::default() };
    let slot = || PlannedSlot { key_dim: DIM, value_dim: 8, heads: (0..2).map(head).collect() };
    let policy = "k=srft4:scaled,v=f16".parse().unwrap();
    Plan::new(MODEL, policy, "learned", vec![slot(), slot()]).unwrap()
}

#[test]
fn costs_of_codecs_come_back_and_are_checked() {
    let cost = |spec: &str, kl: f32| Cost { spec: spec.to_owned(), kl };
    let with = |costs: Vec<Cost>| {
        let mut slots = plan().slots().to_vec();
        slots[1].heads[0].value.costs = costs;
        Plan::new(MODEL, plan().policy().clone(), "costs", slots)
    };
    let whole = with(vec![cost("trellis3", 0.25), cost("klt2.75:trellis", 0.0)]).unwrap();
    let loaded = Plan::from_bytes(&whole.to_bytes()).unwrap();
    assert_eq!(loaded.slots(), whole.slots());
    assert_eq!(loaded.findings(1, 0, Side::Value).unwrap().costs[1], cost("klt2.75:trellis", 0.0));
    for (bad, why) in [
        (cost("trellis 3", 0.25), "of no spec"),
        (cost("nothing", 0.25), "of no spec"),
        (cost("trellis3", -1.0), "less than nothing"),
        (cost("trellis3", f32::NAN), "not finite"),
    ] {
        let error = with(vec![bad]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("slot 1, kv head 0"), "{error}");
    }
}

#[test]
fn what_was_learned_serves_the_codec_it_was_learned_for() {
    let plan = Arc::new(Plan::from_bytes(&learned().to_bytes()).unwrap());
    assert_eq!(plan.slots(), learned().slots());
    let layout = |policy: &str| {
        CacheLayout::new(&plan.with(&policy.parse().unwrap()), &Slots::uniform(2, SHAPE)).err()
    };
    for policy in ["k=srft4:scaled,v=f16", "k=sym4:cayley,mean,v=tq3", "k=rot4:mean,v=f16"] {
        assert!(layout(policy).is_none(), "{policy}");
    }
    for other in ["k=srft3:scaled,v=f16", "k=srft4:cayley,v=f16", "k=sym4:cayley,v=f16"] {
        let error = layout(other).unwrap().to_string();
        assert!(error.contains("learned for srft4g32:scaled sym4g32:mean,cayley alone"), "{error}");
    }
    let error = layout("k=f16,v=srft4:scaled").unwrap().to_string();
    assert!(error.contains("scales learned for it") && error.contains("kvant calibrate"), "{error}");
    let own = plan.findings(0, 1, Side::Key).unwrap();
    let of = |spec: &str| {
        let spec = spec.parse::<KvSpec>().unwrap().key;
        own.calibration(&spec, Side::Key, DIM, Tier::Scalar).unwrap()
    };
    assert_eq!(of("srft4:scaled").lambda.unwrap()[5], 6.0);
    assert_eq!(of("sym4:mean,cayley").basis.unwrap().matrix(), basis(3));
}

#[test]
fn what_was_learned_for_nothing_that_learns_is_refused() {
    for (spec, numbers) in [("srft4", DIM), ("nonsense", DIM * DIM), ("srft4g32:scaled", DIM - 1)] {
        let mut slots = learned().slots().to_vec();
        slots[0].heads[1].key.learned[0] =
            LearnedTransform { spec: spec.to_owned(), numbers: vec![1.0; numbers] };
        assert!(Plan::new(MODEL, "int4".parse().unwrap(), "wrong", slots).is_err(), "{spec}");
    }
}

#[test]
fn a_plan_is_for_its_model_and_for_no_other() {
    assert!(plan().check(&MODEL).is_ok());
    let error = plan().check(&[8; 32]).unwrap_err().to_string();
    assert!(
        error.contains("another model (a test, by hand)") && error.contains("kvant calibrate"),
        "{error}"
    );
    let policy = planned();
    let wider = KvShape { key_dim: 32, ..SHAPE };
    let error = CacheLayout::new(&policy, &Slots::uniform(2, wider)).err().unwrap().to_string();
    assert!(error.contains("keys of kv head 0, layer 0") && error.contains("fit"), "{error}");
    let more = CacheLayout::new(&policy, &Slots::uniform(3, SHAPE)).err().unwrap().to_string();
    assert!(more.contains("layer 2") && more.contains("plan"), "{more}");
    // With and without a plan are not the same policy.
    assert_ne!(&policy, plan().policy());
    assert!(CacheLayout::new(plan().policy(), &Slots::uniform(2, SHAPE)).is_err());
}

fn refusal(bytes: &[u8]) -> PlanError {
    Plan::from_bytes(bytes).expect_err("a damaged plan is refused")
}

#[test]
fn a_plan_that_was_cut_off_or_changed_anywhere_is_refused() {
    [plan(), learned()].iter().for_each(every_change_is_refused);
}

fn every_change_is_refused(plan: &Plan) {
    let bytes = plan.to_bytes();
    for len in (0..bytes.len()).step_by(3) {
        match len {
            0..8 => assert!(matches!(refusal(&bytes[..len]), PlanError::Foreign)),
            _ => assert!(matches!(refusal(&bytes[..len]), PlanError::Length { .. }), "{len}"),
        }
    }
    assert!(matches!(refusal(&[&bytes[..], b"x"].concat()), PlanError::Length { .. }));
    for at in (0..bytes.len()).step_by(3) {
        let mut other = bytes.clone();
        other[at] ^= 0x81;
        let error = refusal(&other);
        let expected = match at {
            0..8 => matches!(error, PlanError::Foreign),
            8..12 => matches!(error, PlanError::Version { .. }),
            16..24 => matches!(error, PlanError::Length { .. }),
            _ => matches!(error, PlanError::Damaged),
        };
        assert!(expected, "byte {at}: {error}");
    }
}

/// Numbers under a right checksum are no more to be believed than those under a wrong one.
#[test]
fn absurd_numbers_are_refused_before_they_are_used() {
    [plan(), learned()].iter().for_each(absurdities_are_refused);
}

fn absurdities_are_refused(plan: &Plan) {
    let bytes = plan.to_bytes();
    let mut accepted = 0;
    for at in 24..bytes.len().min(700) {
        for number in [0u32, 1, 3, 255, 1025, 1 << 20, 0x7f80_0000, u32::MAX] {
            let mut other = bytes.clone();
            other[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let sum = crc32fast::hash(&other[16..]);
            other[12..16].copy_from_slice(&sum.to_le_bytes());
            // What is accepted can be written and read again.
            if let Ok(plan) = Plan::from_bytes(&other) {
                accepted += 1;
                let again = Plan::from_bytes(&plan.to_bytes()).unwrap();
                assert!(again.slots() == plan.slots(), "{at} {number}");
            }
        }
    }
    assert!(accepted > 100, "the seal is right, so what changes no structure loads: {accepted}");
}

#[test]
fn what_cannot_be_read_back_is_not_written() {
    let policy = || "int4".parse::<Policy>().unwrap();
    let error = Plan::new(MODEL, policy(), "two\nlines", vec![]).unwrap_err().to_string();
    assert!(error.contains("three lines"), "{error}");
    let short = SideCalibration { mean: Some(vec![0.0; 3]), ..SideCalibration::default() };
    let head = PlannedHead { key: short, value: SideCalibration::default() };
    let slot = PlannedSlot { key_dim: 4, value_dim: 4, heads: vec![head] };
    assert!(Plan::new(MODEL, policy(), "short", vec![slot]).is_err());
}
