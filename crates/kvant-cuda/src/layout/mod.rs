//! Pages as the device's lanes read them, and the way from and to the canonical layout.
//!
//! A device swizzles codes, scales and rows anew; it never rounds. So a layout is a permutation: of the halves (16-bit numbers), the
//! nibbles and the bits of a page. [`PageSwizzle`] is that permutation for one [`PageFormat`], built from two descriptions of the same thing: where
//! `docs/page-format.md` of kvant-codec puts a code, and where `kernels/pages.cuh` has it. Both pages have the same size.

mod exact;
mod packed;
mod planned;

pub use planned::{code_bytes, is_planned, widths as planned_widths};

use kvant_codec::format::{ExactFormat, PageFormat};
use std::fmt;

/// Tokens of a page on the device.
pub const PAGE_TOKENS: usize = 64;

/// Tokens of a page of `klt` keys as a plan has it by default: two entries of a page table name it, each with 64 tokens.
pub const PAIRED_TOKENS: usize = 128;

/// Page tables count in units of this many bytes.
pub const UNIT: usize = 128;

/// Channels of a head that there are kernels for.
pub const DIMS: [usize; 7] = [64, 80, 96, 128, 192, 256, 512];

/// Why a page cannot lie on the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the CUDA backend has no kernels for {what}; it has them for f16, int4, int8, k8v4 and klt (`ch4`, `ch8` and `klt` keys, `rot4g32` and `sym8g32` values), of 64 tokens (klt also 128) and 64, 80, 96, 128, 192, 256 or 512 channels (klt 64 or 128)"
)]
pub struct Unsupported {
    /// What about the page it is.
    pub what: String,
}

/// Where every number of a canonical page lies on the device.
#[derive(Clone, Debug)]
pub struct PageSwizzle {
    bytes: usize,
    /// (canonical, device), counted in halves.
    halves: Vec<(u32, u32)>,
    /// (canonical, device), counted in nibbles, the low one of a byte first.
    nibbles: Vec<(u32, u32)>,
    /// (canonical, device), counted in bits, the lowest of a byte first.
    bits: Vec<(u32, u32)>,
}

/// How a closed page holds its numbers, by what kernels are named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Plain f16.
    Exact,
    /// Codes of 4 or 8 bits under scales.
    Codes(u8),
    /// Keys in the basis of a plan, of widths by channels.
    Planned,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageKind::Exact => f.write_str("f16"),
            PageKind::Codes(bits) => write!(f, "{bits}-bit"),
            PageKind::Planned => f.write_str("klt"),
        }
    }
}

impl PageKind {
    /// The kind of a format's pages.
    ///
    /// # Errors
    /// As [`PageSwizzle::of`].
    pub fn of(format: &PageFormat) -> Result<PageKind, Unsupported> {
        match format {
            PageFormat::Exact(_) => Ok(PageKind::Exact),
            PageFormat::Packed(format) if is_planned(format) => {
                planned_widths(format).map(|_| PageKind::Planned)
            }
            PageFormat::Packed(format) => packed::bits(format).map(PageKind::Codes),
            PageFormat::Trellis(_) => Err(Unsupported { what: "pages of a trellis".into() }),
        }
    }

    /// The part of kernels' names for such keys beside such values.
    pub fn codec(keys: PageKind, values: PageKind) -> Option<&'static str> {
        match (keys, values) {
            (PageKind::Exact, PageKind::Exact) => Some("f16"),
            (PageKind::Codes(4), PageKind::Codes(4)) => Some("int4"),
            (PageKind::Codes(8), PageKind::Codes(8)) => Some("int8"),
            (PageKind::Codes(8), PageKind::Codes(4)) => Some("k8v4"),
            (PageKind::Planned, PageKind::Codes(4)) => Some("klt"),
            _ => None,
        }
    }
}

impl PageSwizzle {
    /// The permutation of a format's pages.
    ///
    /// # Errors
    /// When no kernel reads such pages: the error says what about them it is.
    pub fn of(format: &PageFormat) -> Result<PageSwizzle, Unsupported> {
        let refuse = |what: String| Err(Unsupported { what });
        if let PageFormat::Packed(format) = format
            && is_planned(format)
        {
            return planned::swizzle(format);
        }
        // Exact rows are tiles of 16 tokens, however many a page has.
        let is_exact = matches!(format, PageFormat::Exact(_)) && format.tokens().is_multiple_of(16);
        if format.tokens() != PAGE_TOKENS && !is_exact {
            return refuse(format!("pages of {} tokens", format.tokens()));
        }
        if !DIMS.contains(&format.dim()) {
            return refuse(format!("heads of {} channels", format.dim()));
        }
        match format {
            PageFormat::Exact(format) => Ok(exact::swizzle(format)),
            PageFormat::Packed(format) => packed::swizzle(format),
            PageFormat::Trellis(_) => refuse("pages of a trellis".into()),
        }
    }

