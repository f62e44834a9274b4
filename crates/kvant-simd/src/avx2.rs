//! AVX2 with FMA and F16C: two registers per logical vector.

use super::{LANES, Simd, Work};
use std::arch::x86_64::*;

/// Haswell, Zen 1 and later.
#[derive(Clone, Copy)]
pub struct Avx2;

type F2 = [__m256; 2];
type I2 = [__m256i; 2];

/// The same expression for both registers, without a closure in the way of the target features.
macro_rules! each {
    ($i:ident => $value:expr) => {
        [
            {
                let $i = 0usize;
                $value
            },
            {
                let $i = 1usize;
                $value
            },
        ]
    };
}

/// Two 4-wide halves of a reduction: lanes i and i + 4 (and the other register) folded by `f`.
macro_rules! reduce {
    ($a:ident, $wide:ident, $narrow:ident, $single:ident) => {{
        let x = $wide($a[0], $a[1]);
        let x = $narrow(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = $narrow(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32($single(x, _mm_movehdup_ps(x)))
    }};
}

/// Four horizontal reductions at once: each folded to four lanes, then a 4×4 transpose.
macro_rules! reduce4 {
    ($a:ident, $wide:ident, $narrow:ident) => {{
        let mut rows = [_mm_setzero_ps(); 4];
        for (row, a) in rows.iter_mut().zip($a) {
            let x = $wide(a[0], a[1]);
            *row = $narrow(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        }
        let ab = $narrow(_mm_unpacklo_ps(rows[0], rows[1]), _mm_unpackhi_ps(rows[0], rows[1]));
        let cd = $narrow(_mm_unpacklo_ps(rows[2], rows[3]), _mm_unpackhi_ps(rows[2], rows[3]));
        let mut result = [0.0; 4];
        _mm_storeu_ps(result.as_mut_ptr(), $narrow(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
        result
    }};
}

impl Simd for Avx2 {
    type F = F2;
    type I = I2;
    type B = I2;
    type Quad = __m256i;
    type Table = [__m256i; 2];
    type Matrix = crate::Vectors;

    const BYTE_CENTRE: i32 = 128;
    const HEADS: usize = 4;
    const TILES: usize = 1;
    const REGISTERS: usize = 8;
    const RUNS: bool = true;

    unsafe fn call<W: Work<Self>>(work: W) -> W::Output {
        /// # Safety
        /// The CPU has the features.
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        unsafe fn with_features<W: Work<Avx2>>(work: W) -> W::Output {
            // SAFETY: the caller's contract.
            unsafe { work.run() }
        }
        // SAFETY: the contract of `Simd`: the CPU has these features.
        unsafe { with_features(work) }
    }

    tier_methods! {
        fn splat(x: f32) -> F2 { [_mm256_set1_ps(x); 2] }
        fn load(p: *const f32) -> F2 { each!(i => _mm256_loadu_ps(p.add(8 * i))) }
        fn store(p: *mut f32, x: F2) {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
        fn load_f16(p: *const u16) -> F2 { each!(i => _mm256_cvtph_ps(_mm_loadu_si128(p.add(8 * i).cast()))) }
        fn load_bf16(p: *const u16) -> F2 {
            each!(i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
        fn load_u8(p: *const u8) -> F2 {
            each!(i => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()))))
        }
        fn load_i8(p: *const i8) -> F2 {
            each!(i => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()))))
        }
        fn store_f16(p: *mut u16, x: F2) {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
        fn add(a: F2, b: F2) -> F2 { each!(i => _mm256_add_ps(a[i], b[i])) }
        fn sub(a: F2, b: F2) -> F2 { each!(i => _mm256_sub_ps(a[i], b[i])) }
        fn mul(a: F2, b: F2) -> F2 { each!(i => _mm256_mul_ps(a[i], b[i])) }
        fn div(a: F2, b: F2) -> F2 { each!(i => _mm256_div_ps(a[i], b[i])) }
        fn sqrt(a: F2) -> F2 { each!(i => _mm256_sqrt_ps(a[i])) }
        fn fma(a: F2, b: F2, c: F2) -> F2 { each!(i => _mm256_fmadd_ps(a[i], b[i], c[i])) }
        fn fnma(a: F2, b: F2, c: F2) -> F2 { each!(i => _mm256_fnmadd_ps(a[i], b[i], c[i])) }
        fn min(a: F2, b: F2) -> F2 { each!(i => _mm256_min_ps(a[i], b[i])) }
        fn max(a: F2, b: F2) -> F2 { each!(i => _mm256_max_ps(a[i], b[i])) }
        fn max_abs(a: F2, b: F2) -> F2 { Self::max(a, Self::abs(b)) }
        fn abs(a: F2) -> F2 { each!(i => _mm256_andnot_ps(_mm256_set1_ps(-0.0), a[i])) }
        fn select_gt(a: F2, b: F2, x: F2, y: F2) -> F2 {
            each!(i => _mm256_blendv_ps(y[i], x[i], _mm256_cmp_ps::<_CMP_GT_OQ>(a[i], b[i])))
        }
        fn load4(p: *const f32) -> F2 { [_mm256_broadcast_ps(&p.cast::<__m128>().read_unaligned()); 2] }
        fn rotate_lanes<const N: u32>(x: F2) -> F2 {
            if N == 8 {
                return [x[1], x[0]];
            }
            let x = each!(i => _mm256_castps_si256(x[i]));
            // The half before each half, whose last lanes move in.
            let before = each!(i => _mm256_permute2x128_si256::<0x21>(x[1 - i], x[i]));
            each!(i => _mm256_castsi256_ps(match N {
                1 => _mm256_alignr_epi8::<12>(x[i], before[i]),
                2 => _mm256_alignr_epi8::<8>(x[i], before[i]),
                _ => before[i],
            }))
        }
        fn reduce_add(a: F2) -> f32 { reduce!(a, _mm256_add_ps, _mm_add_ps, _mm_add_ss) }
        fn reduce_max(a: F2) -> f32 { reduce!(a, _mm256_max_ps, _mm_max_ps, _mm_max_ss) }
        fn reduce4_add(a: [F2; 4]) -> [f32; 4] { reduce4!(a, _mm256_add_ps, _mm_add_ps) }
        fn reduce4_max(a: [F2; 4]) -> [f32; 4] { reduce4!(a, _mm256_max_ps, _mm_max_ps) }
        fn transpose(p: *const f32, stride: usize) -> [F2; LANES] {
            let mut columns = [[_mm256_setzero_ps(); 2]; LANES];
            for half in 0..2 {
                for block in 0..2 {
                    let tile = transpose8(p.add(8 * half * stride + 8 * block), stride);
                    for c in 0..8 {
                        columns[8 * block + c][half] = tile[c];
                    }
                }
            }
            columns
        }

        fn izero() -> I2 { [_mm256_setzero_si256(); 2] }
        fn isplat(x: i32) -> I2 { [_mm256_set1_epi32(x); 2] }
        fn iload(p: *const i32) -> I2 { each!(i => _mm256_loadu_si256(p.add(8 * i).cast())) }
        fn istore(p: *mut i32, x: I2) {
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(8).cast(), x[1]);
        }
        fn iadd(a: I2, b: I2) -> I2 { each!(i => _mm256_add_epi32(a[i], b[i])) }
        fn inc_where_gt(x: I2, a: F2, b: F2) -> I2 {
            // A true comparison is all ones, that is −1.
            each!(i => _mm256_sub_epi32(x[i], _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(a[i], b[i]))))
        }
        fn ior_shl<const SHIFT: u32>(a: I2, b: I2) -> I2 {
            each!(i => _mm256_or_si256(a[i], _mm256_sll_epi32(b[i], _mm_cvtsi32_si128(SHIFT as i32))))
        }
        fn round(a: F2) -> I2 { each!(i => _mm256_cvtps_epi32(a[i])) }
        fn to_f(a: I2) -> F2 { each!(i => _mm256_cvtepi32_ps(a[i])) }
        fn fraction(a: F2) -> F2 { each!(i => _mm256_sub_ps(a[i], _mm256_floor_ps(a[i]))) }
        fn residue(a: F2) -> F2 { each!(i => _mm256_sub_ps(a[i], _mm256_round_ps::<8>(a[i]))) }
        fn power_gt(a: F2, b: F2, y: F2) -> F2 {
            let scaled = Self::ldexp(y, each!(i => _mm256_cvtps_epi32(_mm256_floor_ps(a[i]))));
            each!(i => _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[i], b[i]), scaled[i]))
        }
        fn ldexp(a: F2, n: I2) -> F2 {
            each!(i => _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a[i]), _mm256_slli_epi32::<23>(n[i]))))
        }
        fn store_low_bytes(p: *mut u8, x: I2) {
            let pick = _mm256_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, //
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            for i in 0..2 {
                let y = _mm256_shuffle_epi8(x[i], pick);
                let pair = _mm_unpacklo_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256::<1>(y));
                _mm_storel_epi64(p.add(8 * i).cast(), pair);
            }
        }

        fn deal_words(p: *const u32) -> [I2; 4] {
            let mut words = [[_mm256_setzero_si256(); 2]; 4];
            for half in 0..2 {
                // Rows i and i + 4 share a register: a 4×4 transpose inside halves deals all eight rows.
                let p = p.add(32 * half).cast::<__m128i>();
                let mut r = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    r[i] = _mm256_set_m128i(_mm_loadu_si128(p.add(i + 4)), _mm_loadu_si128(p.add(i)));
                }
                let (ab_lo, ab_hi) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
                let (cd_lo, cd_hi) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
                words[0][half] = _mm256_unpacklo_epi64(ab_lo, cd_lo);
                words[1][half] = _mm256_unpackhi_epi64(ab_lo, cd_lo);
                words[2][half] = _mm256_unpacklo_epi64(ab_hi, cd_hi);
                words[3][half] = _mm256_unpackhi_epi64(ab_hi, cd_hi);
            }
            words
        }
        fn transpose_bytes(x: [I2; 4]) -> [I2; 4] {
            // Within 128-bit quarters by a shuffle; then quarter j of vector i becomes quarter i of vector j.
            let within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            let mut y = [[_mm256_setzero_si256(); 2]; 4];
            for i in 0..4 {
                y[i] = each!(half => _mm256_shuffle_epi8(x[i][half], within));
            }
            let mut turned = [[_mm256_setzero_si256(); 2]; 4];
            for half in 0..2 {
                turned[2 * half] = each!(i => _mm256_permute2x128_si256::<0x20>(y[2 * i][half], y[2 * i + 1][half]));
                turned[2 * half + 1] = each!(i => _mm256_permute2x128_si256::<0x31>(y[2 * i][half], y[2 * i + 1][half]));
            }
            turned
        }
        fn narrow(x: [I2; 4]) -> I2 {
            // Packing works within 128-bit halves; put the dwords back in order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            each!(i => {
                let low = _mm256_packs_epi32(x[2 * i][0], x[2 * i][1]);
                let high = _mm256_packs_epi32(x[2 * i + 1][0], x[2 * i + 1][1]);
                _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
            })
        }
        fn bload(p: *const u8) -> I2 { each!(i => _mm256_loadu_si256(p.add(32 * i).cast())) }
        fn bstore(p: *mut i8, x: I2) {
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(32).cast(), x[1]);
        }
        fn sum_bytes(x: I2) -> F2 {
            each!(i => {
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x[i]);
                _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            })
        }
        fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }

        fn nibbles(p: *const u8) -> (I2, I2) {
            let low = _mm256_set1_epi8(15);
            let x = each!(i => _mm256_loadu_si256(p.add(32 * i).cast()));
            (
                each!(i => _mm256_and_si256(x[i], low)),
                each!(i => _mm256_and_si256(_mm256_srli_epi32::<4>(x[i]), low)),
            )
        }
        fn crumbs(p: *const u8) -> I2 {
            let x = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let three = _mm256_set1_epi8(3);
            let low = _mm256_srlv_epi32(x, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
            let high = _mm256_srlv_epi32(x, _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6));
            [_mm256_and_si256(low, three), _mm256_and_si256(high, three)]
        }
        fn add_bits(x: I2, p: *const u8, value: u8) -> I2 {
            let select = _mm256_setr_epi8(
                0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, //
                2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
            );
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            each!(i => {
                let word = _mm256_set1_epi32(p.cast::<i32>().add(i).read_unaligned());
                let spread = _mm256_and_si256(_mm256_shuffle_epi8(word, select), bit);
                let set = _mm256_cmpeq_epi8(spread, bit);
                _mm256_add_epi8(x[i], _mm256_and_si256(set, _mm256_set1_epi8(value as i8)))
            })
        }
        fn add_high(lo: I2, hi: I2) -> I2 { each!(i => _mm256_or_si256(lo[i], _mm256_slli_epi16::<4>(hi[i]))) }
        fn bzero() -> I2 { [_mm256_setzero_si256(); 2] }
        fn bytes(p: *const u8) -> I2 { each!(i => _mm256_loadu_si256(p.add(32 * i).cast())) }
        fn table(levels: &[i8; 32]) -> [__m256i; 2] {
            let offset = _mm_set1_epi8(-128);
            each!(i => {
                let part = _mm_xor_si128(_mm_loadu_si128(levels.as_ptr().add(16 * i).cast()), offset);
                _mm256_broadcastsi128_si256(part)
            })
        }
        fn lookup<const BITS: u32>(t: [__m256i; 2], codes: I2) -> I2 {
            each!(i => {
                let low = _mm256_shuffle_epi8(t[0], codes[i]);
                if BITS <= 4 {
                    low
                } else {
                    // A shuffle reads four bits of the code; the fifth, moved to bit 7, chooses the half.
                    let high = _mm256_shuffle_epi8(t[1], codes[i]);
                    _mm256_blendv_epi8(low, high, _mm256_slli_epi16::<3>(codes[i]))
                }
            })
        }
        fn funnel(a: I2, b: I2, shift: u32) -> I2 {
            // Counts are constants where this is inlined, and then immediates.
            let (up, down) = (_mm_cvtsi32_si128(shift as i32), _mm_cvtsi32_si128(8 - shift as i32));
            let mask = _mm256_set1_epi8(((1u32 << shift) - 1) as i8);
            each!(i => {
                let low = _mm256_and_si256(mask, _mm256_srl_epi16(b[i], down));
                _mm256_or_si256(low, _mm256_andnot_si256(mask, _mm256_sll_epi16(a[i], up)))
            })
        }
        fn lookup_pair(t: [__m256i; 2], w: I2) -> I2 {
            let mask = _mm256_set1_epi8(15);
            each!(i => {
                let low = _mm256_shuffle_epi8(t[0], _mm256_and_si256(w[i], mask));
                let high = _mm256_shuffle_epi8(t[1], _mm256_and_si256(_mm256_srli_epi16::<4>(w[i]), mask));
                _mm256_add_epi8(low, high)
            })
        }
        fn next_lane(x: I2, first: u8) -> I2 {
            let first = _mm256_set1_epi8(first as i8);
            // The half before each half, whose last lane moves in.
            let before = [_mm256_permute2x128_si256::<0x21>(first, x[0]), _mm256_permute2x128_si256::<0x21>(x[0], x[1])];
            each!(i => _mm256_alignr_epi8::<12>(x[i], before[i]))
        }
        fn next_byte(x: I2, first: u8) -> I2 {
            each!(i => _mm256_or_si256(_mm256_slli_epi32::<8>(x[i]), _mm256_set1_epi32(i32::from(first))))
        }
        fn quad(p: *const i8) -> __m256i { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn dot(acc: I2, codes: I2, q: __m256i) -> I2 {
            // Codes below 128 times bytes: a pair sums to at most 2·127·128 < 2¹⁵, so nothing saturates.
            each!(i => {
                let pairs = _mm256_maddubs_epi16(codes[i], q);
                _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            })
        }
        fn dot_run<const BITS: u32>(acc: I2, codes: &[I2], q: *const i8) -> I2 {
            // A pair of products is at most 2·128·(2ᴮ − 1): so many of them stay below 2¹⁵.
            let most = match BITS {
                0..=4 => 8,
                5 => 4,
                6 => 2,
                _ => 1,
            };
            each!(i => {
                let (mut sum, mut at) = (acc[i], 0);
                while at < codes.len() {
                    let end = codes.len().min(at + most);
                    let mut pairs = _mm256_maddubs_epi16(codes[at][i], Self::quad(q.add(4 * at)));
                    for j in at + 1..end {
                        let next = _mm256_maddubs_epi16(codes[j][i], Self::quad(q.add(4 * j)));
                        pairs = _mm256_add_epi16(pairs, next);
                    }
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                    at = end;
                }
                sum
            })
        }
        fn dot_full(acc: I2, codes: I2, q: __m256i) -> I2 {
            // Full bytes would saturate; split each 16-bit pair into its even and odd byte and multiply in 16 bits.
            let odd_q = _mm256_srai_epi16::<8>(q);
            let even_q = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(q));
            each!(i => {
                let even = _mm256_and_si256(codes[i], _mm256_set1_epi16(255));
                let odd = _mm256_srli_epi16::<8>(codes[i]);
                let sum = _mm256_add_epi32(_mm256_madd_epi16(even, even_q), _mm256_madd_epi16(odd, odd_q));
                _mm256_add_epi32(acc[i], sum)
            })
        }
    }
}

/// 8 rows of 8 floats, rows into lanes.
///
/// # Safety
/// The CPU has AVX2 and `p` points to 8 readable rows, `stride` floats apart.
#[inline(always)]
unsafe fn transpose8(p: *const f32, stride: usize) -> [__m256; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut r = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            // Low halves of rows i and i + 4 share a register, and so do the high halves.
            let (a, b) = (p.add(i * stride), p.add((i + 4) * stride));
            r[i] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b));
            let (a, b) = (a.add(4), b.add(4));
            r[i + 4] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b));
        }
        for k in 0..2 {
            let (a, b, c, d) = (r[4 * k], r[4 * k + 1], r[4 * k + 2], r[4 * k + 3]);
            let ab_lo = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
            let ab_hi = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
            let cd_lo = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
            let cd_hi = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
            r[4 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_lo, cd_lo));
            r[4 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_lo, cd_lo));
            r[4 * k + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_hi, cd_hi));
            r[4 * k + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_hi, cd_hi));
        }
        r
    }
}
