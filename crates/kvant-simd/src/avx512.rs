//! AVX-512 with VNNI, with VBMI and without: one register per logical vector.
//!
//! VBMI looks bytes up in tables of any register. Processors without it (Cascade Lake, Cooper Lake) shuffle within 128 bits, which
//! takes two instructions more where codes have five bits. Everything else is shared: both tiers give the same bits.

use super::{LANES, MatrixUnit, Simd, Vectors, Work};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// AVX-512 that looks bytes up by `L`.
#[derive(Clone, Copy)]
pub struct Avx512By<L>(PhantomData<L>);

/// Ice Lake, Sapphire Rapids, Zen 4 and later.
pub type Avx512 = Avx512By<Vbmi>;

/// Cascade Lake and Cooper Lake.
pub type Avx512Vnni = Avx512By<Shuffles>;

/// VBMI: tables of 64 bytes.
#[derive(Clone, Copy)]
pub struct Vbmi;

/// AVX-512 BW: tables of 16 bytes.
#[derive(Clone, Copy)]
pub struct Shuffles;

/// How bytes are looked up, and the functions that do it.
#[expect(clippy::missing_safety_doc, reason = "the contract of `Simd`")]
pub trait Lookups: Copy + 'static {
    /// The unit for whole blocks of dot products.
    type Matrix: MatrixUnit<Avx512By<Self>>;
    /// [`Simd::call`].
    unsafe fn call<W: Work<Avx512By<Self>>>(work: W) -> W::Output;
    /// [`Simd::lookup`].
    unsafe fn lookup<const BITS: u32>(t: __m512i, codes: __m512i) -> __m512i;
    /// [`Simd::lookup_pair`].
    unsafe fn lookup_pair(t: __m512i, w: __m512i) -> __m512i;
}

impl Lookups for Vbmi {
    type Matrix = crate::Tiles;

    unsafe fn call<W: Work<Avx512>>(work: W) -> W::Output {
        /// # Safety
        /// The CPU has the features.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
        #[inline(never)]
        unsafe fn with_features<W: Work<Avx512>>(work: W) -> W::Output {
            // SAFETY: the caller's contract.
            unsafe { work.run() }
        }
        // SAFETY: the contract of `Simd`: the CPU has these features.
        unsafe { with_features(work) }
    }

    tier_methods! {
        fn lookup<const BITS: u32>(t: __m512i, codes: __m512i) -> __m512i { _mm512_permutexvar_epi8(codes, t) }
        fn lookup_pair(t: __m512i, w: __m512i) -> __m512i {
            // With sixteen entries four times over, the upper bits of an index have no say and need no mask.
            let (low, high) = halves(t);
            _mm512_add_epi8(_mm512_permutexvar_epi8(w, low), _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(w), high))
        }
    }
}

impl Lookups for Shuffles {
    type Matrix = Vectors;

    unsafe fn call<W: Work<Avx512Vnni>>(work: W) -> W::Output {
        /// # Safety
        /// The CPU has the features.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        #[inline(never)]
        unsafe fn with_features<W: Work<Avx512Vnni>>(work: W) -> W::Output {
            // SAFETY: the caller's contract.
            unsafe { work.run() }
        }
        // SAFETY: the contract of `Simd`: the CPU has these features.
        unsafe { with_features(work) }
    }

    tier_methods! {
        fn lookup<const BITS: u32>(t: __m512i, codes: __m512i) -> __m512i {
            let (low, high) = halves(t);
            let found = _mm512_shuffle_epi8(low, codes);
            if BITS <= 4 {
                return found;
            }
            let upper = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(16));
            _mm512_mask_shuffle_epi8(found, upper, high, codes)
        }
        fn lookup_pair(t: __m512i, w: __m512i) -> __m512i {
            let ((low, high), mask) = (halves(t), _mm512_set1_epi8(15));
            let first = _mm512_shuffle_epi8(low, _mm512_and_si512(w, mask));
            let second = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi16::<4>(w), mask));
            _mm512_add_epi8(first, second)
        }
    }
}

