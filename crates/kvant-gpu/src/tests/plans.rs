//! Caches of a plan: every kv head with a basis and widths of its own.

use super::pages::{Device, by_host, compare, fuses, is_exact, rows};
use super::{Random, gpu};
use crate::layout::LayoutKernels;
use kvant_cache::plan::{Klt, Plan, PlannedHead, PlannedSlot, SideCalibration};
use kvant_cache::{CacheLayout, KvShape, Slots};
use kvant_codec::{Dense, PageFormat, Side};
use std::sync::Arc;

/// Heads with bases and widths of their own: `klt` of a plan, λ of another.
#[test]
fn pages_of_every_head_are_those_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let device = Device::new(gpu);
    let (fused, random) = (fuses(&device.gpu), &mut Random::new(11));
    for (policy, dim) in [
        ("k=klt4.25,v=klt3:p32", 64),
        ("k=klt3:p64,v=klt2.5", 40),
        ("k=klt8,v=klt1.5:p32", 16),
        ("k=klt5.5:s32,v=rot4g32", 128),
        ("srft4g32:lambda", 64),
        ("k=srft4g32:lambda,mean,v=sym4g32:mean", 48),
        ("k=ch4:srht,mean,v=klt6", 80),
    ] {
        let layout = planned(policy, 3, dim);
        let kernels = LayoutKernels::new(&device.gpu, &layout).unwrap_or_else(|e| panic!("{policy}: {e}"));
        let slot = kernels.slots[0].as_ref().unwrap();
        for (side, of) in [(Side::Key, &slot.key), (Side::Value, &slot.value)] {
            for (head, have) in [(0, of.tokens()), (1, 19), (2, of.tokens())] {
                let codecs = layout.slots()[0].heads()[head].side(side).unwrap();
                let rows = rows(random, have, dim);
                let (_, coded, mark) = device.encoded(of, (head, codecs.codec().page_bytes()), &rows);
                assert_eq!(mark, 0);
                let Some(PageFormat::Packed(format)) = codecs.codec().format() else { panic!() };
                compare(
                    codecs.codec(),
                    &coded,
                    &by_host(codecs, &rows).1,
                    is_exact(fused, codecs.codec(), &format),
                )
                .unwrap_or_else(|e| panic!("{policy} {side:?} {dim}, head {head}: {e}"));
            }
        }
    }
}

/// A layout of a plan made up for it: other bases, means, variances and λ for every head.
pub(super) fn planned(policy: &str, kv_heads: usize, dim: usize) -> CacheLayout {
    let random = &mut Random::new(5);
    let mut findings = |head: usize| {
        // Reflections of each other's halves, so that the inverse is well behaved.
        let mut basis: Vec<f32> =
            (0..dim * dim).map(|n| 0.02 * random.number() * (n % 7) as f32 / 7.0).collect();
        (0..dim).for_each(|c| basis[c * dim + (c + 3 * head + 1) % dim] += 1.0);
        SideCalibration {
            mean: Some(random.numbers(dim)),
            range: Some([random.numbers(dim).iter().map(|x| x - 2.0).collect(), vec![1.5; dim]]),
            klt: Some(Klt {
                basis: Arc::new(Dense::of(dim, basis).unwrap()),
                variances: (0..dim).map(|c| (0.95 - 0.12 * (head % 4) as f32).powi(c as i32)).collect(),
            }),
            ..SideCalibration::default()
        }
    };
    let heads =
        (0..kv_heads).map(|head| PlannedHead { key: findings(head), value: findings(head + 1) }).collect();
    let slot = PlannedSlot { key_dim: dim, value_dim: dim, heads };
    let plan = Arc::new(Plan::new([7; 32], policy.parse().unwrap(), "a test", vec![slot]).unwrap());
    let shape = KvShape { kv_heads, key_dim: dim, value_dim: dim, window: None };
    CacheLayout::new(&plan.with(plan.policy()), &Slots::uniform(1, shape)).unwrap()
}
