//! One tiny vector vocabulary, a file for each instruction set.
//!
//! Every kernel of kvant (codecs, weights, attention) is written once, generic over [`Simd`], and compiled once per tier inside a
//! function that enables the tier's target features. The vocabulary is deliberately *logical*: whatever the
//! machine, a vector is
//!
//! - [`Simd::F`]: 16 × f32,
//! - [`Simd::I`]: 16 × i32,
//! - [`Simd::B`]: 64 × u8 — sixteen *lanes* of four bytes, the shape of an integer dot product.
//!
//! AVX-512 holds each in one register, AVX2 in two, NEON in four, the scalar tier in arrays. What kernels lay out in
//! memory is therefore the same on every machine, and what one tier wrote any other reads.
//!
//! **Invariant:** whatever is stored uses only element-wise IEEE operations (add, mul, fma, div, sqrt, min, max, round),
//! so every tier writes the same bytes. Sums across lanes may differ between tiers in the last bits of f32.
//!
//! The one operation that tiers disagree about is how they like a full byte: x86 multiplies *unsigned* codes
//! with signed queries (`vpdpbusd`), ARM multiplies signed with signed (`sdot`). [`Simd::BYTE_CENTRE`] says what
//! was added to a signed level to make it the byte the dot product sees; codes of seven bits and fewer are the
//! same on both.

#![deny(missing_docs)]

/// Wraps the one-line bodies of a tier's methods: each is inlined into a kernel that enables the tier's target
/// features, and each body is the same `unsafe` for the same reason.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! tier_methods {
    ($(fn $name:ident $(<const $generic:ident: u32>)? ($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $generic: u32>)? ($($arg: $type),*) $(-> $result)? {
                // SAFETY: the contract of `Simd`: the CPU has the tier's features and pointers are valid for the
                // stated lengths. The bodies are pure arithmetic and unaligned loads and stores.
                unsafe { $body }
            }
        )*
    };
}

