//! Rotating a batch of vectors: butterfly against a dense matrix product, by fused multiply-adds and by AMX tiles.
//!
//! The published work rotates by a matrix product on Apple's matrix unit. Here both read and write f32 rows; the matrix
//! of the tile variant is bf16, and so is the copy of the rows that it makes.

use crate::rows::gaussian;
use crate::{Options, time};
use kvant_codec::{Basis, Dense, Rotation, Tier};
use std::hint::black_box;
use std::time::Duration;

const BATCHES: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];

/// Prints a table for every dimension.
pub fn run(options: &Options) {
    let tier = options.tiers().last().unwrap_or(Tier::Scalar);
    for dim in &options.dims {
        println!(
            "rotate: d={dim}, ns per vector on {tier} (best of {}); AMX in bf16 tiles",
            20 * options.repeats
        );
        println!(
            "{:<8} {:>10} {:>10} {:>12} {:>10}  fastest",
            "batch", "SRHT", "SRFT", "dense FMA", "dense AMX"
        );
        let (srht, srft) = (Basis::new(Rotation::Srht, *dim, 0), Basis::new(Rotation::Srft, *dim, 0));
        let matrix = matrix(&srht, tier);
        let transposed = (0..dim * dim).map(|n| matrix[(n % dim) * dim + n / dim]).collect();
        let dense = Basis::dense(Dense::new(*dim, matrix.clone(), transposed).expect("a rotation"));
        let tiles = amx::Matrix::new(*dim, &matrix);
        for batch in BATCHES {
            let rows = gaussian(batch * dim, 7);
            let by_basis = |basis: &Basis| {
                best(options.repeats, &rows, |rows| basis.apply(rows, tier).expect("whole vectors"))
            };
            let mut times =
                vec![("SRHT", by_basis(&srht)), ("SRFT", by_basis(&srft)), ("FMA", by_basis(&dense))];
            if let Some(tiles) = &tiles {
                let mut out = vec![0.0; rows.len()];
                times.push(("AMX", best(options.repeats, &rows, |rows| tiles.multiply(rows, &mut out))));
            }
            let fastest = times.iter().min_by_key(|(_, time)| *time).map_or("", |(name, _)| name);
            let ns = |i: usize| {
                times.get(i).map_or("–".to_owned(), |(_, time)| {
                    format!("{:.1}", time.as_secs_f64() * 1e9 / batch as f64)
                })
            };
            println!("{batch:<8} {:>10} {:>10} {:>12} {:>10}  {fastest}", ns(0), ns(1), ns(2), ns(3));
        }
        println!();
    }
}

/// The matrix of a rotation, row-major.
fn matrix(basis: &Basis, tier: Tier) -> Vec<f32> {
    let dim = basis.dim();
    let mut unit = vec![0.0; dim * dim];
    for i in 0..dim {
        unit[i * dim + i] = 1.0;
    }
    basis.apply(&mut unit, tier).expect("whole vectors");
    (0..dim * dim).map(|n| unit[(n % dim) * dim + n / dim]).collect()
}

fn best(repeats: usize, rows: &[f32], mut work: impl FnMut(&mut [f32])) -> Duration {
    let mut copy = rows.to_vec();
    let mut best = Duration::MAX;
    for _ in 0..20 * repeats {
        copy.copy_from_slice(rows);
        best = best.min(time(|| work(black_box(&mut copy))));
    }
    best
}

/// bf16 matrix products on Intel's tiles, for this comparison only.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;

    /// A d×d matrix in tile order.
    pub struct Matrix {
        dim: usize,
        /// For every 16 outputs and 32 inputs: 16 rows of 16 pairs of inputs.
        tiles: Vec<u16>,
    }

    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// To nearest, ties to even, for finite numbers; plain integer arithmetic that the compiler vectorises.
    fn bf16(x: f32) -> u16 {
        let bits = x.to_bits();
        ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
    }

    impl Matrix {
        /// Row-major input; `None` without tiles, or when the dimension is no multiple of 32.
        pub fn new(dim: usize, matrix: &[f32]) -> Option<Matrix> {
            if !dim.is_multiple_of(32) || !permitted() {
                return None;
            }
            let mut tiles = Vec::with_capacity(dim * dim);
            for n in (0..dim).step_by(16) {
                for k in (0..dim).step_by(32) {
                    for pair in 0..16 {
                        for column in 0..16 {
                            let at = (n + column) * dim + k + 2 * pair;
                            tiles.extend([bf16(matrix[at]), bf16(matrix[at + 1])]);
                        }
                    }
                }
            }
            Some(Matrix { dim, tiles })
        }

        /// `out` = M·row for every row.
        pub fn multiply(&self, rows: &[f32], out: &mut [f32]) {
            let (dim, count) = (self.dim, rows.len() / self.dim);
            // Sixteen rows at a time, so that the copy stays in the nearest cache.
            let mut halves = vec![0u16; 16 * dim];
            for first in (0..count).step_by(16) {
                let height = 16.min(count - first);
                for (half, x) in halves.iter_mut().zip(&rows[first * dim..(first + height) * dim]) {
                    *half = bf16(*x);
                }
                let mut config =
                    Config { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
                config.bytes[..3].fill(64);
                config.rows[..3].copy_from_slice(&[height as u8, height as u8, 16]);
                // SAFETY: the configuration covers `height`×16 floats (0), `height`×32 inputs (1) and a tile of the
                // matrix (2), all of which exist.
                unsafe {
                    asm!("ldtilecfg [{}]", in(reg) &config);
                    for n in 0..dim / 16 {
                        asm!("tilezero tmm0");
                        for k in 0..dim / 32 {
                            let a = halves.as_ptr().add(32 * k);
                            let b = self.tiles.as_ptr().add((n * (dim / 32) + k) * 512);
                            asm!("tileloadd tmm1, [{a} + {stride}]", "tileloadd tmm2, [{b} + {line}]",
                                "tdpbf16ps tmm0, tmm1, tmm2",
                                a = in(reg) a, stride = in(reg) 2 * dim, b = in(reg) b, line = in(reg) 64usize);
                        }
                        asm!("tilestored [{out} + {stride}], tmm0",
                            out = in(reg) out.as_mut_ptr().add(first * dim + 16 * n), stride = in(reg) 4 * dim);
                    }
                    asm!("tilerelease");
                }
            }
        }
    }

    /// Whether the CPU has bf16 tiles and the kernel lets this process use them.
    fn permitted() -> bool {
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        if leaf.edx & (1 << 22) == 0 || leaf.edx & (1 << 24) == 0 {
            return false;
        }
        const ARCH_PRCTL: i64 = 158;
        const REQUEST_PERMISSION: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let result: i64;
        // SAFETY: a system call that only changes which registers this process may use.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
                out("rcx") _, out("r11") _);
        }
        result == 0
    }
}

/// Nothing elsewhere.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod amx {
    pub enum Matrix {}

    impl Matrix {
        pub fn new(_: usize, _: &[f32]) -> Option<Matrix> {
            None
        }

        pub fn multiply(&self, _: &[f32], _: &mut [f32]) {
            match *self {}
        }
    }
}
