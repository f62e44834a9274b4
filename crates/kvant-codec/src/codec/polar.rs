//! `polar{b}`: PolarQuant. After a random rotation, sixteen channels at a time become one radius and fifteen angles:
//! neighbours are taken as points of a plane, their radii again, and so on for four levels.
//!
//! ```text
//! level 1   (x₁, x₂) … (x₁₅, x₁₆)   8 angles on the circle        b bits each
//! level 2   (r₁, r₂) …              4 angles between 0 and π/2    b − 2 bits each
//! level 3                           2
//! level 4                           1, and the radius, stored as a scale is
//! ```
//!
//! Of Gaussian coordinates the angles are independent, those of level 1 uniform and those of level l of density
//! ∝ sin(2ψ)^(2^(l−1) − 1), the sharper the higher the level; each level has the quantiser of least mean square error for
//! its density. b = 4 is what the paper uses: 46 bits and a radius for 16 numbers, 3.875 bits/value; b = 3 takes 2.9375 and
//! b = 5 4.8125. Vectors whose dimension is no multiple of 16 are filled up with zeros, whose angles are stored and counted.
//!
//! Angles are not linear in anything: scores and sums decode. The codec exists for comparison.

use super::family::{Build, Family, Options};
use super::{AngleBook, Compound, KernelReport, PageCodec, dimension};
use crate::error::{BuildError, CodecError, not_finite, size};
use crate::format::{Rotation, ScaleFormat, Side};
use crate::transform::Basis;
use kvant_simd::Tier;
use std::f64::consts::{FRAC_PI_2, TAU};
use std::sync::OnceLock;

/// `polar{b}`.
pub(crate) const POLAR: Family = Family {
    name: "polar",
    bits: Some(3..=5),
    shown: &[3, 4, 5],
    formula: "rotation, then 16 channels as a radius and 15 recursive polar angles: 8 of b bits, 7 of b − 2",
    source: "PolarQuant (Han et al. 2025)",
    defaults: Options { rotation: Rotation::Srht, ..Options::PLAIN },
    accepts: &["rotation", "scales", "page", "seed"],
    build,
};

/// Levels of angles.
const LEVELS: usize = 4;
/// Channels under one radius.
const BLOCK: usize = 1 << LEVELS;

struct PolarCodec {
    side: Side,
    dim: usize,
    tokens: usize,
    /// Of the circle; the other levels have two fewer.
    bits: usize,
    format: ScaleFormat,
    basis: Basis,
    book: &'static AngleBook,
    tier: Tier,
}

fn build(build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    let (options, dim) = (build.options(), build.dim);
    dimension(dim)?;
    options.rotation.serves(dim)?;
    Ok(Box::new(PolarCodec {
        side: build.side,
        dim,
        tokens: options.page.tokens(),
        bits: usize::from(build.spec.bits),
        format: options.scales,
        basis: Basis::new(options.rotation, dim, options.seed),
        book: book(build.spec.bits),
        tier: build.tier,
    }))
}

/// The angles of a width, made once per process.
fn book(bits: u8) -> &'static AngleBook {
    static BOOKS: [OnceLock<AngleBook>; 6] = [const { OnceLock::new() }; 6];
    BOOKS[usize::from(bits)].get_or_init(|| {
        std::array::from_fn(|level| {
            let angles = match level {
                0 => (0..1 << bits).map(|i| TAU * (f64::from(i) + 0.5) / f64::from(1 << bits)).collect(),
                _ => quantiser(1 << (bits - 2), (1 << level) - 1),
            };
            angles.iter().map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
        })
    })
}

/// The angles of least mean square error for the density ∝ sin(2ψ)^power on 0 … π/2: every one the mean of its cell,
/// every boundary half-way between two.
fn quantiser(count: usize, power: i32) -> Vec<f64> {
    let mut angles: Vec<f64> = (0..count).map(|i| FRAC_PI_2 * (i as f64 + 0.5) / count as f64).collect();
    for _ in 0..2000 {
        let middle = |i: usize| 0.5 * (angles[i - 1] + angles[i]);
        let edge = |i: usize| {
            if i == 0 {
                0.0
            } else if i == count {
                FRAC_PI_2
            } else {
                middle(i)
            }
        };
        let next: Vec<f64> = (0..count).map(|i| cell_mean(edge(i), edge(i + 1), power)).collect();
        let moved = next.iter().zip(&angles).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        angles = next;
        if moved < 1e-13 {
            break;
        }
    }
    angles
}

