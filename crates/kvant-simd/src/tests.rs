//! What all tiers have to agree about.

use super::*;
use std::marker::PhantomData;

struct Transposed<S>([[u8; 64]; 4], PhantomData<S>);

impl<S: Simd> Work<S> for Transposed<S> {
    type Output = [[i8; 64]; 4];

    unsafe fn run(self) -> [[i8; 64]; 4] {
        let mut out = [[0; 64]; 4];
        // SAFETY: the caller has asked for the tier; vectors are 64 bytes.
        unsafe {
            let turned = S::transpose_bytes(self.0.map(|x| S::bload(x.as_ptr())));
            for (out, turned) in out.iter_mut().zip(turned) {
                S::bstore(out.as_mut_ptr(), turned);
            }
        }
        out
    }
}

#[test]
fn bytes_go_into_lanes_on_every_tier() {
    // Row r, column c has the byte 16·r + c: lane r of vector c / 4 holds four columns.
    let rows = std::array::from_fn(|i| std::array::from_fn(|n| (16 * (n / 4) + 4 * i + n % 4) as u8));
    for tier in Tier::available() {
        // SAFETY: the tier is available.
        let got = with_tier!(tier, S => unsafe { S::call(Transposed::<S>(rows, PhantomData)) });
        for (n, byte) in got.as_flattened().iter().enumerate() {
            // Lane c of vector r / 4 holds four rows.
            let (c, r) = (n / 4 % 16, 4 * (n / 64) + n % 4);
            assert_eq!(*byte as u8, (16 * r + c) as u8, "{tier}, row {r}, column {c}");
        }
    }
}

/// Rotations by 1, 2, 4 and 8, and the first four lanes four times.
struct Moved<S>([f32; LANES], PhantomData<S>);

impl<S: Simd> Work<S> for Moved<S> {
    type Output = [[f32; LANES]; 5];

    unsafe fn run(self) -> [[f32; LANES]; 5] {
        let mut out = [[0.0; LANES]; 5];
        // SAFETY: the caller has asked for the tier; vectors are 16 floats.
        unsafe {
            let x = S::load(self.0.as_ptr());
            S::store(out[0].as_mut_ptr(), S::rotate_lanes::<1>(x));
            S::store(out[1].as_mut_ptr(), S::rotate_lanes::<2>(x));
            S::store(out[2].as_mut_ptr(), S::rotate_lanes::<4>(x));
            S::store(out[3].as_mut_ptr(), S::rotate_lanes::<8>(x));
            S::store(out[4].as_mut_ptr(), S::load4(self.0.as_ptr()));
        }
        out
    }
}

#[test]
fn lanes_move_alike_on_every_tier() {
    let x = std::array::from_fn(|lane| 1.0 + lane as f32);
    for tier in Tier::available() {
        // SAFETY: the tier is available.
        let got = with_tier!(tier, S => unsafe { S::call(Moved::<S>(x, PhantomData)) });
        for lane in 0..LANES {
            for (got, by) in got.iter().zip([1, 2, 4, 8]) {
                assert_eq!(got[lane], x[(lane + LANES - by) % LANES], "{tier}, by {by}, lane {lane}");
            }
            assert_eq!(got[4][lane], x[lane % 4], "{tier}, lane {lane}");
        }
    }
}

/// What the vocabulary for windows over codes gives: funnels by 1 to 7, a lookup, the two moves.
struct Windows<S>([[u8; 64]; 2], [i8; 32], PhantomData<S>);

impl<S: Simd> Work<S> for Windows<S> {
    type Output = Vec<[i8; 64]>;

    unsafe fn run(self) -> Vec<[i8; 64]> {
        let Windows([a, b], table, _) = self;
        let mut out = vec![[0; 64]; 10];
        // SAFETY: the caller has asked for the tier; vectors are 64 bytes.
        unsafe {
            let (a, b) = (S::bload(a.as_ptr()), S::bload(b.as_ptr()));
            for shift in 1..8 {
                S::bstore(out[shift - 1].as_mut_ptr(), S::funnel(a, b, shift as u32));
            }
            S::bstore(out[7].as_mut_ptr(), S::lookup_pair(S::table(&table), a));
            S::bstore(out[8].as_mut_ptr(), S::next_lane(a, 77));
            S::bstore(out[9].as_mut_ptr(), S::next_byte(a, 77));
        }
        out
    }
}