/// Both halves of a table of 32 bytes, each four times over.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn halves(t: __m512i) -> (__m512i, __m512i) {
    // SAFETY: the caller's contract.
    unsafe { (_mm512_shuffle_i32x4::<0x00>(t, t), _mm512_shuffle_i32x4::<0x55>(t, t)) }
}

/// Four horizontal reductions for the price of two: halves and quarters are folded pairwise, so that each quarter of one
/// register ends up with one vector's four partial results, and a 4×4 transpose finishes all four.
macro_rules! reduce4 {
    ($a:ident, $wide:ident) => {{
        let ab =
            $wide(_mm512_shuffle_f32x4::<0x44>($a[0], $a[1]), _mm512_shuffle_f32x4::<0xEE>($a[0], $a[1]));
        let cd =
            $wide(_mm512_shuffle_f32x4::<0x44>($a[2], $a[3]), _mm512_shuffle_f32x4::<0xEE>($a[2], $a[3]));
        let abcd = $wide(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
        let abcd = $wide(abcd, _mm512_permute_ps::<0b01_00_11_10>(abcd));
        let abcd = $wide(abcd, _mm512_permute_ps::<0b10_11_00_01>(abcd));
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
        let mut result = [0.0; 4];
        _mm_storeu_ps(result.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, abcd)));
        result
    }};
}

impl<L: Lookups> Simd for Avx512By<L> {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type Quad = __m512i;
    type Table = __m512i;
    type Matrix = L::Matrix;

    const BYTE_CENTRE: i32 = 128;
    const HEADS: usize = 4;
    const TILES: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn call<W: Work<Self>>(work: W) -> W::Output {
        // SAFETY: the contract of `Simd`.
        unsafe { L::call(work) }
    }

