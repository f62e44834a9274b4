//! Trellis pages from `docs/page-format.md`: bit by bit, number by number, in f64; and the search for codes without its lanes.

use super::basis::Affine;
use super::norm;
use crate::case::Case;
use kvant_codec::Side;
use kvant_codec::format::{TRELLIS_TABLES, TrellisFormat, TrellisTable};

pub const TOKENS: usize = 128;

/// The unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// A channel of a page.
#[derive(Clone, Debug)]
pub struct Channel {
    pub table: Option<TrellisTable>,
    pub leak: f64,
    /// The table's unit included.
    pub scale: f64,
    pub zero: f64,
    /// Levels in units, by token; empty without codes.
    pub levels: Vec<f64>,
}

/// A page as it was read, in the codec's basis.
pub struct Page {
    pub channels: Vec<Channel>,
    /// Factors of tokens; ones for keys.
    pub tokens: Vec<f64>,
}

/// Steps of the first tokens, gₜ.
pub fn first_step(leak: f64, t: usize) -> f64 {
    let settled = 1.0 / (1.0 - 0.06 * leak * leak);
    let mut variance = 1.5 / (1.0 - leak * leak);
    for _ in 0..t {
        variance = 1.0 + 0.06 * leak * leak * variance;
    }
    if t < 3 { (variance / settled).sqrt() } else { 1.0 }
}

fn scale(exponent: u8) -> f64 {
    if exponent == 0 { 0.0 } else { 2f64.powf((f64::from(exponent) - 128.0) / 8.0) }
}

fn table(bits: u8) -> Option<TrellisTable> {
    TRELLIS_TABLES.iter().find(|table| table.bits == bits).copied()
}

/// The levels of the channel that is number `c` of its four or sixteen, whose codes begin at `at`.
fn levels(table: &TrellisTable, side: Side, page: &[u8], at: usize, c: usize) -> Vec<f64> {
    let bits = usize::from(table.bits);
    let mut window = u32::from(table.start);
    (0..TOKENS)
        .map(|t| {
            for j in 0..bits {
                let (n, r) = (t / 8, t % 8 * bits + j);
                let byte = match side {
                    Side::Key => 64 * (r / 8) + 4 * n + c,
                    Side::Value => 64 * (n % 4 * bits + r / 8) + 4 * c + n / 4,
                };
                window = (2 * window + u32::from(page[at + byte] >> (7 - r % 8) & 1)) % 256;
            }
            f64::from(table.low[window as usize % 16]) + f64::from(table.high[window as usize / 16])
        })
        .collect()
}

impl Page {
    pub fn read(side: Side, dim: usize, widths: &[u8], page: &[u8]) -> Page {
        match side {
            Side::Key => Page::keys(dim, page),
            Side::Value => Page::values(dim, widths, page),
        }
    }

    fn keys(dim: usize, page: &[u8]) -> Page {
        let quads = dim.div_ceil(4);
        let mut at = quads + 8 * quads;
        let mut channels = Vec::new();
        for q in 0..quads {
            let mut found = table(page[q] % 16);
            let size = |table: &Option<TrellisTable>| table.map_or(0, |table| 64 * usize::from(table.bits));
            if at + size(&found) > page.len() {
                found = None;
            }
            for c in 4 * q..dim.min(4 * q + 4) {
                let scale = scale(page[quads + c]);
                channels.push(Channel {
                    table: found,
                    leak: f64::from(page[q] / 16) / 16.0,
                    scale: scale * found.map_or(0.0, |table| f64::from(table.unit)),
                    zero: scale * f64::from(page[5 * quads + c] as i8) / 2.0,
                    levels: found.map_or(Vec::new(), |table| levels(&table, Side::Key, page, at, c % 4)),
                });
            }
            at += size(&found);
        }
        Page { channels, tokens: vec![1.0; TOKENS] }
    }

