//! Products with weights that a file holds as plain numbers, by f32 activations: nothing is packed or copied.
//!
//! A pair of a row and a token is a sum in 16 lanes, lane l over the inputs l, l + 16 …, folded at the end. Tiles
//! compute several pairs side by side to reuse what is loaded, but no pair's additions depend on another's, so here
//! too a number depends on its row and its token alone.

use crate::output::Output;
use kvant_simd::{LANES, Simd, Tier, Work, with_tier};
use std::fmt;
use std::marker::PhantomData;

/// Plain number types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
}

impl Number {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::BF16 => 2,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Number::F32 => "f32",
            Number::F16 => "f16",
            Number::BF16 => "bf16",
        })
    }
}

/// Rows that a task takes.
const TASK_ROWS: usize = 16;

/// Writes the products of `weights`, (rows, columns) little-endian numbers, with `x`, (tokens, columns), to `out`,
/// (tokens, rows), by this tier's instructions.
///
/// # Panics
/// When a buffer is not a whole number of rows, or `out` has another size.
pub fn multiply_dense(
    tier: Tier,
    number: Number,
    weights: &[u8],
    columns: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let row_bytes = columns * number.bytes();
    assert!(row_bytes > 0 && weights.len().is_multiple_of(row_bytes), "weights that are no whole rows");
    assert!(x.len().is_multiple_of(columns), "activations that are no whole rows");
    let (rows, tokens) = (weights.len() / row_bytes, x.len() / columns);
    assert_eq!(out.len(), rows * tokens, "products of {tokens} tokens");
    let kernel = kernel(tier, number);
    let out = Output::new(out);
    kvant_threads::for_each(rows.div_ceil(TASK_ROWS), |task| {
        let first = task * TASK_ROWS;
        let count = TASK_ROWS.min(rows - first);
        let job = DenseJob {
            weights: weights[first * row_bytes..].as_ptr(),
            row_bytes,
            rows: count,
            columns,
            x: x.as_ptr(),
            tokens,
            // SAFETY: every token has a place for every row.
            out: unsafe { out.at(first) },
            stride: rows,
        };
        // SAFETY: kernels come for available tiers only; all rows and tokens are inside their buffers, and no other
        // task writes to these columns of the output.
        unsafe { kernel(job) };
    });
}

#[derive(Clone, Copy)]
struct DenseJob {
    weights: *const u8,
    row_bytes: usize,
    rows: usize,
    columns: usize,
    x: *const f32,
    tokens: usize,
    out: *mut f32,
    stride: usize,
}

type Kernel = unsafe fn(DenseJob);

fn kernel(tier: Tier, number: Number) -> Kernel {
    with_tier!(tier, S => match number {
        Number::F32 => product::<S, F32>,
        Number::F16 => product::<S, F16>,
        Number::BF16 => product::<S, BF16>,
    })
}

/// A number type in memory.
trait Stored: 'static {
    const BYTES: usize;
    /// 16 numbers.
    ///
    /// # Safety
    /// The CPU has the tier and they are readable.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

macro_rules! stored {
    ($($name:ident: $bytes:literal, $load:ident;)*) => {
        $(struct $name;
        impl Stored for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const u8) -> S::F {
                // SAFETY: the caller's contract.
                unsafe { S::$load(p.cast()) }
            }
        })*
    };
}
stored! {
    F32: 4, load;
    F16: 2, load_f16;
    BF16: 2, load_bf16;
}

/// # Safety
/// The CPU has the tier; what the job names is inside its buffers.
unsafe fn product<S: Simd, N: Stored>(job: DenseJob) {
    // SAFETY: the caller's contract; tiles stay inside the rows and tokens.
    unsafe {
        let mut row = 0;
        while row < job.rows {
            let wide = if const { S::REGISTERS >= 32 } { 4 } else { 2 };
            let rows = if job.rows - row >= wide { wide } else { 1 };
            let mut token = 0;
            while token < job.tokens {
                let tokens = if job.tokens - token >= wide { wide } else { 1 };
                let tile = DenseJob {
                    weights: job.weights.add(row * job.row_bytes),
                    x: job.x.add(token * job.columns),
                    out: job.out.add(token * job.stride + row),
                    ..job
                };
                match (rows, tokens) {
                    (4, 4) => S::call(DenseTile::<S, N, 4, 4>::new(tile)),
                    (4, _) => S::call(DenseTile::<S, N, 4, 1>::new(tile)),
                    (2, 2) => S::call(DenseTile::<S, N, 2, 2>::new(tile)),
                    (2, _) => S::call(DenseTile::<S, N, 2, 1>::new(tile)),
                    (_, 4) => S::call(DenseTile::<S, N, 1, 4>::new(tile)),
                    (_, 2) => S::call(DenseTile::<S, N, 1, 2>::new(tile)),
                    _ => S::call(DenseTile::<S, N, 1, 1>::new(tile)),
                }
                token += tokens;
            }
            row += rows;
        }
    }
}

/// `R` rows times `T` tokens.
struct DenseTile<S, N, const R: usize, const T: usize> {
    job: DenseJob,
    kinds: PhantomData<(S, N)>,
}

impl<S, N, const R: usize, const T: usize> DenseTile<S, N, R, T> {
    fn new(job: DenseJob) -> Self {
        Self { job, kinds: PhantomData }
    }
}

impl<S: Simd, N: Stored, const R: usize, const T: usize> Work<S> for DenseTile<S, N, R, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `product`; what is left of a row is copied before it is loaded as 16.
        unsafe {
            let job = self.job;
            let mut sums = [[S::splat(0.0); T]; R];
            let whole = job.columns / LANES * LANES;
            for at in (0..whole).step_by(LANES) {
                let (mut w, mut x) = ([S::splat(0.0); R], [S::splat(0.0); T]);
                for r in 0..R {
                    w[r] = N::load::<S>(job.weights.add(r * job.row_bytes + at * N::BYTES));
                }
                for t in 0..T {
                    x[t] = S::load(job.x.add(t * job.columns + at));
                }
                for r in 0..R {
                    for t in 0..T {
                        sums[r][t] = S::fma(w[r], x[t], sums[r][t]);
                    }
                }
            }
            let rest = job.columns - whole;
            if rest > 0 {
                let (mut padded_w, mut padded_x) = ([0u8; 4 * LANES], [0f32; LANES]);
                for r in 0..R {
                    let from = job.weights.add(r * job.row_bytes + whole * N::BYTES);
                    padded_w.as_mut_ptr().copy_from_nonoverlapping(from, rest * N::BYTES);
                    let w = N::load::<S>(padded_w.as_ptr());
                    for t in 0..T {
                        let from = job.x.add(t * job.columns + whole);
                        padded_x.as_mut_ptr().copy_from_nonoverlapping(from, rest);
                        sums[r][t] = S::fma(w, S::load(padded_x.as_ptr()), sums[r][t]);
                    }
                }
            }
            for t in 0..T {
                for r in 0..R {
                    *job.out.add(t * job.stride + r) = S::reduce_add(sums[r][t]);
                }
            }
        }
    }
}
