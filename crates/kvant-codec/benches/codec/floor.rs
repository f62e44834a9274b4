//! Attention over pages in cache, beside the floor of its loops: the same loads, logic and products, and nothing else.
//!
//! The floor walks the very pages that attention reads, unpacks every code and multiplies it with a byte of each query head, as
//! many to a code as the codec's queries and weights are rounded to. Those bytes are given: nothing is folded, rounded, scaled,
//! reduced or stored for a page. Integer sums stay in registers from the first page to the last, so tokens (or channels) of
//! all pages that share a lane share a sum. Every pass's sums are compared with those of a loop over single codes.

use crate::attend::{Contender, QUERY_HEADS as HEADS, Verbs};
use crate::rows::gaussian;
use crate::{Options, time};
use kvant_codec::format::{PackedFormat, PageFormat};
use kvant_codec::{PageCodec, Side, Tier};
use kvant_simd::{LANES, Simd, Work, with_tier};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

const SPECS: [&str; 4] = ["int4", "q4_0", "k8v4", "int8"];
/// Tokens in cache: at most 1.2 MB of pages, which the second-level cache holds, and one segment more than a few.
const CONTEXT: usize = 4096;
/// Passes over the context that are timed together.
const PASSES: usize = 8;
/// The most channels or tokens that a sum runs over.
const LONGEST: usize = 128;
/// The most units that have sums of their own.
const UNITS: usize = 4;

/// Sums by plane of the bytes, head, unit and lane.
type Sums = [[[[i32; LANES]; UNITS]; HEADS]; 2];

/// One side of a codec: its pages, and the bytes that meet their codes.
struct Floor<'a> {
    format: Arc<PackedFormat>,
    pages: &'a [u8],
    bytes: Box<[[[i8; LONGEST]; 2]; HEADS]>,
    expected: Box<Sums>,
    tier: Tier,
}

impl<'a> Floor<'a> {
    /// `None` for pages whose codes are not all numbers of 4 bits, or all of 8.
    fn new(codec: &dyn PageCodec, pages: &'a [u8], tier: Tier) -> Option<Floor<'a>> {
        let Some(PageFormat::Packed(format)) = codec.format() else { return None };
        let bits = format.spans.first()?.bits;
        let alike = format.spans.iter().all(|span| span.bits == bits && !span.meaning.is_table());
        if !alike || !(bits == 4 || bits == 8) || format.dim > LONGEST || format.tokens > LONGEST {
            return None;
        }
        let mut numbers = gaussian(HEADS * 2 * LONGEST, 11).into_iter();
        let mut next = || numbers.next().map_or(0, |x| (x * 40.0) as i8);
        let bytes = Box::new([(); HEADS].map(|()| [(); 2].map(|()| [(); LONGEST].map(|()| next()))));
        let mut floor = Floor { format, pages, bytes, expected: Box::default(), tier };
        floor.expected = floor.naive();
        Some(floor)
    }

    fn bits(&self) -> u8 {
        self.format.spans[0].bits
    }

    /// Bytes that a number of a query or a weight is rounded to against these codes.
    fn planes(&self) -> usize {
        if self.bits() == 4 { 1 } else { 2 }
    }

    /// Units side by side that have sums of their own: tiles of a key, octets of a value.
    fn units(&self) -> usize {
        let tiles = with_tier!(self.tier, S => S::TILES);
        if tiles >= 4 { 4 / self.planes() } else { 1 }
    }

    /// The definition, one code at a time.
    fn naive(&self) -> Box<Sums> {
        let PackedFormat { side, tokens, ref spans, .. } = *self.format;
        let (unit_bytes, centre) =
            (16 * usize::from(self.bits()), with_tier!(self.tier, S => S::BYTE_CENTRE));
        let mut sums = Box::<Sums>::default();
        for page in self.pages.chunks_exact(self.format.bytes) {
            for span in spans {
                let units = side.units(tokens);
                for (at, unit) in page[span.codes..]
                    .chunks_exact(unit_bytes)
                    .enumerate()
                    .take(span.len / side.row() * units)
                {
                    let (row, place) = (at / units, at % units);
                    for (half, index) in (0..2).flat_map(|half| (0..64).map(move |index| (half, index))) {
                        let code = match self.bits() {
                            4 => i32::from(unit[index] >> (4 * half) & 15),
                            _ => i32::from(unit[64 * half + index]) - 128 + centre,
                        };
                        let meets = match side {
                            Side::Key => span.first + 8 * row + 4 * half + index % 4,
                            Side::Value => 8 * place + 4 * half + index % 4,
                        };
                        for (plane, head) in (0..self.planes()).flat_map(|p| (0..HEADS).map(move |h| (p, h)))
                        {
                            let sum = &mut sums[plane][head][place % self.units()][index / 4];
                            *sum += code * i32::from(self.bytes[head][plane][meets]);
                        }
                    }
                }
            }
        }
        sums
    }

    /// One pass over all pages.
    ///
    /// # Panics
    /// When the sums are not those of the definition.
    fn pass(&self) {
        // SAFETY: `with_tier!` names tiers that this CPU has; pages and bytes have the format's sizes.
        let sums = with_tier!(self.tier, S => unsafe {
            match (self.format.side, self.bits(), self.units()) {
                (Side::Key, 4, 4) => S::call(Pass::<S, true, 4, 4>::new(self)),
                (Side::Key, 4, _) => S::call(Pass::<S, true, 4, 1>::new(self)),
                (Side::Key, _, 2) => S::call(Pass::<S, true, 8, 2>::new(self)),
                (Side::Key, _, _) => S::call(Pass::<S, true, 8, 1>::new(self)),
                (Side::Value, 4, 4) => S::call(Pass::<S, false, 4, 4>::new(self)),
                (Side::Value, 4, _) => S::call(Pass::<S, false, 4, 1>::new(self)),
                (Side::Value, _, 2) => S::call(Pass::<S, false, 8, 2>::new(self)),
                (Side::Value, _, _) => S::call(Pass::<S, false, 8, 1>::new(self)),
            }
        });
        assert!(sums == *self.expected, "the floor's sums are wrong");
    }
}

/// A pass over pages of keys or values in codes of so many bits, with sums for N units.
struct Pass<'a, S, const KEY: bool, const BITS: usize, const N: usize> {
    floor: &'a Floor<'a>,
    simd: PhantomData<S>,
}

