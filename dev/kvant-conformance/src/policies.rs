//! Ways to keep keys and values: of every family of codecs, with plans made up for those that need one.

use kvant_cache::plan::{Klt, Plan, PlannedHead, PlannedSlot, SideCalibration};
use kvant_cache::{Policy, SlotKind, Slots};
use kvant_codec::Dense;
use std::sync::Arc;

/// Every family, some of them with other widths, groups, pages, sinks and exact pages.
pub(crate) const CACHES: [&str; 27] = [
    "f32",
    "f16;sinks=7;recent=70",
    "bf16",
    "int8",
    "int4",
    "int4;sinks=0;recent=100",
    "int4;layers 0:k=f16",
    "k8v4",
    "k8v2;sinks=3",
    "kivi2",
    "v3",
    "tq3",
    "srft4g32:lambda",
    "k=srft4g32,v=asym4g32",
    "k=sym5g32:p32,v=ch6:p128",
    "k=klt4.25,v=rot4g32",
    "k=klt4.25:p64,v=rot4g32",
    "k=klt3:p32,v=klt4:p64;sinks=0;recent=100",
    "k=max5g32,v=srht4g32",
    "k=chg4,v=nf4",
    "k=uniform4,v=qjl1",
    "trellis3",
    "iq4",
    "delta4",
    "turbo3",
    "polar4",
    "int8;window=96",
];

/// The token count of a streaming window that stands behind a spec.
const WINDOW: &str = ";window=";

/// A policy of a spec, with a plan made up for these slots where it needs one: another basis, mean, range and widths for every
/// head. `;window=TOKENS` at its end makes it stream.
///
/// # Panics
/// If it is not a spec, or needs a plan that these slots cannot have.
pub fn policy(text: &str, slots: &Slots) -> Policy {
    if let Some((text, window)) = text.split_once(WINDOW) {
        let mut streaming = policy(text, slots);
        streaming.rule.streaming = Some(window.parse().unwrap());
        return streaming;
    }
    let policy: Policy = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    if !text.contains("klt") && !text.contains("lambda") {
        return policy;
    }
    let mut words = kvant_codec::split_mix(3);
    let mut number = || (words.next().unwrap() >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let mut findings = |dim: usize, head: usize| {
        let mut basis: Vec<f32> = (0..dim * dim).map(|_| 0.05 * number()).collect();
        (0..dim).for_each(|c| basis[c * dim + (c + head) % dim] += 1.0);
        SideCalibration {
            mean: Some((0..dim).map(|_| 0.1 * number()).collect()),
            range: Some([(0..dim).map(|_| number() - 1.5).collect(), vec![1.0; dim]]),
            klt: Some(Klt {
                basis: Arc::new(Dense::of(dim, basis).unwrap()),
                variances: (0..dim).map(|c| (0.9 - 0.1 * head as f32).powi(c as i32)).collect(),
            }),
            ..SideCalibration::default()
        }
    };
    let mut planned = Vec::new();
    for slot in slots.kv_slots() {
        let SlotKind::KeysValues(shape) = slots.get(slot.index()).unwrap().kind else {
            panic!("{text}: plans are of keys and values")
        };
        let head = |head| PlannedHead {
            key: findings(shape.key_dim, head),
            value: findings(shape.value_dim, head + 1),
        };
        let heads = (0..shape.kv_heads).map(head).collect();
        planned.push(PlannedSlot { key_dim: shape.key_dim, value_dim: shape.value_dim, heads });
    }
    let plan = Arc::new(Plan::new([7; 32], policy, "a test", planned).unwrap());
    plan.with(plan.policy())
}

/// Whether it streams: sinks and a window, over which a talk goes on without end.
pub(crate) fn is_streaming(text: &str) -> bool {
    text.contains(WINDOW)
}