#[test]
fn windows_are_the_same_on_every_tier() {
    let noise = |n: usize, salt: usize| (n.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 7) as u8;
    let [a, b]: [[u8; 64]; 2] = [1, 2].map(|salt| std::array::from_fn(|n| noise(n, salt * 99_991)));
    let table: [i8; 32] = std::array::from_fn(|n| noise(n, 5) as i8);
    for tier in Tier::available() {
        // SAFETY: the tier is available.
        let got = with_tier!(tier, S => unsafe { S::call(Windows::<S>([a, b], table, PhantomData)) });
        // Both entries of a sum are re-centred.
        let centre = with_tier!(tier, S => 2 * S::BYTE_CENTRE);
        for n in 0..64 {
            for shift in 1..8 {
                let want = (u32::from(a[n]) << shift | u32::from(b[n]) >> (8 - shift)) as u8;
                assert_eq!(got[shift - 1][n] as u8, want, "{tier}, shift {shift}, byte {n}");
            }
            let entries = [usize::from(a[n] & 15), 16 + usize::from(a[n] >> 4)];
            let sum: i32 = entries.iter().map(|entry| i32::from(table[*entry])).sum();
            assert_eq!(got[7][n] as u8, (sum + centre) as u8, "{tier}, byte {n}");
            assert_eq!(got[8][n] as u8, if n < 4 { 77 } else { a[n - 4] }, "{tier}, byte {n}");
            assert_eq!(got[9][n] as u8, if n % 4 == 0 { 77 } else { a[n - 1] }, "{tier}, byte {n}");
        }
    }
}

/// Sixteen lanes of four codes times a quad, added to a start.
struct Dots<S> {
    codes: [u8; 64],
    quad: [i8; 4],
    start: i32,
    tier: PhantomData<S>,
}

impl<S: Simd> Work<S> for Dots<S> {
    /// By `dot`, and by `dot_full` for the same bytes less 128.
    type Output = [[i32; LANES]; 2];

    unsafe fn run(self) -> [[i32; LANES]; 2] {
        let mut out = [[0; LANES]; 2];
        // SAFETY: the caller has asked for the tier; vectors are 64 bytes, and 16 integers.
        unsafe {
            let (start, quad) = (S::isplat(self.start), S::quad(self.quad.as_ptr()));
            let low = self.codes.map(|code| code & 127);
            S::istore(out[0].as_mut_ptr(), S::dot(start, S::bload(low.as_ptr()), quad));
            S::istore(out[1].as_mut_ptr(), S::dot_full(start, S::bytes(self.codes.as_ptr()), quad));
        }
        out
    }
}

/// Whatever the bytes are, the ends of their ranges included: nothing saturates on the way.
#[test]
fn dot_products_are_exact_on_every_tier() {
    let ends = [0u8, 1, 127, 128, 129, 254, 255];
    let mut state = 3u64;
    for round in 0..400 {
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (state >> 56) as u8;
            if round % 2 == 0 { ends[usize::from(byte) % ends.len()] } else { byte }
        };
        let codes: [u8; 64] = std::array::from_fn(|_| byte());
        let quad: [i8; 4] = std::array::from_fn(|_| byte() as i8);
        let start = 1000 * round - 7;
        let sum = |lane: usize, level: &dyn Fn(u8) -> i32| -> i32 {
            let four = codes[4 * lane..][..4].iter().zip(quad);
            start + four.map(|(&code, q)| level(code) * i32::from(q)).sum::<i32>()
        };
        for tier in Tier::available() {
            let (found, centre) = with_tier!(tier, S => {
                let work = Dots::<S> { codes, quad, start, tier: PhantomData };
                // SAFETY: the tier is available.
                (unsafe { S::call(work) }, S::BYTE_CENTRE)
            });
            for lane in 0..LANES {
                assert_eq!(found[0][lane], sum(lane, &|code| i32::from(code & 127)), "{tier}");
                // A stored byte is its level and 128; what the tier reads has its own centre.
                let level = |code| i32::from(code) - 128 + centre;
                assert_eq!(found[1][lane], sum(lane, &level), "{tier}, full bytes");
            }
        }
    }
}

/// Eight quads of codes below 2^BITS at once.
struct Run<S, const BITS: u32>([[u8; 64]; 8], [i8; 32], PhantomData<S>);

