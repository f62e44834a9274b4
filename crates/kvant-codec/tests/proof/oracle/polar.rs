//! PolarQuant from its description: angles by `atan2`, level by level, each coded as the nearest of its level's angles.

use super::basis::Affine;
use super::norm;
use super::number::Format;
use crate::case::Case;
use kvant_codec::Calibration;
use std::f64::consts::{FRAC_PI_2, TAU};

/// Checks a page and what it decodes to, block by block of sixteen channels.
pub fn check(case: &Case, rows: &[f32], page: &[u8], decoded: &[f32]) -> Result<(), String> {
    let (dim, bits) = (case.dim, usize::from(case.spec.bits));
    let basis = Affine::new(&case.spec, dim, &Calibration::default(), None);
    let (tokens, blocks) = (case.spec.options.page.tokens(), dim.div_ceil(16));
    let format = Format::of(case.spec.options.scales);
    let block_bits = 8 * bits + 7 * (bits - 2);
    let start = 8 * tokens * blocks * format.bytes();
    if page.len() != start / 8 + tokens * blocks * block_bits / 8 {
        return Err(format!("{} bytes", page.len()));
    }
    let bit = |n: usize| usize::from((page[n / 8] >> (n % 8)) & 1);
    let levels: Vec<Vec<f64>> = (0..4).map(|level| angles(level, bits)).collect();
    for (t, row) in rows.chunks_exact(dim).enumerate() {
        let y = basis.vector(row);
        let mut back = Vec::new();
        for b in 0..blocks {
            let place = |e: String| format!("token {t}, block {b}: {e}");
            let block: Vec<f64> = (0..16).map(|i| y.get(16 * b + i).copied().unwrap_or(0.0)).collect();
            let mut at = start + (t * blocks + b) * block_bits;
            let (mut radii, mut codes) = (block.clone(), Vec::new());
            for (level, angles) in levels.iter().enumerate() {
                let width = if level == 0 { bits } else { bits - 2 };
                for pair in radii.chunks_exact(2) {
                    let code = (0..width).map(|k| bit(at + k) << k).sum::<usize>();
                    at += width;
                    check_angle(pair, angles, code, level, norm(&y)).map_err(place)?;
                    codes.push(angles[code]);
                }
                radii = radii.chunks_exact(2).map(norm).collect();
            }
            let radius = format.read(page, t * blocks + b);
            if (radius - radii[0]).abs() > 0.5 * format.ulp(radii[0]) + 2e-6 * norm(&y) {
                return Err(place(format!("radius {radius:e} for {:e}", radii[0])));
            }
            back.extend(unfold(radius, &codes));
        }
        let want = basis.back(&back[..dim]);
        for (c, (want, got)) in want.iter().zip(&decoded[t * dim..]).enumerate() {
            if (want - f64::from(*got)).abs() > 4e-6 * norm(&back) {
                return Err(format!("token {t}, channel {c}: decoded {got:e}, the formula says {want:e}"));
            }
        }
    }
    Ok(())
}

/// Whether no other angle is clearly nearer.
fn check_angle(pair: &[f64], angles: &[f64], code: usize, level: usize, length: f64) -> Result<(), String> {
    let angle = pair[1].atan2(pair[0]);
    let away = |other: f64| match level {
        0 => {
            let turn = (angle - other).rem_euclid(TAU);
            turn.min(TAU - turn)
        }
        _ => (angle - other).abs(),
    };
    let nearest = angles.iter().map(|other| away(*other)).fold(f64::INFINITY, f64::min);
    // The point is known to a few roundings of the whole vector; near the origin that may be any angle.
    let blur = 4e-6 * length / norm(pair).max(f64::MIN_POSITIVE);
    if away(angles[code]) <= nearest + blur + 1e-6 {
        return Ok(());
    }
    Err(format!(
        "level {level}: code {code} is {:e} away from {angle}, another {nearest:e}",
        away(angles[code])
    ))
}

/// Radius and angles, those of the first level first, back to sixteen numbers.
fn unfold(radius: f64, angles: &[f64]) -> Vec<f64> {
    let mut x = vec![radius];
    let mut end = angles.len();
    while x.len() < 16 {
        let start = end - x.len();
        x = x.iter().zip(&angles[start..end]).flat_map(|(r, a)| [r * a.cos(), r * a.sin()]).collect();
        end = start;
    }
    x
}

/// The angles of a level: even on the circle; above, k-means on a fine grid of the density sin(2ψ)^(2^level − 1).
fn angles(level: usize, bits: usize) -> Vec<f64> {
    if level == 0 {
        return (0..1 << bits).map(|i| TAU * (f64::from(i) + 0.5) / f64::from(1 << bits)).collect();
    }
    const GRID: usize = 40_000;
    let count = 1usize << (bits - 2);
    let point = |i: usize| FRAC_PI_2 * (i as f64 + 0.5) / GRID as f64;
    // Cumulative mass and moment, so that a cell is a difference.
    let (mut mass, mut moment) = (vec![0.0], vec![0.0]);
    for i in 0..GRID {
        let density = (2.0 * point(i)).sin().powi((1 << level) - 1);
        mass.push(mass[i] + density);
        moment.push(moment[i] + density * point(i));
    }
    let at = |sums: &[f64], angle: f64| {
        let x = angle / FRAC_PI_2 * GRID as f64;
        let i = (x as usize).min(GRID - 1);
        sums[i] + (x - i as f64) * (sums[i + 1] - sums[i])
    };
    let mut means: Vec<f64> = (1..=count).map(|i| FRAC_PI_2 * i as f64 / (count + 1) as f64).collect();
    for _ in 0..1000 {
        let mut edges = vec![0.0];
        edges.extend(means.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])));
        edges.push(FRAC_PI_2);
        let part = |sums: &[f64], cell: &[f64]| at(sums, cell[1]) - at(sums, cell[0]);
        means = edges.windows(2).map(|cell| part(&moment, cell) / part(&mass, cell)).collect();
    }
    means
}
