//! NEON, with the dot-product extension and without: four registers per logical vector. `sdot` and the half-precision
//! conversions go through inline assembly, because their intrinsics are not stable.
//!
//! Processors of ARMv8.0 (Cortex-A53 and A72: Raspberry Pi 3 and 4, many phones and boxes) have all of NEON but `sdot`. Two
//! widening products and two additions do the same there, and everything else is shared: both tiers give the same bits.

use super::{LANES, MatrixUnit, Simd, Vectors, Work};
use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

/// NEON that multiplies bytes by `D`.
#[derive(Clone, Copy)]
pub struct NeonBy<D>(PhantomData<D>);

/// Apple M1, Cortex-A76, Graviton 2 and later.
pub type Neon = NeonBy<DotProduct>;

/// Every 64-bit ARM processor.
pub type NeonBase = NeonBy<WideningProduct>;

/// The dot-product extension: `sdot`.
#[derive(Clone, Copy)]
pub struct DotProduct;

/// What every processor has: `smull` and sums of neighbours.
#[derive(Clone, Copy)]
pub struct WideningProduct;

/// How four signed bytes of a lane are multiplied with four others and summed up.
pub trait ByteProducts: Copy + 'static {
    /// The unit for whole blocks of them.
    type Matrix: MatrixUnit<NeonBy<Self>>;

    /// acc\[i\] += Σ₄ a·b, signed bytes.
    ///
    /// # Safety
    /// The CPU has the tier.
    unsafe fn dot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;

    /// The same where no byte of `a` is negative.
    ///
    /// # Safety
    /// The CPU has the tier.
    unsafe fn dot_codes(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;

    /// [`Simd::RUNS`].
    const RUNS: bool;
}

impl ByteProducts for DotProduct {
    type Matrix = crate::I8mm;
    const RUNS: bool = false;

    #[inline(always)]
    unsafe fn dot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe { sdot(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn dot_codes(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe { sdot(acc, a, b) }
    }
}

impl ByteProducts for WideningProduct {
    type Matrix = Vectors;
    const RUNS: bool = true;

    /// Two products of −128 and −128 are 2¹⁵ together, one more than 16 bits hold: neighbours are summed up in 32.
    #[inline(always)]
    unsafe fn dot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            let high = vpaddlq_s16(vmull_high_s8(a, b));
            vaddq_s32(acc, vpaddq_s32(low, high))
        }
    }

    /// A product is between −127·128 and 127·127, so 16 bits hold two of them.
    #[inline(always)]
    unsafe fn dot_codes(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
            vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(a, b)))
        }
    }
}

type F4 = [float32x4_t; 4];
type I4 = [int32x4_t; 4];
type B4 = [uint8x16_t; 4];

/// The same expression for the four registers, without a closure in the way of the target features.
macro_rules! four {
    ($i:ident => $value:expr) => {
        [four!(@ $i 0 $value), four!(@ $i 1 $value), four!(@ $i 2 $value), four!(@ $i 3 $value)]
    };
    (@ $i:ident $n:literal $value:expr) => {{
        let $i = $n as usize;
        $value
    }};
}

/// acc\[i\] += Σ₄ a·b, signed bytes.
///
/// # Safety
/// The CPU has the dot-product extension.
#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: a pure register operation that the tier guarantees.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// # Safety
/// `p` points to 4 readable halves.
#[inline(always)]
unsafe fn widen_f16(p: *const u16) -> float32x4_t {
    // SAFETY: the caller's contract; the conversion is part of base ARMv8.
    unsafe {
        let bits = vld1_u16(p);
        let wide: float32x4_t;
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = out(vreg) wide, bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
        wide
    }
}

