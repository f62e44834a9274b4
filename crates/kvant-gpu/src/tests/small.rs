//! Norms, rotation, activations, sums.

use super::{Random, close, floats, gpu, run};
use crate::buffer::Buffer;
use crate::ops::{Activate, Norm, NormShape, RopeRows, add, rotate};
use crate::weights::Place;
use kvant_model::description::{Activation, ClampedSwiglu, NormKind, Pairing};

fn place(buffer: &Buffer, stride: usize, at: usize) -> Place<'_> {
    Place { buffer, stride, at }
}

#[test]
pub(super) fn norms_are_those_of_the_formula() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(4);
    for (kind, width, segments) in
        [(NormKind::Rms, 37, 3), (NormKind::Layer, 300, 1), (NormKind::Rms, 128, 5)]
    {
        let (rows, eps, factor, scale) = (3, 1e-5, 0.7f32, 1.3f32);
        let (weight, bias) = (random.numbers(width), random.numbers(width));
        let norm =
            Norm::new(&gpu, kind, width, Some(&weight), (kind == NormKind::Layer).then_some(&bias[..]), eps);
        let stride = segments * (width + 2) + 3;
        let x = random.numbers(4 * stride);
        let (from, to) =
            (Buffer::of_floats(&gpu, "x", &x), Buffer::new(&gpu, "y", 4 * rows * segments * width));
        let order = [2u32, 0, 3];
        let plan = Buffer::of_words(&gpu, "plan", &order);
        let shape = NormShape {
            segments,
            x_segment: width + 2,
            y_segment: width,
            factor,
            scale,
            rows_at: Some(0),
            ..NormShape::rows(rows)
        };
        let y = place(&to, segments * width, 0);
        run(&gpu, |recorder| norm.run(recorder, &plan, place(&from, stride, 3), y, shape));
        let found = floats(&gpu, &to, rows * segments * width);
        for (n, found) in found.chunks(width).enumerate() {
            let at = order[n / segments] as usize * stride + 3 + n % segments * (width + 2);
            let numbers: Vec<f64> =
                x[at..at + width].iter().map(|x| f64::from(factor) * f64::from(*x)).collect();
            let mean = if kind == NormKind::Layer { numbers.iter().sum::<f64>() / width as f64 } else { 0.0 };
            let square = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            for c in 0..width {
                let mut truth = (numbers[c] - mean) / (square + f64::from(eps)).sqrt() * f64::from(weight[c]);
                if kind == NormKind::Layer {
                    truth += f64::from(bias[c]);
                }
                close(found[c], f64::from(scale) * truth, 3e-6, "norm");
            }
        }
    }
}

#[test]
fn heads_turn_by_their_angles() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(5);
    for (pairing, dim, pairs) in [
        (Pairing::Halves, 10, 5),
        (Pairing::Neighbours, 12, 4),
        (Pairing::Halves, 7, 2),
        (Pairing::Halves, 5, 0),
    ] {
        let (rows, heads, gap) = (3, 2, 4);
        let stride = heads * (dim + gap) + 1;
        let x = random.numbers(rows * stride);
        let angles = random.numbers(rows * pairs);
        let turns: Vec<f32> = angles.iter().flat_map(|angle| [angle.sin(), angle.cos()]).collect();
        let plan = Buffer::of_floats(&gpu, "plan", &[&[9.0], &turns[..]].concat());
        let (from, to) = (Buffer::of_floats(&gpu, "x", &x), Buffer::new(&gpu, "y", 4 * rows * heads * dim));
        let turn = RopeRows {
            rows,
            heads,
            dim,
            pairs,
            turns_at: 1,
            pairing,
            amplitude: 1.25,
            scale: 0.5,
            x_head: dim + gap,
            y_head: dim,
        };
        run(&gpu, |recorder| {
            rotate(recorder, &plan, place(&from, stride, 1), place(&to, heads * dim, 0), turn)
        });
        let found = floats(&gpu, &to, rows * heads * dim);
        for (n, found) in found.chunks(dim).enumerate() {
            let (row, head) = (n / heads, n % heads);
            let mut truth: Vec<f64> = x[row * stride + 1 + head * (dim + gap)..][..dim]
                .iter()
                .map(|x| 0.5 * f64::from(*x))
                .collect();
            for i in 0..pairs {
                let (a, b) = match pairing {
                    Pairing::Halves => (i, i + pairs),
                    Pairing::Neighbours => (2 * i, 2 * i + 1),
                };
                let (sin, cos) = f64::from(angles[row * pairs + i]).sin_cos();
                (truth[a], truth[b]) =
                    (1.25 * (truth[a] * cos - truth[b] * sin), 1.25 * (truth[b] * cos + truth[a] * sin));
            }
            found.iter().zip(truth).for_each(|(found, truth)| close(*found, truth, 1e-6, "rotation"));
        }
    }
}

