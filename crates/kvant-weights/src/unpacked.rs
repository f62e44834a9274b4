//! Products with weights of any type, unpacked to f32 as they are needed, by f32 activations: the reference, and what
//! evaluation runs on.
//!
//! Rows are unpacked a few panels at a time and turned so that sixteen of them fill the lanes of a vector; a tile of
//! tokens then needs one load per input for all of its tokens, and no sum across lanes. A pair of a row and a token is
//! a chain of fused additions over each [`CHUNK_LEN`] of inputs, and the stretches are added up in order.
//!
//! **Invariant:** that order is the same for every tile and every tier, so a number depends on its row and its token
//! alone, bit for bit.

use crate::output::Output;
use kvant_simd::{LANES, Simd, Tier, Work, with_tier};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Inputs that are summed up in one chain: a tile's share of panels and tokens stays in the nearest cache.
const CHUNK_LEN: usize = 256;

/// Panels that a task unpacks at most: more reuse of the tokens, less room in the cache.
const TASK_PANELS: usize = 4;

/// Tasks that every thread should get, if there are rows enough.
const TASKS_PER_THREAD: usize = 2;

/// Writes the products of a matrix, (rows, columns), with `x`, (tokens, columns), to `out`, (tokens, rows). `unpack`
/// writes the numbers of a row.
///
/// # Panics
/// When `x` is not a whole number of rows, or `out` has another size.
pub fn multiply_unpacked(
    tier: Tier,
    (rows, columns): (usize, usize),
    unpack: impl Fn(usize, &mut [f32]) + Sync,
    x: &[f32],
    out: &mut [f32],
) {
    assert!(columns > 0 && x.len().is_multiple_of(columns), "activations that are no whole rows");
    let tokens = x.len() / columns;
    assert_eq!(out.len(), rows * tokens, "products of {tokens} tokens");
    let (turn, multiply) = with_tier!(tier, S => (turn_on::<S> as Transpose, multiply_on::<S> as Multiply));
    let panels = rows.div_ceil(LANES);
    let wanted = TASKS_PER_THREAD * kvant_threads::threads();
    let share = (panels / wanted.max(1)).clamp(1, TASK_PANELS);
    let out = Output::new(out);
    thread_local!(static BUFFERS: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) });
    kvant_threads::for_each(panels.div_ceil(share), |task| {
        let first = task * share * LANES;
        let count = (share * LANES).min(rows - first);
        BUFFERS.with_borrow_mut(|(unpacked, turned)| {
            unpacked.resize(LANES * columns, 0.0); // (16, columns)
            turned.resize(share * LANES * columns, 0.0); // (panels, columns, 16)
            for (panel, turned) in turned.chunks_exact_mut(LANES * columns).enumerate() {
                let own = count.saturating_sub(panel * LANES).min(LANES);
                for (lane, row) in unpacked.chunks_exact_mut(columns).take(own).enumerate() {
                    unpack(first + panel * LANES + lane, row);
                }
                unpacked[own * columns..].fill(0.0);
                // SAFETY: both buffers have 16 rows of `columns`; tables come for available tiers only.
                unsafe { turn(unpacked, columns, turned) };
            }
            let job = UnpackedJob {
                panels: turned.as_ptr(),
                rows: count,
                columns,
                x: x.as_ptr(),
                tokens,
                // SAFETY: every token has a place for every row.
                out: unsafe { out.at(first) },
                stride: rows,
            };
            // SAFETY: panels hold all rows of the task, whose columns of the output no other task writes to.
            unsafe { multiply(job) };
        });
    });
}

type Transpose = unsafe fn(&[f32], usize, &mut [f32]);
type Multiply = unsafe fn(UnpackedJob);

/// What a task multiplies.
#[derive(Clone, Copy)]
struct UnpackedJob {
    /// (panels, columns, 16): rows past the last are zeros.
    panels: *const f32,
    rows: usize,
    columns: usize,
    x: *const f32,
    tokens: usize,
    out: *mut f32,
    stride: usize,
}

/// (16, columns) to (columns, 16).
///
/// # Safety
/// The CPU has the tier; both hold 16 · columns numbers.
unsafe fn turn_on<S: Simd>(rows: &[f32], columns: usize, turned: &mut [f32]) {
    // SAFETY: the caller's contract.
    unsafe { S::call(TurnPanel::<S> { rows, columns, turned, simd: PhantomData }) }
}

