//! Products of whole blocks of bytes, by the unit that a processor may have for them.
//!
//! A block is sixteen rows of signed bytes times sixteen lanes of codes, over any number of octets:
//!
//! ```text
//! sums[tile][row][lane] = Σ_k rows[row][k] · codes[tile][k][lane]      k < 8 · octets
//! ```
//!
//! in 32-bit integers, which is what [`Simd::dot_full`] adds up lane by lane. **Invariant:** integers are exact, so a row
//! gets the same sums from the unit as from vectors, whatever else is in the block.

#[cfg(target_arch = "aarch64")]
mod i8mm;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vectors;

#[cfg(target_arch = "aarch64")]
pub use i8mm::I8mm;
#[cfg(target_arch = "x86_64")]
pub use tiles::{TileShapes, Tiles};
pub use vectors::Vectors;

use crate::Simd;

/// Rows of a block.
pub const ROWS: usize = 16;

/// Bytes of eight codes for each of sixteen lanes.
pub const OCTET: usize = 128;

/// Sixteen rows times some tiles of sixteen lanes.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// [`ROWS`] rows of 8 · octets signed bytes.
    pub rows: *const i8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// (tiles, octets, [`OCTET`]), as [`MatrixUnit::keep`] wrote them.
    pub codes: *const u8,
    /// Octets of a row: as many as were announced to [`MatrixUnit::begin`].
    pub octets: usize,
    /// Tiles of sixteen lanes.
    pub tiles: usize,
    /// (tiles, [`ROWS`], 16).
    pub sums: *mut i32,
}

/// A unit that multiplies blocks, and how it likes its codes.
///
/// # Safety
/// One contract for all methods: the CPU has the tier, and the unit is there; pointers are valid for what is stated and
/// need no alignment.
#[expect(clippy::missing_safety_doc, reason = "one contract for all methods, stated above")]
pub trait MatrixUnit<S: Simd> {
    /// For reports.
    const NAME: &str;

    /// Whether this machine has the unit, and may use it.
    fn is_there() -> bool;

    /// Makes this thread's unit ready for blocks of so many octets, until [`MatrixUnit::end`].
    unsafe fn begin(octets: usize);

    /// Gives the unit back.
    unsafe fn end();

    /// Writes two vectors of codes, as [`Simd::dot_full`] would read them, to the [`OCTET`] bytes at `at`: of every lane
    /// the first four and the second four of an octet.
    unsafe fn keep(at: *mut u8, first: S::B, second: S::B);

    /// Both vectors, as they were given to [`MatrixUnit::keep`]. Neither of the two needs the unit, only the tier.
    unsafe fn kept(at: *const u8) -> (S::B, S::B);

    /// Writes the sums of a block.
    unsafe fn multiply(block: &Block);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LANES, Tier, Work};
    use std::marker::PhantomData;

    struct Trial<'a, S, U> {
        rows: &'a [i8],
        codes: &'a [u8],
        octets: usize,
        tiles: usize,
        unit: PhantomData<(S, U)>,
    }

    impl<S: Simd, U: MatrixUnit<S>> Work<S> for Trial<'_, S, U> {
        type Output = Vec<i32>;

        unsafe fn run(self) -> Vec<i32> {
            let mut kept = vec![0; self.codes.len()];
            let mut sums = vec![-1; self.tiles * ROWS * LANES];
            // SAFETY: the caller has asked whether the unit is there; the buffers have the sizes of the block.
            unsafe {
                U::begin(self.octets);
                for (from, to) in self.codes.chunks_exact(OCTET).zip(kept.chunks_exact_mut(OCTET)) {
                    U::keep(to.as_mut_ptr(), S::bytes(from.as_ptr()), S::bytes(from.as_ptr().add(OCTET / 2)));
                    let (first, second) = U::kept(to.as_ptr());
                    for (i, again) in [first, second].into_iter().enumerate() {
                        let (mut got, mut want) = ([0i8; OCTET / 2], [0i8; OCTET / 2]);
                        S::bstore(got.as_mut_ptr(), again);
                        S::bstore(want.as_mut_ptr(), S::bytes(from.as_ptr().add(i * OCTET / 2)));
                        assert_eq!(got, want, "{}", U::NAME);
                    }
                }
                U::multiply(&Block {
                    rows: self.rows.as_ptr(),
                    stride: self.rows.len() / ROWS,
                    codes: kept.as_ptr(),
                    octets: self.octets,
                    tiles: self.tiles,
                    sums: sums.as_mut_ptr(),
                });
                U::end();
            }
            sums
        }
    }

    /// By the definition.
    fn naive<S: Simd>(rows: &[i8], codes: &[u8], octets: usize, tiles: usize) -> Vec<i32> {
        let stride = rows.len() / ROWS;
        let mut sums = vec![0; tiles * ROWS * LANES];
        for (at, sum) in sums.iter_mut().enumerate() {
            let (tile, row, lane) = (at / (ROWS * LANES), at / LANES % ROWS, at % LANES);
            for k in 0..8 * octets {
                let code = codes[((tile * octets + k / 8) * 2 + k / 4 % 2) * OCTET / 2 + 4 * lane + k % 4];
                *sum += i32::from(rows[row * stride + k]) * (i32::from(code) - 128 + S::BYTE_CENTRE);
            }
        }
        sums
    }

    #[test]
    fn blocks_have_the_sums_of_the_definition() {
        let mut state = 7u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for octets in [1, 3, 4, 7, 8, 9, 16, 23] {
            for tiles in [1, 2, 3, 4, 5, 8] {
                let rows: Vec<i8> = (0..ROWS * (8 * octets + 5)).map(|_| byte() as i8).collect();
                let codes: Vec<u8> = (0..tiles * octets * OCTET).map(|_| byte()).collect();
                for tier in Tier::available() {
                    with_tier!(tier, S => {
                        let want = naive::<S>(&rows, &codes, octets, tiles);
                        let (rows, codes) = (&rows[..], &codes[..]);
                        // SAFETY: the tier is available.
                        let got = unsafe { S::call(Trial::<S, Vectors> { rows, codes, octets, tiles, unit: PhantomData }) };
                        assert_eq!(got, want, "{tier} by vectors, {octets} octets, {tiles} tiles");
                        if <<S as Simd>::Matrix as MatrixUnit<S>>::is_there() {
                            let trial = Trial::<S, <S as Simd>::Matrix> { rows, codes, octets, tiles, unit: PhantomData };
                            // SAFETY: the tier is available, and its unit is there.
                            assert_eq!(unsafe { S::call(trial) }, want, "{tier}, {octets} octets, {tiles} tiles");
                        }
                    });
                }
            }
        }
    }
}