/// erf by a plain sum of rectangles' midpoints, which are many.
fn erf(x: f64) -> f64 {
    let (steps, sign) = (20_000, x.signum());
    let width = x.abs() / f64::from(steps);
    let sum: f64 = (0..steps).map(|i| (-((f64::from(i) + 0.5) * width).powi(2)).exp()).sum();
    sign * sum * width * std::f64::consts::FRAC_2_SQRT_PI
}

fn truth(of: &Activate, gate: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gate = gate * if of.gated { f64::from(of.gate_scale) } else { 1.0 };
    if let Some(ClampedSwiglu { limit, alpha }) = of.clamp {
        let (limit, alpha) = (f64::from(limit), f64::from(alpha));
        let gate = gate.min(limit);
        return gate * sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1.0);
    }
    let x = gate;
    let act = match of.activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
    };
    if of.gated { act * up } else { act }
}

#[test]
fn activations_are_those_of_the_formulas() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(6);
    let all =
        [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::ReluSquared];
    let clamp = Some(ClampedSwiglu { limit: 2.0, alpha: 1.7 });
    let plain = |activation| Activate { activation, gated: true, gate_scale: 1.5, clamp: None };
    let mut cases: Vec<Activate> = all.map(plain).to_vec();
    cases.push(Activate { gated: false, ..plain(Activation::Gelu) });
    cases.push(Activate { clamp, ..plain(Activation::Silu) });
    for of in cases {
        let (rows, width) = (3, 41);
        let stride = 2 * width + 5;
        let x: Vec<f32> = random.numbers(rows * stride).iter().map(|x| 8.0 * x).collect();
        let (from, to) = (Buffer::of_floats(&gpu, "x", &x), Buffer::new(&gpu, "y", 4 * rows * width));
        run(&gpu, |recorder| of.run(recorder, (rows, width), place(&from, stride, 0), place(&to, width, 0)));
        for (n, found) in floats(&gpu, &to, rows * width).iter().enumerate() {
            let at = n / width * stride + n % width;
            let truth = truth(&of, f64::from(x[at]), f64::from(x[at + width]));
            close(*found, truth, 1e-5 * (1.0 + truth.abs()), of.activation.name());
        }
    }
}

#[test]
fn sums_keep_what_they_are_told_to() {
    let Some(gpu) = gpu() else { return };
    let (from, to) = (
        Buffer::of_floats(&gpu, "x", &[1.0, f32::NAN, 2.0, 9.0]),
        Buffer::of_floats(&gpu, "y", &[10.0, 20.0]),
    );
    let (x, y) = (place(&from, 2, 0), place(&to, 1, 0));
    run(&gpu, |recorder| add(recorder, (2, 1), x, y, (0.5, 3.0)));
    assert_eq!(floats(&gpu, &to, 2), [8.0, 16.0]);
    let nan = Buffer::of_floats(&gpu, "y", &[f32::NAN, 20.0]);
    run(&gpu, |recorder| add(recorder, (2, 1), x, place(&nan, 1, 0), (0.0, 3.0)));
    assert_eq!(floats(&gpu, &nan, 2), [3.0, 6.0]);
}