    fn values(dim: usize, widths: &[u8], page: &[u8]) -> Page {
        let nibble = |at: usize, n: usize| f64::from(page[at + n / 2] >> (4 * (n % 2)) & 15) - 8.0;
        let rows = dim.div_ceil(16);
        let mut at = 2 + 64 + 8 * rows;
        let mut channels = Vec::new();
        for (r, bits) in widths.iter().enumerate() {
            let found = table(*bits);
            for c in 16 * r..dim.min(16 * r + 16) {
                let unit = found.map_or(0.0, |table| f64::from(table.unit));
                channels.push(Channel {
                    table: found,
                    leak: f64::from(page[1]) / 256.0,
                    scale: scale(page[0]) * 2f64.powf(nibble(66, c) / 4.0) * unit,
                    zero: 0.0,
                    levels: found.map_or(Vec::new(), |table| levels(&table, Side::Value, page, at, c % 16)),
                });
            }
            at += 256 * usize::from(*bits);
        }
        Page { channels, tokens: (0..TOKENS).map(|t| 2f64.powf(nibble(2, t) / 2.0)).collect() }
    }

    /// A channel's numbers: ŷₜ = ρ·ŷₜ₋₁ + fₜ·gₜ·levelₜ, times its scale, plus its zero.
    pub fn numbers(&self, channel: &Channel) -> Vec<f64> {
        let mut y = 0.0;
        (0..TOKENS)
            .map(|t| {
                let level = channel.levels.get(t).copied().unwrap_or(0.0);
                y = channel.leak * y + self.tokens[t] * first_step(channel.leak, t) * level;
                channel.scale * y + channel.zero
            })
            .collect()
    }

    /// All numbers, (tokens, dim).
    pub fn rows(&self) -> Vec<Vec<f64>> {
        let columns: Vec<Vec<f64>> = self.channels.iter().map(|channel| self.numbers(channel)).collect();
        (0..TOKENS).map(|t| columns.iter().map(|column| column[t]).collect()).collect()
    }
}

/// A page of a codec under test, with its basis.
pub struct Reading {
    pub basis: Affine,
    pub page: Page,
}

impl Reading {
    pub fn new(case: &Case, page: &[u8]) -> Option<Reading> {
        let format = case.trellis()?;
        Some(Reading {
            basis: case.trellis_basis(),
            page: Page::read(case.side, case.dim, &format.widths, page),
        })
    }

    /// How far a score may be from q·decode, by token. The query times scales is rounded to bytes of one step; what a token
    /// is off by leaks into the next.
    pub fn score_bounds(&self, q: &[f32], decoded: &[f32]) -> Vec<f64> {
        let moved = self.basis.query(q);
        let product = |c: usize| (moved[c] * self.page.channels[c].scale).abs();
        let dim = moved.len();
        let top = (0..dim).map(product).fold(0.0, f64::max);
        let step = if top > 1e-30 { top / 127.0 } else { 2.0 * top };
        let q: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
        let fixed: f64 =
            self.page.channels.iter().zip(&moved).map(|(channel, q)| (channel.zero * q).abs()).sum();
        let mean: f64 = q.iter().zip(&self.basis.mean).map(|(q, mean)| (q * mean).abs()).sum();
        let mut off = vec![0.0; dim];
        let rows = self.page.rows();
        (0..TOKENS)
            .map(|t| {
                for (c, (off, channel)) in off.iter_mut().zip(&self.page.channels).enumerate() {
                    let level = channel.levels.get(t).map_or(0.0, |level| level.abs());
                    let here = 0.5 * step * level + 16.0 * U * product(c) * (level + 256.0);
                    *off = channel.leak * *off + first_step(channel.leak, t) * here;
                }
                let lengths = norm(&rows[t]) + norm(&wide(&decoded[t * dim..(t + 1) * dim]));
                off.iter().sum::<f64>()
                    + (dim + 32) as f64 * U * (fixed + mean)
                    + 16.0 * U * norm(&q) * (lengths + norm(&self.basis.mean))
            })
            .collect()
    }

