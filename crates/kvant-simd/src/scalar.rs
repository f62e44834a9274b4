//! Portable Rust: plain arrays and loops. The oracle that every other tier is compared with, kept out of line so that
//! it costs little to compile.

use super::{LANES, Simd, Work};
use half::{bf16, f16};

/// The portable tier.
#[derive(Clone, Copy)]
pub struct Scalar;

fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    a.map(f)
}

fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];
    type Quad = [i8; 4];
    type Table = [u8; 32];
    type Matrix = crate::Vectors;

    const BYTE_CENTRE: i32 = 128;
    const HEADS: usize = 1;
    const TILES: usize = 1;
    const REGISTERS: usize = 8;

    #[inline(never)]
    unsafe fn call<W: Work<Self>>(work: W) -> W::Output {
        // SAFETY: the caller's contract.
        unsafe { work.run() }
    }

    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller guarantees 16 readable floats.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: the caller guarantees 16 writable floats.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: the caller guarantees 16 readable halves.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|bits| f16::from_bits(bits).to_f32())
    }
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: the caller guarantees 16 readable halves.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|bits| bf16::from_bits(bits).to_f32())
    }
    unsafe fn load_u8(p: *const u8) -> Self::F {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from)
    }
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { p.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }
    unsafe fn store_f16(p: *mut u16, x: Self::F) {
        // SAFETY: the caller guarantees 16 writable halves.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(x.map(|v| f16::from_f32(v).to_bits())) }
    }
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    unsafe fn sqrt(a: Self::F) -> Self::F {
        map(a, f32::sqrt)
    }
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    unsafe fn max_abs(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b.abs() { a } else { b.abs() })
    }
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    unsafe fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] > b[i] { x[i] } else { y[i] })
    }
    unsafe fn load4(p: *const f32) -> Self::F {
        // SAFETY: the caller guarantees 4 readable floats.
        let four = unsafe { p.cast::<[f32; 4]>().read_unaligned() };
        std::array::from_fn(|i| four[i % 4])
    }
    unsafe fn rotate_lanes<const N: u32>(x: Self::F) -> Self::F {
        std::array::from_fn(|i| x[(i + LANES - N as usize) % LANES])
    }
    unsafe fn reduce_add(a: Self::F) -> f32 {
        a.iter().sum()
    }
    unsafe fn reduce_max(a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    unsafe fn reduce4_add(a: [Self::F; 4]) -> [f32; 4] {
        a.map(|a| a.iter().sum())
    }
    unsafe fn reduce4_max(a: [Self::F; 4]) -> [f32; 4] {
        a.map(|a| a.into_iter().fold(f32::NEG_INFINITY, f32::max))
    }
    #[inline(never)]
    unsafe fn transpose(p: *const f32, stride: usize) -> [Self::F; LANES] {
        // SAFETY: the caller guarantees 16 readable rows of 16 floats.
        std::array::from_fn(|c| std::array::from_fn(|r| unsafe { p.add(r * stride + c).read() }))
    }

    unsafe fn izero() -> Self::I {
        [0; LANES]
    }
    unsafe fn isplat(x: i32) -> Self::I {
        [x; LANES]
    }
    unsafe fn iload(p: *const i32) -> Self::I {
        // SAFETY: the caller guarantees 16 readable integers.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    unsafe fn istore(p: *mut i32, x: Self::I) {
        // SAFETY: the caller guarantees 16 writable integers.
        unsafe { p.cast::<Self::I>().write_unaligned(x) }
    }
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    unsafe fn inc_where_gt(x: Self::I, a: Self::F, b: Self::F) -> Self::I {
        std::array::from_fn(|i| x[i] + i32::from(a[i] > b[i]))
    }
    unsafe fn ior_shl<const SHIFT: u32>(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] | (b[i] << SHIFT))
    }
    unsafe fn round(a: Self::F) -> Self::I {
        a.map(|x| x.round_ties_even() as i32)
    }
    unsafe fn to_f(a: Self::I) -> Self::F {
        a.map(|x| x as f32)
    }
    unsafe fn fraction(a: Self::F) -> Self::F {
        a.map(|x| x - x.floor())
    }
    unsafe fn residue(a: Self::F) -> Self::F {
        a.map(|x| x - x.round_ties_even())
    }
    unsafe fn power_gt(a: Self::F, b: Self::F, y: Self::F) -> Self::F {
        // SAFETY: pure arithmetic.
        let scaled = unsafe { Self::ldexp(y, a.map(|x| x.floor() as i32)) };
        std::array::from_fn(|i| if a[i] > b[i] { scaled[i] } else { 0.0 })
    }
    unsafe fn ldexp(a: Self::F, n: Self::I) -> Self::F {
        std::array::from_fn(|i| f32::from_bits(a[i].to_bits().wrapping_add((n[i] as u32) << 23)))
    }
    unsafe fn store_low_bytes(p: *mut u8, x: Self::I) {
        // SAFETY: the caller guarantees 16 writable bytes.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(x.map(|v| v as u8)) }
    }

    unsafe fn deal_words(p: *const u32) -> [Self::I; 4] {
        // SAFETY: the caller guarantees 64 readable words.
        std::array::from_fn(|w| std::array::from_fn(|r| unsafe { p.add(4 * r + w).read_unaligned() as i32 }))
    }
    #[inline(never)]
    unsafe fn transpose_bytes(x: [Self::B; 4]) -> [Self::B; 4] {
        std::array::from_fn(|j| std::array::from_fn(|n| x[n / 16][4 * (4 * j + n % 4) + n / 4 % 4]))
    }
    unsafe fn narrow(x: [Self::I; 4]) -> Self::B {
        std::array::from_fn(|i| x[i / LANES][i % LANES] as u8)
    }
    unsafe fn bload(p: *const u8) -> Self::B {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    unsafe fn bstore(p: *mut i8, x: Self::B) {
        // SAFETY: the caller guarantees 64 writable bytes.
        unsafe { p.cast::<Self::B>().write_unaligned(x) }
    }
    unsafe fn sum_bytes(x: Self::B) -> Self::F {
        std::array::from_fn(|lane| (0..4).map(|j| f32::from(x[4 * lane + j] as i8)).sum())
    }
    unsafe fn prefetch(_: *const u8) {}

    #[inline(never)]
    unsafe fn nibbles(p: *const u8) -> (Self::B, Self::B) {
        // SAFETY: the caller guarantees 64 readable bytes.
        let x = unsafe { p.cast::<[u8; 64]>().read_unaligned() };
        (x.map(|b| b & 15), x.map(|b| b >> 4))
    }
    #[inline(never)]
    unsafe fn crumbs(p: *const u8) -> Self::B {
        // SAFETY: the caller guarantees 16 readable bytes.
        let x = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        std::array::from_fn(|i| (x[i % 16] >> (2 * (i / 16))) & 3)
    }
    #[inline(never)]
    unsafe fn add_bits(x: Self::B, p: *const u8, value: u8) -> Self::B {
        // SAFETY: the caller guarantees 8 readable bytes.
        let mask = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        std::array::from_fn(|i| x[i] + value * ((mask[i / 8] >> (i % 8)) & 1))
    }
    #[inline(never)]
    unsafe fn add_high(lo: Self::B, hi: Self::B) -> Self::B {
        std::array::from_fn(|i| lo[i] + (hi[i] << 4))
    }
    #[inline(never)]
    unsafe fn bzero() -> Self::B {
        [0; 64]
    }
    #[inline(never)]
    unsafe fn bytes(p: *const u8) -> Self::B {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn table(levels: &[i8; 32]) -> Self::Table {
        levels.map(|level| (i32::from(level) + Self::BYTE_CENTRE) as u8)
    }
    #[inline(never)]
    unsafe fn lookup<const BITS: u32>(t: Self::Table, codes: Self::B) -> Self::B {
        codes.map(|c| t[usize::from(c)])
    }
    #[inline(never)]
    unsafe fn funnel(a: Self::B, b: Self::B, shift: u32) -> Self::B {
        std::array::from_fn(|i| (a[i] << shift) | (b[i] >> (8 - shift)))
    }
    #[inline(never)]
    unsafe fn lookup_pair(t: Self::Table, w: Self::B) -> Self::B {
        w.map(|w| t[usize::from(w & 15)].wrapping_add(t[16 + usize::from(w >> 4)]))
    }
    unsafe fn next_lane(x: Self::B, first: u8) -> Self::B {
        std::array::from_fn(|i| if i < 4 { first } else { x[i - 4] })
    }
    unsafe fn next_byte(x: Self::B, first: u8) -> Self::B {
        std::array::from_fn(|i| if i % 4 == 0 { first } else { x[i - 1] })
    }
    #[inline(never)]
    unsafe fn quad(p: *const i8) -> Self::Quad {
        // SAFETY: the caller guarantees 4 readable bytes.
        unsafe { p.cast::<Self::Quad>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn dot(acc: Self::I, codes: Self::B, q: Self::Quad) -> Self::I {
        std::array::from_fn(|lane| {
            (0..4).fold(acc[lane], |sum, j| sum + i32::from(codes[4 * lane + j]) * i32::from(q[j]))
        })
    }
    #[inline(never)]
    unsafe fn dot_full(acc: Self::I, codes: Self::B, q: Self::Quad) -> Self::I {
        // SAFETY: as this function.
        unsafe { Self::dot(acc, codes, q) }
    }
}