    /// The permutation of the page of the sinks, which has fewer tokens than others: the first tiles of an exact page.
    ///
    /// # Errors
    /// As [`PageSwizzle::of`].
    pub fn of_sinks(format: &ExactFormat) -> Result<PageSwizzle, Unsupported> {
        if !DIMS.contains(&format.dim) || !format.tokens.is_multiple_of(16) || format.tokens > PAGE_TOKENS {
            let what = format!("sinks in a page of {} tokens and {} channels", format.tokens, format.dim);
            return Err(Unsupported { what });
        }
        Ok(exact::swizzle(format))
    }

    /// No permutation: pages of so many bytes lie on the device as the format says.
    pub fn canonical(bytes: usize) -> PageSwizzle {
        let halves = (0..bytes.div_ceil(2) as u32).map(|half| (half, half)).collect();
        PageSwizzle { bytes, halves, nibbles: Vec::new(), bits: Vec::new() }
    }

    /// Bytes of a page, in either layout.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A canonical page as the device has it.
    ///
    /// # Panics
    /// When a buffer is not of the page's size.
    pub fn to_device(&self, canonical: &[u8], device: &mut [u8]) {
        self.carry(canonical, device, |(canonical, device)| (canonical, device));
    }

    /// A page of the device in the canonical layout.
    ///
    /// # Panics
    /// When a buffer is not of the page's size.
    pub fn to_canonical(&self, device: &[u8], canonical: &mut [u8]) {
        self.carry(device, canonical, |(canonical, device)| (device, canonical));
    }