struct TurnPanel<'a, S> {
    rows: &'a [f32],
    columns: usize,
    turned: &'a mut [f32],
    simd: PhantomData<S>,
}

impl<S: Simd> Work<S> for TurnPanel<'_, S> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let TurnPanel { rows, columns, turned, .. } = self;
        let whole = columns / LANES * LANES;
        for c in (0..whole).step_by(LANES) {
            // SAFETY: sixteen columns from c on are inside both.
            unsafe {
                let block = S::transpose(rows.as_ptr().add(c), columns);
                for (i, column) in block.into_iter().enumerate() {
                    S::store(turned.as_mut_ptr().add(LANES * (c + i)), column);
                }
            }
        }
        for c in whole..columns {
            for lane in 0..LANES {
                turned[LANES * c + lane] = rows[lane * columns + c];
            }
        }
    }
}

/// # Safety
/// The CPU has the tier; what the job names is inside its buffers.
unsafe fn multiply_on<S: Simd>(job: UnpackedJob) {
    // As many sums as the registers hold, with room for what is multiplied.
    let most = if const { S::REGISTERS >= 32 } { 12 } else { 4 };
    let panels = job.rows.div_ceil(LANES);
    for first in (0..job.columns).step_by(CHUNK_LEN) {
        let mut token = 0;
        while token < job.tokens {
            let tokens = match job.tokens - token {
                left if left >= most => most,
                4.. => 4,
                _ => 1,
            };
            let mut panel = 0;
            while panel < panels {
                let tile = SumsTile { job, first, token, panel };
                // SAFETY: tiles stay inside the panels and tokens of the job.
                panel += unsafe {
                    match (panels - panel, tokens) {
                        (2.., 12) => S::call(Sums::<S, 2, 12>::new(tile)),
                        (_, 12) => S::call(Sums::<S, 1, 12>::new(tile)),
                        (_, 4) => S::call(Sums::<S, 1, 4>::new(tile)),
                        (4.., _) => S::call(Sums::<S, 4, 1>::new(tile)),
                        _ => S::call(Sums::<S, 1, 1>::new(tile)),
                    }
                };
            }
            token += tokens;
        }
    }
}

/// Where a tile of sums stands.
#[derive(Clone, Copy)]
struct SumsTile {
    job: UnpackedJob,
    /// First input of the stretch.
    first: usize,
    token: usize,
    panel: usize,
}

/// `P` panels times `T` tokens over one stretch of inputs. Gives `P`.
struct Sums<S, const P: usize, const T: usize> {
    tile: SumsTile,
    simd: PhantomData<S>,
}

impl<S, const P: usize, const T: usize> Sums<S, P, T> {
    fn new(tile: SumsTile) -> Self {
        Self { tile, simd: PhantomData }
    }
}

impl<S: Simd, const P: usize, const T: usize> Work<S> for Sums<S, P, T> {
    type Output = usize;

    #[inline(always)]
    unsafe fn run(self) -> usize {
        let SumsTile { job, first, token, panel } = self.tile;
        let stretch = CHUNK_LEN.min(job.columns - first);
        // SAFETY: the contract of `multiply_on`.
        unsafe {
            let mut sums = [[S::splat(0.0); T]; P];
            let weights = job.panels.add((panel * job.columns + first) * LANES);
            let x = job.x.add(token * job.columns + first);
            for i in 0..stretch {
                for p in 0..P {
                    let w = S::load(weights.add((p * job.columns + i) * LANES));
                    for t in 0..T {
                        sums[p][t] = S::fma(w, S::splat(*x.add(t * job.columns + i)), sums[p][t]);
                    }
                }
            }
            for p in 0..P {
                let row = (panel + p) * LANES;
                for t in 0..T {
                    let at = job.out.add((token + t) * job.stride + row);
                    put::<S>(sums[p][t], at, LANES.min(job.rows - row), first > 0);
                }
            }
        }
        P
    }
}

/// Stores `count` sums, or adds them to what is there.
///
/// # Safety
/// The CPU has the tier; `at` has room for `count`.
#[inline(always)]
unsafe fn put<S: Simd>(sums: S::F, at: *mut f32, count: usize, onto: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        if count == LANES {
            S::store(at, if onto { S::add(S::load(at), sums) } else { sums });
        } else {
            let mut few = [0.0; LANES];
            S::store(few.as_mut_ptr(), sums);
            for (i, sum) in few.into_iter().take(count).enumerate() {
                *at.add(i) = if onto { *at.add(i) + sum } else { sum };
            }
        }
    }
}