impl<'a, S, const KEY: bool, const BITS: usize, const N: usize> Pass<'a, S, KEY, BITS, N> {
    fn new(floor: &'a Floor<'a>) -> Self {
        Self { floor, simd: PhantomData }
    }
}

impl<S: Simd, const KEY: bool, const BITS: usize, const N: usize> Work<S> for Pass<'_, S, KEY, BITS, N> {
    type Output = Sums;

    #[inline(always)]
    unsafe fn run(self) -> Sums {
        let Floor { ref format, pages, ref bytes, .. } = *self.floor;
        let (side, units, unit) = (format.side, format.side.units(format.tokens), 16 * BITS);
        // SAFETY: units of all spans lie within their page, and there are bytes for all channels and tokens.
        unsafe {
            let mut sums = [[[S::izero(); N]; HEADS]; 2];
            for page in pages.chunks_exact(format.bytes) {
                for span in &format.spans {
                    let mut codes = page.as_ptr().add(span.codes);
                    for row in 0..span.len / side.row() {
                        for place in (0..units).step_by(N) {
                            for n in 0..N {
                                let (a, b) = match BITS {
                                    4 => S::nibbles(codes),
                                    _ => (S::bytes(codes), S::bytes(codes.add(64))),
                                };
                                codes = codes.add(unit);
                                let meets = if KEY { span.first + 8 * row } else { 8 * (place + n) };
                                for plane in 0..BITS / 4 {
                                    for h in 0..HEADS {
                                        let (sum, byte) =
                                            (&mut sums[plane][h][n], bytes[h][plane].as_ptr().add(meets));
                                        *sum = product::<S, BITS>(*sum, a, byte);
                                        *sum = product::<S, BITS>(*sum, b, byte.add(4));
                                    }
                                }
                            }
                        }
                    }
                }
            }
            let mut out = Sums::default();
            for (plane, head, n) in
                (0..2).flat_map(|p| (0..HEADS).flat_map(move |h| (0..N).map(move |n| (p, h, n))))
            {
                S::istore(out[plane][head][n].as_mut_ptr(), sums[plane][head][n]);
            }
            out
        }
    }
}

/// Adds the products of four bytes with the codes of sixteen lanes.
///
/// # Safety
/// Four bytes are readable; the CPU has the tier.
#[inline(always)]
unsafe fn product<S: Simd, const BITS: usize>(sum: S::I, codes: S::B, bytes: *const i8) -> S::I {
    // SAFETY: the caller's contract.
    unsafe {
        let quad = S::quad(bytes);
        if BITS == 8 { S::dot_full(sum, codes, quad) } else { S::dot(sum, codes, quad) }
    }
}

/// Prints the table for every dimension.
pub fn run(options: &Options) {
    for dim in &options.dims {
        println!(
            "floor: attention over {CONTEXT} tokens in cache, d={dim}, {HEADS} query heads, beside its loads, logic and products"
        );
        println!("{:<9} {:<7} {:>12} {:>9} {:>7}", "codec", "tier", "attention ns", "floor ns", "ratio");
        for spec in SPECS.iter().filter(|spec| spec.contains(&options.only)) {
            for tier in options.tiers().filter(|tier| *tier != Tier::Scalar) {
                let contender = Contender::new(spec, tier, *dim, 1, CONTEXT);
                let sides = [(&contender.key, &contender.keys), (&contender.value, &contender.values)];
                let [Some(keys), Some(values)] =
                    sides.map(|(codec, pages)| Floor::new(codec.as_ref(), pages, tier))
                else {
                    continue;
                };
                let mut verbs = Verbs::new(&contender);
                let mut best = [Duration::MAX; 2];
                for _ in 0..options.repeats * 10 {
                    let attention = time(|| (0..PASSES).for_each(|_| verbs.pass()));
                    let floor = time(|| {
                        for _ in 0..PASSES {
                            keys.pass();
                            values.pass();
                        }
                    });
                    best = [best[0].min(attention), best[1].min(floor)];
                }
                let [attention, floor] =
                    best.map(|time| time.as_secs_f64() * 1e9 / (PASSES * contender.vectors()) as f64);
                println!(
                    "{:<9} {:<7} {attention:>12.2} {floor:>9.2} {:>7.2}",
                    contender.name,
                    tier.name(),
                    attention / floor
                );
            }
        }
        println!();
    }
}