/// `$body` with `$S` standing for the instructions of a tier: portable ones where this CPU does not have them.
///
/// ```
/// use kvant_simd::{Simd, Tier, with_tier};
/// let registers = with_tier!(Tier::Scalar, S => <S as Simd>::REGISTERS);
/// assert_eq!(registers, 8);
/// ```
#[macro_export]
macro_rules! with_tier {
    ($tier:expr, $S:ident => $body:expr) => {{
        let tier: $crate::Tier = $tier;
        match tier {
            #[cfg(target_arch = "x86_64")]
            $crate::Tier::Avx512 if tier.is_available() => {
                type $S = $crate::Avx512;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::Tier::Avx512Vnni if tier.is_available() => {
                type $S = $crate::Avx512Vnni;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::Tier::Avx2 if tier.is_available() => {
                type $S = $crate::Avx2;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::Tier::Neon if tier.is_available() => {
                type $S = $crate::Neon;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::Tier::NeonBase if tier.is_available() => {
                type $S = $crate::NeonBase;
                $body
            }
            _ => {
                type $S = $crate::Scalar;
                $body
            }
        }
    }};
}

mod amx;
mod math;
mod matrix;
mod scalar;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod tier;

pub use amx::{AMX_VARIABLE, Amx};
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, Avx512By, Avx512Vnni, Lookups, Shuffles, Vbmi};
pub use math::{exp, sigmoid};
#[cfg(target_arch = "aarch64")]
pub use matrix::I8mm;
pub use matrix::{Block, MatrixUnit, OCTET, ROWS, Vectors};
#[cfg(target_arch = "x86_64")]
pub use matrix::{TileShapes, Tiles};
#[cfg(target_arch = "aarch64")]
pub use neon::{ByteProducts, DotProduct, Neon, NeonBase, NeonBy, WideningProduct};
pub use scalar::Scalar;
pub use tier::{TIER_VARIABLE, Tier, TierError};

/// f32 lanes in a logical vector.
pub const LANES: usize = 16;

/// A piece of work that is compiled on its own, with the tier's instructions.
///
/// Everything below `run` must be `#[inline(always)]`, so that it ends up inside the function that enables the target
/// features. Work that is large or used in several places is called through [`Simd::call`] rather than inlined, which
/// keeps functions and compile times small.
pub trait Work<S: Simd> {
    /// What it gives.
    type Output;
    /// # Safety
    /// The CPU has the tier; what else must hold is the implementor's to say.
    unsafe fn run(self) -> Self::Output;
}

/// The operations a tier offers.
///
/// # Safety
/// One contract for all methods: the CPU has the tier; pointers are valid for the stated number of elements and need no
/// alignment.
#[expect(clippy::missing_safety_doc, reason = "one contract for all methods, stated above")]
pub trait Simd: Copy + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 64 × u8.
    type B: Copy;
    /// Four signed bytes, repeated in every lane.
    type Quad: Copy;
    /// A byte table of 32 entries.
    type Table: Copy;
    /// The unit for whole blocks of dot products.
    type Matrix: MatrixUnit<Self>;

    /// What a signed 8-bit level is offset by to become the byte that [`Simd::dot`] reads: 128 or 0.
    const BYTE_CENTRE: i32;
    /// Query heads that share one unpacking of a page: as many as the registers hold.
    const HEADS: usize;
    /// Tiles of 16 tokens that a score kernel keeps in registers for that many heads.
    const TILES: usize;

    /// Logical vectors that the registers hold.
    const REGISTERS: usize;
    /// Whether [`Simd::dot_run`] is quicker than [`Simd::dot`] quad by quad.
    const RUNS: bool = false;

    /// Runs work in a function of its own that enables the tier's target features.
    unsafe fn call<W: Work<Self>>(work: W) -> W::Output;

    // ---- f32 -------------------------------------------------------------------------------------------
    /// x in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// 16 floats.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores 16 floats.
    unsafe fn store(p: *mut f32, x: Self::F);
    /// 16 half floats (IEEE binary16 bits).
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// 16 bfloat16.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// 16 unsigned bytes.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    /// 16 signed bytes.
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// Rounds to binary16 (nearest even) and stores the 16 bit patterns.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    /// a + b.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a − b.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// a · b.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// √a.
    unsafe fn sqrt(a: Self::F) -> Self::F;
    /// a·b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c − a·b, rounded once.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of `a`, which is not negative, and |b|.
    unsafe fn max_abs(a: Self::F, b: Self::F) -> Self::F;
    /// |a|.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// Per lane: `x` where a > b, else `y`.
    unsafe fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Four floats, four times over.
    unsafe fn load4(p: *const f32) -> Self::F;
    /// Every lane moved up by `N`, which is 1, 2, 4 or 8; the last `N` come first.
    unsafe fn rotate_lanes<const N: u32>(x: Self::F) -> Self::F;
    /// The sum of the lanes.
    unsafe fn reduce_add(a: Self::F) -> f32;
    /// The largest lane.
    unsafe fn reduce_max(a: Self::F) -> f32;
    /// The sums of four vectors.
    unsafe fn reduce4_add(a: [Self::F; 4]) -> [f32; 4];
    /// The maxima of four vectors.
    unsafe fn reduce4_max(a: [Self::F; 4]) -> [f32; 4];
    /// Loads 16 rows of 16 floats, `stride` floats apart, and turns rows into lanes: result\[c\] lane r = row r, column c.
    unsafe fn transpose(p: *const f32, stride: usize) -> [Self::F; LANES];

    // ---- i32 -------------------------------------------------------------------------------------------
    /// Zeros.
    unsafe fn izero() -> Self::I;
    /// x in every lane.
    unsafe fn isplat(x: i32) -> Self::I;
    /// 16 integers.
    unsafe fn iload(p: *const i32) -> Self::I;
    /// Stores 16 integers.
    unsafe fn istore(p: *mut i32, x: Self::I);
    /// a + b.
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    /// Adds one in the lanes where a > b.
    unsafe fn inc_where_gt(x: Self::I, a: Self::F, b: Self::F) -> Self::I;
    /// a | b << SHIFT.
    unsafe fn ior_shl<const SHIFT: u32>(a: Self::I, b: Self::I) -> Self::I;
    /// Nearest integer, ties to even; the input is within i32.
    unsafe fn round(a: Self::F) -> Self::I;
    /// As floats.
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// a − ⌊a⌋.
    unsafe fn fraction(a: Self::F) -> Self::F;
    /// a minus the nearest integer, of two the even one.
    unsafe fn residue(a: Self::F) -> Self::F;
    /// Per lane: y · 2^⌊a⌋ where a > b, else zero; where a > b, y and the result are normal numbers.
    unsafe fn power_gt(a: Self::F, b: Self::F, y: Self::F) -> Self::F;
    /// a · 2ⁿ, where a and the result are normal numbers.
    unsafe fn ldexp(a: Self::F, n: Self::I) -> Self::F;
    /// The low byte of each lane.
    unsafe fn store_low_bytes(p: *mut u8, x: Self::I);
    /// 64 integers as signed bytes; all are within −128 … 127.
    unsafe fn narrow(x: [Self::I; 4]) -> Self::B;
    /// 64 bytes as they are.
    unsafe fn bload(p: *const u8) -> Self::B;
    /// Stores 64 bytes.
    unsafe fn bstore(p: *mut i8, x: Self::B);
    /// The sum of the four signed bytes of each lane.
    unsafe fn sum_bytes(x: Self::B) -> Self::F;
    /// Asks for the cache line at `p`, which need not be readable.
    unsafe fn prefetch(p: *const u8);

    /// Sixteen rows of four words: result\[w\] lane r = word w of row r.
    unsafe fn deal_words(p: *const u32) -> [Self::I; 4];
    /// Sixteen lanes of sixteen bytes, four to a vector, bytes into lanes: result\[j\] lane 4·i + k, byte b = vector i, lane
    /// 4·j + b, byte k.
    unsafe fn transpose_bytes(x: [Self::B; 4]) -> [Self::B; 4];

    // ---- packed codes ----------------------------------------------------------------------------------
    /// 64 bytes → the 64 low nibbles and the 64 high nibbles.
    unsafe fn nibbles(p: *const u8) -> (Self::B, Self::B);
    /// 16 bytes → 64 two-bit codes: code 16·l + i sits in byte i, bits 2l and 2l+1.
    unsafe fn crumbs(p: *const u8) -> Self::B;
    /// Adds `value` to the bytes whose bit is set in the 64-bit mask at `p`.
    unsafe fn add_bits(x: Self::B, p: *const u8, value: u8) -> Self::B;
    /// lo + 16·hi per byte; the result is below 128.
    unsafe fn add_high(lo: Self::B, hi: Self::B) -> Self::B;
    /// Zeros.
    unsafe fn bzero() -> Self::B;
    /// 64 stored bytes (level + 128) as the dot product likes them (level + `BYTE_CENTRE`).
    unsafe fn bytes(p: *const u8) -> Self::B;
    /// A table of 32 signed levels, re-centred by `BYTE_CENTRE`.
    unsafe fn table(levels: &[i8; 32]) -> Self::Table;
    /// Looks up codes below 16 (`BITS` ≤ 4) or below 32.
    unsafe fn lookup<const BITS: u32>(t: Self::Table, codes: Self::B) -> Self::B;
    /// Per byte: a, shifted up by `shift`, with the upper bits of b below; `shift` is 1 to 7.
    unsafe fn funnel(a: Self::B, b: Self::B, shift: u32) -> Self::B;
    /// Per byte w: entry w mod 16 of the table's first half plus entry w / 16 of its second, modulo 256.
    unsafe fn lookup_pair(t: Self::Table, w: Self::B) -> Self::B;
    /// Every lane moved up by one; the first has `first` in all its bytes.
    unsafe fn next_lane(x: Self::B, first: u8) -> Self::B;
    /// The bytes of every lane moved up by one; the first of each is `first`.
    unsafe fn next_byte(x: Self::B, first: u8) -> Self::B;
    /// Broadcasts four signed bytes.
    unsafe fn quad(p: *const i8) -> Self::Quad;
    /// acc\[lane\] += Σ₄ codes·quad for codes below 128.
    unsafe fn dot(acc: Self::I, codes: Self::B, q: Self::Quad) -> Self::I;
    /// acc\[lane\] += the same over several quads, which follow one another at `q`, for codes below 2^`BITS`, at most 7. Few bits leave
    /// room to sum products up in 16 bits before they are widened.
    #[inline(always)]
    unsafe fn dot_run<const BITS: u32>(acc: Self::I, codes: &[Self::B], q: *const i8) -> Self::I {
        let mut sum = acc;
        for (j, codes) in codes.iter().enumerate() {
            // SAFETY: the caller's contract.
            sum = unsafe { Self::dot(sum, *codes, Self::quad(q.add(4 * j))) };
        }
        sum
    }
    /// The same as [`Simd::dot`] for bytes of the full range, as made by [`Simd::bytes`] and [`Simd::lookup`].
    unsafe fn dot_full(acc: Self::I, codes: Self::B, q: Self::Quad) -> Self::I;
}