    tier_methods! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        fn store(p: *mut f32, x: __m512) { _mm512_storeu_ps(p, x) }
        fn load_f16(p: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn load_bf16(p: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
        fn load_u8(p: *const u8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
        }
        fn load_i8(p: *const i8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
        }
        fn store_f16(p: *mut u16, x: __m512) {
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
            _mm256_storeu_si256(p.cast(), halves);
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn sqrt(a: __m512) -> __m512 { _mm512_sqrt_ps(a) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fnmadd_ps(a, b, c) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        // Of the larger magnitude (the low bits, 11), without its sign (the high bits, 10).
        fn max_abs(a: __m512, b: __m512) -> __m512 { _mm512_range_ps::<0b1011>(a, b) }
        fn abs(a: __m512) -> __m512 { _mm512_abs_ps(a) }
        fn select_gt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x) }
        fn load4(p: *const f32) -> __m512 { _mm512_broadcast_f32x4(_mm_loadu_ps(p)) }
        fn rotate_lanes<const N: u32>(x: __m512) -> __m512 {
            let x = _mm512_castps_si512(x);
            _mm512_castsi512_ps(match N {
                1 => _mm512_alignr_epi32::<15>(x, x),
                2 => _mm512_alignr_epi32::<14>(x, x),
                4 => _mm512_alignr_epi32::<12>(x, x),
                _ => _mm512_alignr_epi32::<8>(x, x),
            })
        }
        fn reduce_add(a: __m512) -> f32 { _mm512_reduce_add_ps(a) }
        fn reduce_max(a: __m512) -> f32 { _mm512_reduce_max_ps(a) }
        fn reduce4_add(a: [__m512; 4]) -> [f32; 4] { reduce4!(a, _mm512_add_ps) }
        fn reduce4_max(a: [__m512; 4]) -> [f32; 4] { reduce4!(a, _mm512_max_ps) }
        fn transpose(p: *const f32, stride: usize) -> [__m512; LANES] {
            let mut r = [_mm512_setzero_ps(); LANES];
            // Row i holds 128-bit quarters; gather quarter k of rows {i, i+4, i+8, i+12} into one register, so
            // that afterwards only 4×4 transposes inside quarters are left.
            let mut q = [_mm512_setzero_ps(); LANES];
            for i in 0..LANES {
                q[i] = _mm512_loadu_ps(p.add(i * stride));
            }
            for i in 0..4 {
                let (a, b, c, d) = (q[i], q[i + 4], q[i + 8], q[i + 12]);
                let ab_lo = _mm512_shuffle_f32x4::<0x44>(a, b);
                let ab_hi = _mm512_shuffle_f32x4::<0xEE>(a, b);
                let cd_lo = _mm512_shuffle_f32x4::<0x44>(c, d);
                let cd_hi = _mm512_shuffle_f32x4::<0xEE>(c, d);
                r[i] = _mm512_shuffle_f32x4::<0x88>(ab_lo, cd_lo);
                r[i + 4] = _mm512_shuffle_f32x4::<0xDD>(ab_lo, cd_lo);
                r[i + 8] = _mm512_shuffle_f32x4::<0x88>(ab_hi, cd_hi);
                r[i + 12] = _mm512_shuffle_f32x4::<0xDD>(ab_hi, cd_hi);
            }
            // r[4k + i] now has, in quarter j, columns 4k..4k+4 of row 4j + i.
            for k in 0..4 {
                let (a, b, c, d) = (r[4 * k], r[4 * k + 1], r[4 * k + 2], r[4 * k + 3]);
                let ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                let cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                r[4 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_lo, cd_lo));
                r[4 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_lo, cd_lo));
                r[4 * k + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_hi, cd_hi));
                r[4 * k + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_hi, cd_hi));
            }
            r
        }

        fn izero() -> __m512i { _mm512_setzero_si512() }
        fn isplat(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn iload(p: *const i32) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn istore(p: *mut i32, x: __m512i) { _mm512_storeu_si512(p.cast(), x) }
        fn iadd(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn inc_where_gt(x: __m512i, a: __m512, b: __m512) -> __m512i { _mm512_mask_add_epi32(x, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), x, _mm512_set1_epi32(1)) }
        fn ior_shl<const SHIFT: u32>(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, _mm512_slli_epi32::<SHIFT>(b)) }
        fn round(a: __m512) -> __m512i { _mm512_cvtps_epi32(a) }
        fn to_f(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        // To minus infinity (the low bits, 01), no fraction bits kept (the high bits, 0000).
        fn fraction(a: __m512) -> __m512 { _mm512_reduce_ps::<1>(a) }
        fn residue(a: __m512) -> __m512 { _mm512_reduce_ps::<0>(a) }
        fn power_gt(a: __m512, b: __m512, y: __m512) -> __m512 { _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, a) }
        fn ldexp(a: __m512, n: __m512i) -> __m512 { _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32::<23>(n))) }
        fn store_low_bytes(p: *mut u8, x: __m512i) { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(x)) }

        fn deal_words(p: *const u32) -> [__m512i; 4] {
            let z = [
                _mm512_loadu_si512(p.cast()),
                _mm512_loadu_si512(p.add(16).cast()),
                _mm512_loadu_si512(p.add(32).cast()),
                _mm512_loadu_si512(p.add(48).cast()),
            ];
            // Words 0 and 1, then words 2 and 3, of eight rows each.
            let early = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
            let late = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
            let (a, b) = (_mm512_permutex2var_epi32(z[0], early, z[1]), _mm512_permutex2var_epi32(z[2], early, z[3]));
            let (c, d) = (_mm512_permutex2var_epi32(z[0], late, z[1]), _mm512_permutex2var_epi32(z[2], late, z[3]));
            [
                _mm512_shuffle_i32x4::<0x44>(a, b),
                _mm512_shuffle_i32x4::<0xEE>(a, b),
                _mm512_shuffle_i32x4::<0x44>(c, d),
                _mm512_shuffle_i32x4::<0xEE>(c, d),
            ]
        }
        fn transpose_bytes(x: [__m512i; 4]) -> [__m512i; 4] {
            // Within 128-bit quarters by a shuffle; then quarter j of vector i becomes quarter i of vector j.
            let within = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            let (a, b) = (_mm512_shuffle_epi8(x[0], within), _mm512_shuffle_epi8(x[1], within));
            let (c, d) = (_mm512_shuffle_epi8(x[2], within), _mm512_shuffle_epi8(x[3], within));
            let (ab_lo, ab_hi) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xEE>(a, b));
            let (cd_lo, cd_hi) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xEE>(c, d));
            [
                _mm512_shuffle_i32x4::<0x88>(ab_lo, cd_lo),
                _mm512_shuffle_i32x4::<0xDD>(ab_lo, cd_lo),
                _mm512_shuffle_i32x4::<0x88>(ab_hi, cd_hi),
                _mm512_shuffle_i32x4::<0xDD>(ab_hi, cd_hi),
            ]
        }
        fn narrow(x: [__m512i; 4]) -> __m512i {
            let bytes = _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
            // Packing works within 128-bit quarters; put the dwords back in order.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_permutexvar_epi32(order, bytes)
        }
        fn bload(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn bstore(p: *mut i8, x: __m512i) { _mm512_storeu_si512(p.cast(), x) }
        fn sum_bytes(x: __m512i) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), x))
        }
        fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        fn nibbles(p: *const u8) -> (__m512i, __m512i) {
            let x = _mm512_loadu_si512(p.cast());
            let low = _mm512_set1_epi8(15);
            (_mm512_and_si512(x, low), _mm512_and_si512(_mm512_srli_epi32::<4>(x), low))
        }
        fn crumbs(p: *const u8) -> __m512i {
            let x = _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast()));
            let shifts = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
            _mm512_and_si512(_mm512_srlv_epi32(x, shifts), _mm512_set1_epi8(3))
        }
        fn add_bits(x: __m512i, p: *const u8, value: u8) -> __m512i {
            let mask = p.cast::<u64>().read_unaligned();
            _mm512_mask_add_epi8(x, mask, x, _mm512_set1_epi8(value as i8))
        }
        fn add_high(lo: __m512i, hi: __m512i) -> __m512i { _mm512_or_si512(lo, _mm512_slli_epi16::<4>(hi)) }
        fn bzero() -> __m512i { _mm512_setzero_si512() }
        fn bytes(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn table(levels: &[i8; 32]) -> __m512i {
            let signed = _mm256_loadu_si256(levels.as_ptr().cast());
            let offset = _mm256_xor_si256(signed, _mm256_set1_epi8(-128));
            _mm512_broadcast_i64x4(offset)
        }
        fn lookup<const BITS: u32>(t: __m512i, codes: __m512i) -> __m512i { L::lookup::<BITS>(t, codes) }
        fn funnel(a: __m512i, b: __m512i, shift: u32) -> __m512i {
            // Counts are constants where this is inlined, and then immediates.
            let high = _mm512_sll_epi16(a, _mm_cvtsi32_si128(shift as i32));
            let low = _mm512_srl_epi16(b, _mm_cvtsi32_si128(8 - shift as i32));
            // The mask chooses: low where it is set, else high.
            _mm512_ternarylogic_epi32::<0xCA>(_mm512_set1_epi8(((1u32 << shift) - 1) as i8), low, high)
        }
        fn lookup_pair(t: __m512i, w: __m512i) -> __m512i { L::lookup_pair(t, w) }
        fn next_lane(x: __m512i, first: u8) -> __m512i { _mm512_alignr_epi32::<15>(x, _mm512_set1_epi8(first as i8)) }
        fn next_byte(x: __m512i, first: u8) -> __m512i { _mm512_or_si512(_mm512_slli_epi32::<8>(x), _mm512_set1_epi32(i32::from(first))) }
        fn quad(p: *const i8) -> __m512i { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn dot(acc: __m512i, codes: __m512i, q: __m512i) -> __m512i { _mm512_dpbusd_epi32(acc, codes, q) }
        fn dot_full(acc: __m512i, codes: __m512i, q: __m512i) -> __m512i { _mm512_dpbusd_epi32(acc, codes, q) }
    }
}
