//! Which kernels are the fastest on an adapter: measured once, then kept.
//!
//! That a driver offers integer dot products, or cooperative matrices, does not say that they are fast: some put them together from other
//! instructions. So the first start on a GPU times products of one token in integers and in f32, and products of a prompt by matrices and
//! without them, and whoever opens devices keeps what came of it ([`Kept`]).
//!
//! **Invariant:** what is kept is what computes, until it is deleted or the driver or kvant changes, so a noisy first start changes nothing
//! later. A way that is offered is left only where the other one was faster by [`MARGIN`] in every round.

use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::product::{Epilogue, Fused, Target};
use crate::recorder::{BindGroups, Recorder};
use crate::weights::{Matrix, Place};
use kvant_device::Kept;
use kvant_model::{DType, Tensor};
use std::time::Instant;

/// Rounds in which both ways take turns, and how much faster the other one has to be in each.
const ROUNDS: usize = 5;
const MARGIN: f64 = 1.1;

/// Rows and columns of the matrix that is multiplied, products of a round, and tokens of a prompt's.
const SIDE: usize = 4096;
const PRODUCTS: usize = 24;
const PROMPT: usize = 64;

/// Seconds of work before the first round: a card that was idle has a low clock.
const WARM: f64 = 0.4;

impl Gpu {
    /// The key under which the choice of this adapter is kept; `None` where it has none: nothing but f32 is offered, or somebody chose.
    pub(crate) fn choice_key(&self) -> Option<String> {
        choice_key(self.report())
    }

    /// How it computes the fastest: as it is kept, or measured now and kept.
    pub(crate) fn fastest_arithmetic(&self, kept: &dyn Kept) -> Arithmetic {
        let offered = self.arithmetic();
        let Some(key) = self.choice_key() else { return offered };
        let known = kept.get(&key).and_then(|code| Arithmetic::of_code(&code, offered));
        known.unwrap_or_else(|| {
            // Where it cannot be measured, what is offered is as good as anything.
            let found = self.measured_arithmetic(SIDE).unwrap_or(offered);
            kept.keep(&key, &found.code());
            found
        })
    }

    /// The faster ones of the ways that it offers, by products with a matrix of so many rows and columns.
    pub(crate) fn measured_arithmetic(&self, side: usize) -> Option<Arithmetic> {
        let offered = self.arithmetic();
        let plain = self.reopened(Arithmetic::default()).ok()?;
        let probes = [Probe::new(self, side)?, Probe::new(&plain, side)?];
        let is_left = |tokens: usize| {
            probes.iter().for_each(|probe| probe.warm_up(tokens));
            let rounds: Vec<[f64; 2]> =
                (0..ROUNDS).map(|_| probes.each_ref().map(|probe| probe.seconds(tokens))).collect();
            is_slower(&rounds)
        };
        let dots = offered.dots && !is_left(1);
        let matrices = offered.matrices.filter(|_| !is_left(PROMPT));
        Some(Arithmetic { dots, matrices })
    }
}

/// The same of an adapter that is not open.
pub(crate) fn choice_key(report: &crate::AdapterReport) -> Option<String> {
    let has_choice =
        report.kind.is_gpu() && report.unfit.is_none() && report.arithmetic != Arithmetic::default();
    let key = || {
        let version = env!("CARGO_PKG_VERSION");
        format!("kernels of {} ({}, {}), kvant {version}", report.name, report.api, report.driver)
    };
    (has_choice && !Arithmetic::is_wished()).then(key)
}

/// Whether the first of two ways was slower in every round, and by more than noise.
fn is_slower(rounds: &[[f64; 2]]) -> bool {
    rounds.iter().all(|[offered, other]| *offered > MARGIN * other)
}

/// A product on a device.
struct Probe<'a> {
    gpu: &'a Gpu,
    side: usize,
    matrix: Matrix,
    x: Buffer,
    y: Buffer,
}

impl<'a> Probe<'a> {
    fn new(gpu: &'a Gpu, side: usize) -> Option<Probe<'a>> {
        // Codes and scales of a half: what they are does not matter.
        let bytes = vec![0x2c; side * DType::Q4_0.row_bytes(side)?];
        let tensor = Tensor::new("probe", DType::Q4_0, vec![side, side], bytes.into()).ok()?;
        let matrix = Matrix::upload(gpu, &[tensor]).ok()?;
        let buffer = |label| Buffer::new(gpu, label, 4 * PROMPT * side);
        Some(Probe { gpu, side, matrix, x: buffer("x"), y: buffer("y") })
    }

    /// Seconds of the products of a round.
    fn seconds(&self, tokens: usize) -> f64 {
        let mut binds = BindGroups::default();
        let mut recorder = Recorder::new(self.gpu, &mut binds);
        let place = |buffer| Place { buffer, stride: self.side, at: 0 };
        for _ in 0..PRODUCTS {
            let target = Target { bias: None, y: place(&self.y), epilogue: Epilogue::STORE };
            self.matrix.multiply_fused(&mut recorder, tokens, place(&self.x), target, Fused::default());
        }
        let start = Instant::now();
        recorder.submit();
        // A device that is lost meanwhile is a fault that the first pass names.
        let _ = self.gpu.device().poll(wgpu::PollType::wait_indefinitely());
        start.elapsed().as_secs_f64()
    }

    fn warm_up(&self, tokens: usize) {
        let begin = Instant::now();
        // The first round builds kernels.
        self.seconds(tokens);
        while self.gpu.report().kind.is_gpu() && begin.elapsed().as_secs_f64() < WARM {
            self.seconds(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::gpu;
    use std::cell::RefCell;
    use std::collections::HashMap;

    #[derive(Default)]
    struct Notes(RefCell<HashMap<String, String>>);

    impl Kept for Notes {
        fn get(&self, key: &str) -> Option<String> {
            self.0.borrow().get(key).cloned()
        }

        fn keep(&self, key: &str, found: &str) {
            self.0.borrow_mut().insert(key.to_owned(), found.to_owned());
        }
    }

    #[test]
    fn one_slow_round_changes_nothing() {
        assert!(is_slower(&[[1.3, 1.0], [1.2, 1.0], [1.5, 1.0]]));
        assert!(!is_slower(&[[1.3, 1.0], [1.05, 1.0], [9.0, 1.0]]), "within the margin");
        assert!(!is_slower(&[[0.5, 1.0], [9.0, 1.0]]));
    }

    #[test]
    fn codes_stand_for_what_an_adapter_offers() {
        for choice in Arithmetic::FAST.choices() {
            assert_eq!(Arithmetic::of_code(&choice.code(), Arithmetic::FAST), Some(choice));
        }
        let dots = Arithmetic { dots: true, matrices: None };
        assert_eq!(Arithmetic::of_code("matrices16", dots), None);
        assert_eq!((dots.code().as_str(), Arithmetic::default().code().as_str()), ("dots", "f32"));
    }

    #[test]
    fn what_was_measured_is_one_of_the_ways() {
        let Some(gpu) = gpu() else { return };
        let fast = gpu.reopened(Arithmetic::FAST).unwrap();
        let found = fast.measured_arithmetic(256).unwrap();
        assert!(fast.arithmetic().choices().contains(&found), "{found}");
        // Drivers in software have nothing to choose, and so nothing is kept for them.
        let notes = Notes::default();
        if fast.choice_key().is_none() {
            assert_eq!(fast.fastest_arithmetic(&notes), fast.arithmetic());
            assert!(notes.0.borrow().is_empty());
        }
    }
}
