//! Mistakes made in our own kernels on purpose: the tests that pass on what Metal would be given must fail then.
//!
//! They need a C++ compiler, and run with `KVANT_GPU=msl`.

use super::{on, pages, products, small};
use crate::device::Gpu;
use kvant_msl::Metal;
use std::panic::{AssertUnwindSafe, catch_unwind};

const BARRIER: &str = "workgroupBarrier();";

fn is_wanted() -> bool {
    let is_wanted = std::env::var(crate::ADAPTER_VARIABLE).is_ok_and(|name| name == "msl");
    if !is_wanted {
        eprintln!("skipped: `cargo xtask test msl` runs it");
    }
    is_wanted
}

/// Whether a test fails once kernels are changed.
fn is_found(test: fn(), change: impl Fn(&str) -> String + Send + Sync + 'static) -> bool {
    let gpu = Gpu::on_adapter(&Metal::default().changed(change).adapter()).unwrap();
    catch_unwind(AssertUnwindSafe(|| on(gpu, test))).is_err()
}

/// A text without one of its barriers.
fn without_barrier(wgsl: &str, number: usize) -> String {
    match wgsl.match_indices(BARRIER).nth(number) {
        Some((at, _)) => format!("{}{}", &wgsl[..at], &wgsl[at + BARRIER.len()..]),
        None => wgsl.to_owned(),
    }
}

#[test]
fn kernels_without_barriers_are_found() {
    if !is_wanted() {
        return;
    }
    let tests: [(&str, fn()); 3] = [
        ("norm", small::norms_are_those_of_the_formula),
        ("product", products::products_are_those_of_the_decoded_weights),
        ("encode", pages::pages_are_those_of_the_host),
    ];
    for (name, test) in tests {
        assert!(is_found(test, |wgsl| wgsl.replace(BARRIER, "")), "{name}");
    }
}

#[test]
fn every_barrier_of_the_norm_is_missed() {
    if !is_wanted() {
        return;
    }
    let barriers = crate::ops::ROW_SUM.matches(BARRIER).count();
    assert!(barriers > 0);
    let missed: Vec<usize> = (0..barriers)
        .filter(|number| {
            let number = *number;
            is_found(small::norms_are_those_of_the_formula, move |wgsl| without_barrier(wgsl, number))
        })
        .collect();
    assert_eq!(missed, (0..barriers).collect::<Vec<_>>());
}

#[test]
fn sums_that_are_off_by_one_are_found() {
    if !is_wanted() {
        return;
    }
    let change = |wgsl: &str| wgsl.replace("/= 2u) {", "/= 3u) {");
    assert!(is_found(small::norms_are_those_of_the_formula, change));
}