/// # Safety
/// `p` points to 4 writable halves.
#[inline(always)]
unsafe fn narrow_f16(p: *mut u16, x: float32x4_t) {
    // SAFETY: the caller's contract; the conversion is part of base ARMv8.
    unsafe {
        let bits: uint16x4_t;
        asm!("fcvtn {bits:v}.4h, {x:v}.4s", bits = out(vreg) bits, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
        vst1_u16(p, bits);
    }
}

impl<D: ByteProducts> Simd for NeonBy<D> {
    type F = F4;
    type I = I4;
    type B = B4;
    type Quad = int8x16_t;
    type Table = [uint8x16_t; 2];
    type Matrix = D::Matrix;

    const BYTE_CENTRE: i32 = 0;
    const HEADS: usize = 4;
    const TILES: usize = 1;
    const REGISTERS: usize = 8;
    const RUNS: bool = D::RUNS;

    unsafe fn call<W: Work<Self>>(work: W) -> W::Output {
        /// # Safety
        /// The CPU has the features.
        #[target_feature(enable = "neon")]
        #[inline(never)]
        unsafe fn with_features<D: ByteProducts, W: Work<NeonBy<D>>>(work: W) -> W::Output {
            // SAFETY: the caller's contract.
            unsafe { work.run() }
        }
        // SAFETY: the contract of `Simd`: the CPU has these features.
        unsafe { with_features::<D, W>(work) }
    }

    tier_methods! {
        fn splat(x: f32) -> F4 { [vdupq_n_f32(x); 4] }
        fn load(p: *const f32) -> F4 { four!(i => vld1q_f32(p.add(4 * i))) }
        fn store(p: *mut f32, x: F4) {
            for i in 0..4 {
                vst1q_f32(p.add(4 * i), x[i]);
            }
        }
        fn load_f16(p: *const u16) -> F4 { four!(i => widen_f16(p.add(4 * i))) }
        fn load_bf16(p: *const u16) -> F4 {
            four!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * i)))))
        }
        fn load_u8(p: *const u8) -> F4 {
            let x = vld1q_u8(p);
            let halves = [vmovl_u8(vget_low_u8(x)), vmovl_u8(vget_high_u8(x))];
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves[0]))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(halves[0]))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves[1]))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(halves[1]))),
            ]
        }
        fn load_i8(p: *const i8) -> F4 {
            let x = vld1q_s8(p);
            let halves = [vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x))];
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[0]))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(halves[0]))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[1]))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(halves[1]))),
            ]
        }
        fn store_f16(p: *mut u16, x: F4) {
            for i in 0..4 {
                narrow_f16(p.add(4 * i), x[i]);
            }
        }
        fn add(a: F4, b: F4) -> F4 { four!(i => vaddq_f32(a[i], b[i])) }
        fn sub(a: F4, b: F4) -> F4 { four!(i => vsubq_f32(a[i], b[i])) }
        fn mul(a: F4, b: F4) -> F4 { four!(i => vmulq_f32(a[i], b[i])) }
        fn div(a: F4, b: F4) -> F4 { four!(i => vdivq_f32(a[i], b[i])) }
        fn sqrt(a: F4) -> F4 { four!(i => vsqrtq_f32(a[i])) }
        fn fma(a: F4, b: F4, c: F4) -> F4 { four!(i => vfmaq_f32(c[i], a[i], b[i])) }
        fn fnma(a: F4, b: F4, c: F4) -> F4 { four!(i => vfmsq_f32(c[i], a[i], b[i])) }
        fn min(a: F4, b: F4) -> F4 { four!(i => vminq_f32(a[i], b[i])) }
        fn max(a: F4, b: F4) -> F4 { four!(i => vmaxq_f32(a[i], b[i])) }
        fn max_abs(a: F4, b: F4) -> F4 { Self::max(a, Self::abs(b)) }
        fn abs(a: F4) -> F4 { four!(i => vabsq_f32(a[i])) }
        fn select_gt(a: F4, b: F4, x: F4, y: F4) -> F4 {
            four!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), x[i], y[i]))
        }
        fn load4(p: *const f32) -> F4 { [vld1q_f32(p); 4] }
        fn rotate_lanes<const N: u32>(x: F4) -> F4 {
            let before = [x[3], x[0], x[1], x[2]];
            match N {
                1 => four!(i => vextq_f32::<3>(before[i], x[i])),
                2 => four!(i => vextq_f32::<2>(before[i], x[i])),
                4 => before,
                _ => [x[2], x[3], x[0], x[1]],
            }
        }
        fn reduce_add(a: F4) -> f32 {
            vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(a[2], a[3])))
        }
        fn reduce_max(a: F4) -> f32 {
            vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3])))
        }
        fn reduce4_add(a: [F4; 4]) -> [f32; 4] { four!(i => Self::reduce_add(a[i])) }
        fn reduce4_max(a: [F4; 4]) -> [f32; 4] { four!(i => Self::reduce_max(a[i])) }
        fn transpose(p: *const f32, stride: usize) -> [F4; LANES] {
            let mut columns = [[vdupq_n_f32(0.0); 4]; LANES];
            for quarter in 0..4 {
                for block in 0..4 {
                    let tile = transpose4(p.add(4 * quarter * stride + 4 * block), stride);
                    for c in 0..4 {
                        columns[4 * block + c][quarter] = tile[c];
                    }
                }
            }
            columns
        }

        fn izero() -> I4 { [vdupq_n_s32(0); 4] }
        fn isplat(x: i32) -> I4 { [vdupq_n_s32(x); 4] }
        fn iload(p: *const i32) -> I4 { four!(i => vld1q_s32(p.add(4 * i))) }
        fn istore(p: *mut i32, x: I4) {
            for i in 0..4 {
                vst1q_s32(p.add(4 * i), x[i]);
            }
        }
        fn iadd(a: I4, b: I4) -> I4 { four!(i => vaddq_s32(a[i], b[i])) }
        fn inc_where_gt(x: I4, a: F4, b: F4) -> I4 {
            // A true comparison is all ones, that is −1.
            four!(i => vsubq_s32(x[i], vreinterpretq_s32_u32(vcgtq_f32(a[i], b[i]))))
        }
        fn ior_shl<const SHIFT: u32>(a: I4, b: I4) -> I4 {
            four!(i => vorrq_s32(a[i], vshlq_s32(b[i], vdupq_n_s32(SHIFT as i32))))
        }
        fn round(a: F4) -> I4 { four!(i => vcvtnq_s32_f32(a[i])) }
        fn to_f(a: I4) -> F4 { four!(i => vcvtq_f32_s32(a[i])) }
        fn fraction(a: F4) -> F4 { four!(i => vsubq_f32(a[i], vrndmq_f32(a[i]))) }
        fn residue(a: F4) -> F4 { four!(i => vsubq_f32(a[i], vrndnq_f32(a[i]))) }
        fn power_gt(a: F4, b: F4, y: F4) -> F4 {
            let scaled = Self::ldexp(y, four!(i => vcvtmq_s32_f32(a[i])));
            four!(i => vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(a[i], b[i]), vreinterpretq_u32_f32(scaled[i]))))
        }
        fn ldexp(a: F4, n: I4) -> F4 {
            four!(i => vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a[i]), vshlq_n_s32::<23>(n[i]))))
        }
        fn store_low_bytes(p: *mut u8, x: I4) {
            let low = vuzp1q_u16(vreinterpretq_u16_s32(x[0]), vreinterpretq_u16_s32(x[1]));
            let high = vuzp1q_u16(vreinterpretq_u16_s32(x[2]), vreinterpretq_u16_s32(x[3]));
            vst1q_u8(p, vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
        }

        fn deal_words(p: *const u32) -> [I4; 4] {
            let mut words = [[vdupq_n_s32(0); 4]; 4];
            for quarter in 0..4 {
                let dealt = vld4q_s32(p.add(16 * quarter).cast());
                words[0][quarter] = dealt.0;
                words[1][quarter] = dealt.1;
                words[2][quarter] = dealt.2;
                words[3][quarter] = dealt.3;
            }
            words
        }
        fn transpose_bytes(x: [B4; 4]) -> [B4; 4] {
            // Within registers by a table; then register j of vector i becomes register i of vector j.
            const WITHIN: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
            let within = vld1q_u8(WITHIN.as_ptr());
            four!(j => four!(i => vqtbl1q_u8(x[i][j], within)))
        }
        fn narrow(x: [I4; 4]) -> B4 {
            four!(i => {
                let low = vuzp1q_u16(vreinterpretq_u16_s32(x[i][0]), vreinterpretq_u16_s32(x[i][1]));
                let high = vuzp1q_u16(vreinterpretq_u16_s32(x[i][2]), vreinterpretq_u16_s32(x[i][3]));
                vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
            })
        }
        fn bload(p: *const u8) -> B4 { four!(i => vld1q_u8(p.add(16 * i))) }
        fn bstore(p: *mut i8, x: B4) {
            for i in 0..4 {
                vst1q_u8(p.add(16 * i).cast(), x[i]);
            }
        }
        fn sum_bytes(x: B4) -> F4 {
            four!(i => vcvtq_f32_s32(D::dot(vdupq_n_s32(0), vreinterpretq_s8_u8(x[i]), vdupq_n_s8(1))))
        }
        fn prefetch(p: *const u8) {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly))
        }

        fn nibbles(p: *const u8) -> (B4, B4) {
            let x = four!(i => vld1q_u8(p.add(16 * i)));
            (four!(i => vandq_u8(x[i], vdupq_n_u8(15))), four!(i => vshrq_n_u8::<4>(x[i])))
        }
        fn crumbs(p: *const u8) -> B4 {
            let x = vld1q_u8(p);
            let three = vdupq_n_u8(3);
            [
                vandq_u8(x, three),
                vandq_u8(vshrq_n_u8::<2>(x), three),
                vandq_u8(vshrq_n_u8::<4>(x), three),
                vshrq_n_u8::<6>(x),
            ]
        }
        fn add_bits(x: B4, p: *const u8, value: u8) -> B4 {
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            four!(i => {
                let spread = vcombine_u8(vdup_n_u8(*p.add(2 * i)), vdup_n_u8(*p.add(2 * i + 1)));
                let set = vtstq_u8(spread, bit);
                vaddq_u8(x[i], vandq_u8(set, vdupq_n_u8(value)))
            })
        }
        fn add_high(lo: B4, hi: B4) -> B4 { four!(i => vorrq_u8(lo[i], vshlq_n_u8::<4>(hi[i]))) }
        fn bzero() -> B4 { [vdupq_n_u8(0); 4] }
        fn bytes(p: *const u8) -> B4 { four!(i => veorq_u8(vld1q_u8(p.add(16 * i)), vdupq_n_u8(128))) }
        fn table(levels: &[i8; 32]) -> [uint8x16_t; 2] {
            [vld1q_u8(levels.as_ptr().cast()), vld1q_u8(levels.as_ptr().add(16).cast())]
        }
        fn lookup<const BITS: u32>(t: [uint8x16_t; 2], codes: B4) -> B4 {
            four!(i => {
                if BITS <= 4 {
                    vqtbl1q_u8(t[0], codes[i])
                } else {
                    vqtbl2q_u8(uint8x16x2_t(t[0], t[1]), codes[i])
                }
            })
        }
        fn funnel(a: B4, b: B4, shift: u32) -> B4 {
            // A negative count shifts down.
            let (up, down) = (vdupq_n_s8(shift as i8), vdupq_n_s8(shift as i8 - 8));
            four!(i => vorrq_u8(vshlq_u8(a[i], up), vshlq_u8(b[i], down)))
        }
        fn lookup_pair(t: [uint8x16_t; 2], w: B4) -> B4 {
            four!(i => {
                let low = vqtbl1q_u8(t[0], vandq_u8(w[i], vdupq_n_u8(15)));
                vaddq_u8(low, vqtbl1q_u8(t[1], vshrq_n_u8::<4>(w[i])))
            })
        }
        fn next_lane(x: B4, first: u8) -> B4 {
            let before = [vdupq_n_u8(first), x[0], x[1], x[2]];
            four!(i => vextq_u8::<12>(before[i], x[i]))
        }
        fn next_byte(x: B4, first: u8) -> B4 {
            four!(i => {
                let moved = vshlq_n_u32::<8>(vreinterpretq_u32_u8(x[i]));
                vreinterpretq_u8_u32(vorrq_u32(moved, vdupq_n_u32(u32::from(first))))
            })
        }
        fn quad(p: *const i8) -> int8x16_t {
            vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned()))
        }
        fn dot(acc: I4, codes: B4, q: int8x16_t) -> I4 {
            four!(i => D::dot_codes(acc[i], vreinterpretq_s8_u8(codes[i]), q))
        }
        fn dot_run<const BITS: u32>(acc: I4, codes: &[B4], q: *const i8) -> I4 {
            // A product is at most 128·(2ᴮ − 1): so many of them stay below 2¹⁵. Where there are dot products nobody asks for this.
            let most = match BITS {
                0..=5 => 8,
                6 => 4,
                _ => 2,
            };
            four!(i => {
                let (mut sum, mut at) = (acc[i], 0);
                while at < codes.len() {
                    let end = codes.len().min(at + most);
                    let (mut low, mut high) = (vdupq_n_s16(0), vdupq_n_s16(0));
                    for j in at..end {
                        let (codes, quad) = (vreinterpretq_s8_u8(codes[j][i]), Self::quad(q.add(4 * j)));
                        low = vmlal_s8(low, vget_low_s8(codes), vget_low_s8(quad));
                        high = vmlal_high_s8(high, codes, quad);
                    }
                    sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
                    at = end;
                }
                sum
            })
        }
        fn dot_full(acc: I4, codes: B4, q: int8x16_t) -> I4 {
            four!(i => D::dot(acc[i], vreinterpretq_s8_u8(codes[i]), q))
        }
    }
}

/// 4 rows of 4 floats, rows into lanes.
///
/// # Safety
/// `p` points to 4 readable rows, `stride` floats apart.
#[inline(always)]
unsafe fn transpose4(p: *const f32, stride: usize) -> F4 {
    // SAFETY: the caller's contract.
    unsafe {
        let r = four!(i => vld1q_f32(p.add(i * stride)));
        let ab = vtrnq_f32(r[0], r[1]);
        let cd = vtrnq_f32(r[2], r[3]);
        [
            vcombine_f32(vget_low_f32(ab.0), vget_low_f32(cd.0)),
            vcombine_f32(vget_low_f32(ab.1), vget_low_f32(cd.1)),
            vcombine_f32(vget_high_f32(ab.0), vget_high_f32(cd.0)),
            vcombine_f32(vget_high_f32(ab.1), vget_high_f32(cd.1)),
        ]
    }
}