/// The mean of an angle between a and b, by Simpson's rule.
fn cell_mean(a: f64, b: f64, power: i32) -> f64 {
    const PARTS: i32 = 64;
    let (mut mass, mut moment) = (0.0, 0.0);
    for i in 0..=PARTS {
        let angle = a + (b - a) * f64::from(i) / f64::from(PARTS);
        let share = if i == 0 || i == PARTS { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        let density = share * (2.0 * angle).sin().powi(power);
        mass += density;
        moment += density * angle;
    }
    moment / mass
}

impl PolarCodec {
    fn blocks(&self) -> usize {
        self.dim.div_ceil(BLOCK)
    }

    /// Bits of a code of a level.
    fn width(&self, level: usize) -> usize {
        if level == 0 { self.bits } else { self.bits - 2 }
    }

    /// Bits of the angles of a block.
    fn block_bits(&self) -> usize {
        (0..LEVELS).map(|level| (BLOCK >> (level + 1)) * self.width(level)).sum()
    }

    /// Bytes of all radii; the angles follow.
    fn radius_bytes(&self) -> usize {
        self.tokens * self.blocks() * self.format.bytes()
    }

    /// Angles of a block as one word, the first level lowest, and its radius.
    fn angles(&self, block: &[f32]) -> (u128, f64) {
        let mut radii = [0.0f64; BLOCK];
        radii.iter_mut().zip(block).for_each(|(radius, x)| *radius = f64::from(*x));
        let (mut word, mut at) = (0, 0);
        for (level, angles) in self.book.iter().enumerate() {
            for pair in 0..BLOCK >> (level + 1) {
                let (x, y) = (radii[2 * pair], radii[2 * pair + 1]);
                // The nearest angle is the one whose direction the point goes furthest in.
                let along = |[cos, sin]: &[f32; 2]| x * f64::from(*cos) + y * f64::from(*sin);
                let mut best = (0, f64::NEG_INFINITY);
                for (code, angle) in angles.iter().enumerate() {
                    if along(angle) > best.1 {
                        best = (code, along(angle));
                    }
                }
                word |= (best.0 as u128) << at;
                at += self.width(level);
                radii[pair] = x.hypot(y);
            }
        }
        (word, radii[0])
    }

    /// The block of a word and a radius.
    fn block(&self, word: u128, radius: f32) -> [f32; BLOCK] {
        let mut x = [radius; BLOCK];
        let mut end = self.block_bits();
        for (level, angles) in self.book.iter().enumerate().rev() {
            let (count, width) = (BLOCK >> (level + 1), self.width(level));
            let start = end - count * width;
            // From the last pair, so that a radius is read before it is overwritten.
            for pair in (0..count).rev() {
                let code = (word >> (start + pair * width)) as usize & ((1 << width) - 1);
                let ([cos, sin], radius) = (angles[code], x[pair]);
                (x[2 * pair], x[2 * pair + 1]) = (radius * cos, radius * sin);
            }
            end = start;
        }
        x
    }
}

/// `width` bits from bit `at` on, lowest first.
fn read_bits(bytes: &[u8], at: usize, width: usize) -> u128 {
    let bytes = &bytes[at / 8..(at + width).div_ceil(8)];
    let word = bytes.iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
    (word >> (at % 8)) & ((1 << width) - 1)
}

/// Sets `width` bits from bit `at` on, which were zero.
fn write_bits(bytes: &mut [u8], at: usize, width: usize, word: u128) {
    let bytes = &mut bytes[at / 8..(at + width).div_ceil(8)];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte |= ((word << (at % 8)) >> (8 * i)) as u8;
    }
}

impl PageCodec for PolarCodec {
    fn side(&self) -> Side {
        self.side
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn page_tokens(&self) -> usize {
        self.tokens
    }

    fn page_bytes(&self) -> usize {
        // Pages have a multiple of 8 tokens, so no bit is left over.
        self.radius_bytes() + self.tokens * self.blocks() * self.block_bits() / 8
    }

    fn kernels(&self) -> KernelReport {
        KernelReport { encode: "plain", scores: "decode", accumulate: "decode" }
    }

    fn compound(&self) -> Option<Compound<'_>> {
        let (bits, basis) = (self.bits as u8, self.basis.format());
        Some(Compound::Polar { bits, radii: self.format, book: self.book, basis })
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        size("rows", rows.len(), self.tokens * self.dim)?;
        size("page", page.len(), self.page_bytes())?;
        if let Some(error) = not_finite(rows, self.dim) {
            return Err(error);
        }
        let mut rotated = rows.to_vec();
        self.basis.apply(&mut rotated, self.tier)?;
        let (radii, angles) = page.split_at_mut(self.radius_bytes());
        angles.fill(0);
        let blocks = rotated.chunks_exact(self.dim).flat_map(|row| row.chunks(BLOCK));
        for (n, block) in blocks.enumerate() {
            let (word, radius) = self.angles(block);
            if radius.is_nan() || radius > f64::from(self.format.max()) {
                return Err(CodecError::OutOfRange { format: self.format.name() });
            }
            self.format.write(radii, n, radius as f32);
            write_bits(angles, n * self.block_bits(), self.block_bits(), word);
        }
        Ok(())
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        size("rows", rows.len(), self.tokens * self.dim)?;
        let (radii, angles) = page.split_at(self.radius_bytes());
        let blocks = rows.chunks_exact_mut(self.dim).flat_map(|row| row.chunks_mut(BLOCK));
        for (n, block) in blocks.enumerate() {
            let word = read_bits(angles, n * self.block_bits(), self.block_bits());
            block.copy_from_slice(&self.block(word, self.format.read(radii, n))[..block.len()]);
        }
        self.basis.undo(rows, self.tier)
    }
}