    /// How far a sum may be from Σ w·decode, by channel of the codec's basis: weights, scanned backwards and times the factors of
    /// tokens, are rounded to bytes of one step.
    pub fn sum_bounds(&self, weights: &[f32]) -> Vec<f64> {
        let leak = self.page.channels.first().map_or(0.0, |channel| channel.leak);
        let mut carried = (0.0, 0.0);
        let mut folded = vec![(0.0f64, 0.0); TOKENS];
        for t in (0..TOKENS).rev() {
            let factor = self.page.tokens[t] * first_step(leak, t);
            let w = f64::from(weights[t]);
            carried = (carried.0 * leak + w, carried.1 * leak + w.abs());
            folded[t] = (carried.0 * factor, carried.1 * factor);
        }
        let top = folded.iter().map(|(w, _)| w.abs()).fold(0.0, f64::max);
        let step = if top > 1e-30 { top / 127.0 } else { 2.0 * top };
        let rows = self.page.rows();
        let size: f64 = rows.iter().zip(weights).map(|(row, w)| norm(row) * f64::from(w.abs())).sum();
        let mass: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
        let of = |channel: &Channel| {
            let levels = channel.levels.iter().zip(&folded);
            let off =
                levels.map(|(level, (_, w))| 0.5 * step * level.abs() + 64.0 * U * w * (level.abs() + 256.0));
            channel.scale * off.sum::<f64>() + 64.0 * U * (size + mass * norm(&self.basis.mean))
        };
        self.page.channels.iter().map(of).collect()
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// The least cost that survivors of a search have, one channel, code by code.
fn least(table: &TrellisTable, leak: f64, tokens: &[f64], x: &[f64]) -> f64 {
    let states = 256 >> table.bits;
    // A state: what its survivor costs, and what it decodes to.
    let mut survivors = vec![(f64::INFINITY, 0.0); states];
    survivors[usize::from(table.start) % states] = (0.0, 0.0);
    for (t, x) in x.iter().enumerate() {
        let mut next = vec![(f64::INFINITY, 0.0); states];
        for (state, (cost, y)) in survivors.iter().enumerate() {
            for code in 0..1 << table.bits {
                let window = (state << table.bits) + code;
                let level = f64::from(table.low[window % 16]) + f64::from(table.high[window / 16]);
                let y = leak * y + tokens[t] * first_step(leak, t) * level;
                let cost = cost + ((x - y) / tokens[t]).powi(2);
                if cost < next[window % states].0 {
                    next[window % states] = (cost, y);
                }
            }
        }
        survivors = next;
    }
    survivors.iter().fold(f64::INFINITY, |least, (cost, _)| least.min(*cost))
}

/// Checks what a page decodes to, and that its codes are as good as those of a search in f64.
pub fn check(case: &Case, rows: &[f32], page: &[u8], decoded: &[f32]) -> Result<(), String> {
    let Reading { basis, page } = Reading::new(case, page).ok_or("no trellis")?;
    let dim = case.dim;
    let read = page.rows();
    for (t, (y, got)) in read.iter().zip(decoded.chunks_exact(dim)).enumerate() {
        let want = basis.back(y);
        let slack = 4e-6 * (norm(y) + norm(&basis.mean) + norm(&wide(got)));
        if let Some(c) = (0..dim).find(|c| (want[*c] - f64::from(got[*c])).abs() > slack) {
            return Err(format!(
                "token {t}, channel {c}: decoded {:e}, the formula says {:e}",
                got[c], want[c]
            ));
        }
    }
    let moved: Vec<Vec<f64>> = rows.chunks_exact(dim).map(|row| basis.vector(row)).collect();
    // Of many channels a few: the naive search takes its time.
    for c in (0..dim).step_by(dim.div_ceil(16)) {
        let channel = &page.channels[c];
        let Some(table) = channel.table.filter(|_| channel.scale > 0.0) else { continue };
        let x: Vec<f64> = moved.iter().map(|y| (y[c] - channel.zero) / channel.scale).collect();
        let least = least(&table, channel.leak, &page.tokens, &x);
        let numbers = read.iter().map(|y| (y[c] - channel.zero) / channel.scale);
        let squares = numbers.zip(&x).zip(&page.tokens).map(|((y, x), token)| ((x - y) / token).powi(2));
        let cost: f64 = squares.sum();
        // Rotations in f32 make numbers that were large elsewhere uncertain here.
        let large = moved.iter().map(|y| norm(y)).fold(0.0, f64::max) / channel.scale;
        if cost > 1.02 * least + 1.0 + 1e-5 * large * large {
            return Err(format!(
                "channel {c} at {} bits: codes cost {cost}, {least} is possible",
                table.bits
            ));
        }
    }
    Ok(())
}

/// What a format says, for a reader.
pub fn read(format: &TrellisFormat, page: &[u8]) -> Vec<Vec<f64>> {
    Page::read(format.side, format.dim, &format.widths, page).rows()
}