impl<S: Simd, const BITS: u32> Work<S> for Run<S, BITS> {
    type Output = [[i32; LANES]; 8];

    /// After each number of quads from one to eight.
    unsafe fn run(self) -> [[i32; LANES]; 8] {
        let mut out = [[0; LANES]; 8];
        // SAFETY: the caller has asked for the tier; vectors are 64 bytes, and 16 integers.
        unsafe {
            let codes = self.0.map(|codes| S::bload(codes.as_ptr()));
            for (count, out) in (1..=8).zip(&mut out) {
                let sum = S::dot_run::<BITS>(S::isplat(5), &codes[..count], self.1.as_ptr());
                S::istore(out.as_mut_ptr(), sum);
            }
        }
        out
    }
}

/// At the ends of the ranges, where 16 bits are fullest.
fn runs_are_exact<const BITS: u32>() {
    let most = (1u16 << BITS) as u8 - 1;
    for fill in [-128i8, 127, -1, 99] {
        let codes: [[u8; 64]; 8] = std::array::from_fn(|j| {
            std::array::from_fn(|i| if fill == 99 { (i * 7 + j) as u8 & most } else { most })
        });
        let quads: [i8; 32] =
            std::array::from_fn(|i| if fill == 99 { (i as i8).wrapping_mul(37) } else { fill });
        for tier in Tier::available() {
            // SAFETY: the tier is available.
            let found = with_tier!(tier, S => unsafe { S::call(Run::<S, BITS>(codes, quads, PhantomData)) });
            for count in 1..=8 {
                for lane in 0..LANES {
                    let product = |i: usize| i32::from(codes[i / 4][4 * lane + i % 4]) * i32::from(quads[i]);
                    let want = 5 + (0..4 * count).map(product).sum::<i32>();
                    assert_eq!(found[count - 1][lane], want, "{tier}, {BITS} bits, {count} quads of {fill}");
                }
            }
        }
    }
}

#[test]
fn runs_of_dot_products_are_exact_on_every_tier() {
    runs_are_exact::<2>();
    runs_are_exact::<4>();
    runs_are_exact::<5>();
    runs_are_exact::<6>();
    runs_are_exact::<7>();
}

/// All bytes, looked up by four bits, by five, and by both nibbles of a byte.
struct Lookups<S>([i8; 32], [u8; 64], PhantomData<S>);

impl<S: Simd> Work<S> for Lookups<S> {
    type Output = [[i8; 64]; 3];

    unsafe fn run(self) -> [[i8; 64]; 3] {
        let mut out = [[0; 64]; 3];
        // SAFETY: the caller has asked for the tier; vectors are 64 bytes.
        unsafe {
            let table = S::table(&self.0);
            let codes = |most: u8| S::bload(self.1.map(|code| code & most).as_ptr());
            S::bstore(out[0].as_mut_ptr(), S::lookup::<4>(table, codes(15)));
            S::bstore(out[1].as_mut_ptr(), S::lookup::<5>(table, codes(31)));
            S::bstore(out[2].as_mut_ptr(), S::lookup_pair(table, codes(255)));
        }
        out
    }
}

#[test]
fn tables_are_looked_up_alike_on_every_tier() {
    let levels: [i8; 32] = std::array::from_fn(|i| (i as i8).wrapping_mul(37).wrapping_sub(90));
    for first in (0..=255u8).step_by(64) {
        let codes: [u8; 64] = std::array::from_fn(|i| first + i as u8);
        for tier in Tier::available() {
            let (found, centre) = with_tier!(tier, S => {
                // SAFETY: the tier is available.
                (unsafe { S::call(Lookups::<S>(levels, codes, PhantomData)) }, S::BYTE_CENTRE)
            });
            for (i, code) in codes.into_iter().map(usize::from).enumerate() {
                let level = |at: usize| levels[at].wrapping_add(centre as i8);
                assert_eq!(found[0][i], level(code % 16), "{tier}, four bits of {code}");
                assert_eq!(found[1][i], level(code % 32), "{tier}, five bits of {code}");
                let pair = level(code % 16).wrapping_add(level(16 + code / 16));
                assert_eq!(found[2][i], pair, "{tier}, both nibbles of {code}");
            }
        }
    }
}