    fn carry(&self, from: &[u8], to: &mut [u8], way: impl Fn((u32, u32)) -> (u32, u32)) {
        assert_eq!((from.len(), to.len()), (self.bytes, self.bytes), "pages of {} bytes", self.bytes);
        to.fill(0);
        for pair in &self.halves {
            let (a, b) = way(*pair);
            let (a, b) = (2 * a as usize, 2 * b as usize);
            to[b..b + 2].copy_from_slice(&from[a..a + 2]);
        }
        for pair in &self.nibbles {
            let (a, b) = way(*pair);
            let code = (from[a as usize / 2] >> (4 * (a % 2))) & 15;
            to[b as usize / 2] |= code << (4 * (b % 2));
        }
        for pair in &self.bits {
            let (a, b) = way(*pair);
            let bit = (from[a as usize / 8] >> (a % 8)) & 1;
            to[b as usize / 8] |= bit << (b % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::plan::{Klt, Plan, PlannedHead, PlannedSlot, SideCalibration};
    use kvant_cache::{CacheLayout, KvShape, Slots};
    use kvant_codec::{Dense, KvSpec, PageCodec, Side};
    use proptest::prelude::*;
    use std::sync::{Arc, LazyLock};

    fn codec(spec: &str, side: Side, dim: usize) -> Box<dyn PageCodec> {
        let spec: KvSpec = spec.parse().unwrap();
        match side {
            Side::Key => spec.key.build(side, dim).unwrap(),
            Side::Value => spec.value.build(side, dim).unwrap(),
        }
    }

    /// Keys of a plan: every width there is, and channels without codes.
    fn planned(dim: usize, budget: &str, decay: f32) -> PageFormat {
        let basis =
            Dense::of(dim, (0..dim * dim).map(|n| if n / dim == n % dim { 2.0 } else { 0.0 }).collect());
        let findings = SideCalibration {
            mean: Some(vec![0.5; dim]),
            klt: Some(Klt {
                basis: Arc::new(basis.unwrap()),
                variances: (0..dim).map(|c| decay.powi(c as i32)).collect(),
            }),
            ..SideCalibration::default()
        };
        let head = PlannedHead { key: findings.clone(), value: findings };
        let slot = PlannedSlot { key_dim: dim, value_dim: dim, heads: vec![head] };
        let policy = format!("k={budget},v=rot4g32").parse().unwrap();
        let plan = Arc::new(Plan::new([7; 32], policy, "a test", vec![slot]).unwrap());
        let shape = KvShape { kv_heads: 1, key_dim: dim, value_dim: dim, window: None };
        let layout = CacheLayout::new(&plan.with(plan.policy()), &Slots::uniform(1, shape)).unwrap();
        layout.slots()[0].heads()[0].side(Side::Key).unwrap().codec().format().unwrap()
    }

    fn each() -> &'static [(PageSwizzle, PageFormat)] {
        static EACH: LazyLock<Vec<(PageSwizzle, PageFormat)>> = LazyLock::new(all);
        &EACH
    }

    fn all() -> Vec<(PageSwizzle, PageFormat)> {
        let plain = ["int4", "int8", "k8v4", "f16"].into_iter().flat_map(|spec| {
            [Side::Key, Side::Value].into_iter().flat_map(move |side| {
                DIMS.into_iter().map(move |dim| codec(spec, side, dim).format().unwrap())
            })
        });
        let budgets = [
            ("klt4.25:p64", 0.97),
            ("klt3:p64", 0.7),
            ("klt2:p64", 0.99),
            ("klt5:p64", 0.95),
            ("klt4.25", 0.97),
            ("klt3", 0.7),
        ];
        let plans = [64, 128]
            .into_iter()
            .flat_map(move |dim| budgets.map(|(budget, decay)| planned(dim, budget, decay)));
        plain.chain(plans).map(|format| (PageSwizzle::of(&format).unwrap(), format)).collect()
    }

    #[test]
    fn a_plan_brings_every_width() {
        let mut met = std::collections::BTreeSet::new();
        for (_, format) in each() {
            if let PageFormat::Packed(format) = format
                && is_planned(format)
            {
                met.extend(planned_widths(format).unwrap());
            }
        }
        assert_eq!(met.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5, 6, 8]);
        for (budget, dim, what) in [
            ("klt4.25:p32", 128, "32 tokens"),
            ("klt4.25:p64", 96, "96 channels"),
            ("klt6:p64", 128, "5.25 bits"),
            ("klt6", 64, "5.25 bits"),
            ("klt4.25:p64,s32", 64, "f16 scale"),
        ] {
            let error = PageSwizzle::of(&planned(dim, budget, 0.95)).unwrap_err().to_string();
            assert!(error.contains(what), "{budget}: {error}");
        }
    }

    #[test]
    fn a_deal_moves_every_nibble_of_a_page_once() {
        for (swizzle, format) in each() {
            for place in [|pair: &(u32, u32)| pair.0, |pair: &(u32, u32)| pair.1] {
                let mut seen = vec![0u8; 2 * swizzle.bytes()];
                swizzle
                    .halves
                    .iter()
                    .for_each(|pair| (0..4).for_each(|i| seen[4 * place(pair) as usize + i] += 1));
                swizzle.nibbles.iter().for_each(|pair| seen[place(pair) as usize] += 1);
                let mut bits = vec![0u8; 4 * seen.len()];
                swizzle.bits.iter().for_each(|pair| bits[place(pair) as usize] += 1);
                for (nibble, bits) in seen.iter_mut().zip(bits.chunks_exact(4)) {
                    assert!(bits.iter().all(|n| *n == bits[0]), "{format:?}");
                    *nibble += bits[0];
                }
                assert!(seen.iter().all(|n| *n == 1), "{format:?}");
            }
        }
    }

    #[test]
    fn the_sinks_are_the_first_tokens_of_an_exact_page() {
        for (side, dim) in DIMS.into_iter().flat_map(|dim| [(Side::Key, dim), (Side::Value, dim)]) {
            let format = |tokens: &str| match codec(&format!("f16:p{tokens}"), side, dim).format().unwrap() {
                PageFormat::Exact(format) => format,
                other => panic!("{other:?}"),
            };
            let (small, whole) = (format("32"), format("64"));
            let rows: Vec<u16> = (0..32 * dim as u16).collect(); // (tokens, dim)
            let canonical = |format: &ExactFormat| {
                let mut page = vec![0; format.bytes()];
                for (i, number) in rows.iter().enumerate() {
                    let (token, channel) = (i / dim, i % dim);
                    let at = match side {
                        Side::Key => channel * format.tokens + token,
                        Side::Value => i,
                    };
                    page[2 * at..2 * at + 2].copy_from_slice(&number.to_le_bytes());
                }
                page
            };
            let (mut sinks, mut page) = (vec![0; small.bytes()], vec![0; whole.bytes()]);
            PageSwizzle::of_sinks(&small).unwrap().to_device(&canonical(&small), &mut sinks);
            PageSwizzle::of(&PageFormat::Exact(whole)).unwrap().to_device(&canonical(&whole), &mut page);
            assert_eq!(sinks, page[..sinks.len()], "{side:?} {dim}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(seed in any::<u64>()) {
            for (swizzle, _) in each() {
                let page: Vec<u8> = kvant_codec::split_mix(seed).flat_map(u64::to_le_bytes).take(swizzle.bytes()).collect();
                let (mut device, mut back) = (vec![0; page.len()], vec![0; page.len()]);
                swizzle.to_device(&page, &mut device);
                swizzle.to_canonical(&device, &mut back);
                prop_assert_eq!(&back, &page);
                prop_assert!(device != page);
            }
        }
    }

    #[test]
    fn what_has_no_kernel_is_refused_by_name() {
        for (spec, dim, what) in [
            ("ch3", 128, "3 bits"),
            ("kivi4", 128, "32 tokens"),
            ("int4", 72, "72 channels"),
            ("int4", 320, "320 channels"),
            ("q4_0", 128, "scale"),
        ] {
            let format = codec(spec, Side::Key, dim).format().unwrap();
            let error = PageSwizzle::of(&format).unwrap_err().to_string();
            assert!(error.contains(what), "{spec}: {error}");
        }
    }
}
