//! Pages written and encoded on the device against the codecs of the host.

use super::{Random, gpu, run};
use crate::buffer::Buffer;
use crate::coding::Coding;
use crate::device::Gpu;
use crate::layout::LayoutKernels;
use crate::pages::GpuPages;
use crate::recorder::Grid;
use crate::side_kernels::SideKernels;
use kvant_cache::{CacheLayout, KvShape, PageId, PageKind, PageStore, Policy, SideCodecs, Slots};
use kvant_codec::format::{Linear, PackedFormat};
use kvant_codec::{PageCodec, PageFormat, Rotation, Rule, ScaleFormat, Side};
use std::sync::Arc;

fn layout(policy: &str, dim: usize) -> CacheLayout {
    let policy: Policy = policy.parse().unwrap();
    let slots = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: dim, value_dim: dim, window: None });
    CacheLayout::new(&policy, &slots).unwrap()
}

pub(super) struct Device {
    pub gpu: Gpu,
    pub pages: Arc<GpuPages>,
}

impl Device {
    pub(super) fn new(gpu: Gpu) -> Device {
        Device { pages: GpuPages::new(&gpu, None), gpu }
    }

    /// Rows of a kv head written in two goes, then encoded: the exact page and the coded one, of so many bytes.
    pub(super) fn encoded(
        &self,
        side: &SideKernels,
        (head, bytes): (usize, usize),
        rows: &[f32],
    ) -> (Vec<u8>, Vec<u8>, u32) {
        let (gpu, dim, tokens) = (&self.gpu, side.dim(), side.tokens());
        let exact_bytes = tokens * dim * side.exact.element.bytes();
        let exact = self.pages.take(PageKind::BYTES, exact_bytes).unwrap();
        let coded = self.pages.take(PageKind::BYTES, bytes).unwrap();
        let have = rows.len() / dim;
        let cut = have / 3;
        let record =
            |first: usize, count: usize| [exact.0 as u32, 1, first as u32, first as u32, count as u32, 0];
        let records = [record(0, cut), record(cut, have - cut)];
        let plan: Vec<u32> = records
            .concat()
            .into_iter()
            .chain([exact.0 as u32, have as u32, coded.0 as u32, head as u32, 7])
            .collect();
        let plan = Buffer::of_words(gpu, "plan", &plan);
        let (x, status) = (Buffer::of_floats(gpu, "x", rows), Buffer::new(gpu, "status", 16));
        let buffers = self.pages.buffers();
        let pages: Vec<&Buffer> = buffers.iter().map(|buffer| &**buffer).collect();
        let largest = side.exact.element.largest().to_bits();
        run(gpu, |recorder| {
            let kernel = side.append_kernel(gpu, pages.len());
            let bound = [&[&plan, &x, &status], &pages[..]].concat();
            for (at, count) in [(0, 1), (6, 1)] {
                recorder.dispatch(
                    &kernel,
                    &bound,
                    &[at, count, dim as u32, 0, dim as u32, 7, largest],
                    Grid(1, 1, 1),
                );
            }
            for call in side.encode_calls(gpu, (&plan, &status), (1, pages.len())) {
                let bound = [&call.bound, &pages[..]].concat();
                recorder.dispatch(&call.kernel, &bound, &[12, 1], call.grid);
            }
        });
        let read = |page: PageId, len: usize| {
            let mut bytes = vec![0; len];
            self.pages.read(page, &mut bytes);
            bytes
        };
        let mark = super::floats(gpu, &status, 1)[0].to_bits();
        let both = (read(exact, exact_bytes), read(coded, bytes), mark);
        self.pages.give_back(exact, exact_bytes);
        self.pages.give_back(coded, bytes);
        both
    }
}

/// The same by the codecs of the host, and the coded page decoded.
pub(super) fn by_host(codecs: &SideCodecs, rows: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let (exact, codec) = (codecs.exact(), codecs.codec());
    let (dim, tokens) = (codec.dim(), codec.page_tokens());
    let mut page = vec![0; exact.page_bytes()];
    exact.write(rows, dim, 0, rows.len() / dim, &mut page).unwrap();
    let mut numbers = vec![0.0; tokens * dim];
    exact.decode(&page, &mut numbers).unwrap();
    for token in rows.len() / dim..tokens {
        numbers.copy_within((rows.len() / dim - 1) * dim..rows.len() / dim * dim, token * dim);
    }
    let mut coded = vec![0; codec.page_bytes()];
    codec.encode(&numbers, &mut coded).unwrap();
    (page, coded)
}

fn decoded(codec: &dyn PageCodec, page: &[u8]) -> Vec<f32> {
    let mut rows = vec![0.0; codec.page_tokens() * codec.dim()];
    codec.decode(page, &mut rows).unwrap();
    rows
}

/// Rows with channels of different sizes, as keys have them.
pub(super) fn rows(random: &mut Random, tokens: usize, dim: usize) -> Vec<f32> {
    (0..tokens * dim)
        .map(|n| random.number() * [1.0, 0.1, 7.0, 2.0][n % dim % 4] + if n % dim == 5 { 3.0 } else { 0.0 })
        .collect()
}

#[test]
pub(super) fn pages_are_those_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let device = Device::new(gpu);
    let (fused, random) = (fuses(&device.gpu), &mut Random::new(7));
    for (policy, dim) in [
        ("f16", 80),
        ("bf16", 9),
        ("f32", 7),
        ("int8", 64),
        ("int8", 80),
        ("int4", 16),
        ("int4", 64),
        ("int4", 80),
        ("int4", 128),
        ("k8v4", 72),
        ("k=ch3:fitmax,v=rot5g32:fitasym", 48),
        ("k=rot2g32,v=ch5:srht,p128", 48),
        ("kivi2", 72),
        ("kivi3", 16),
        ("k8v2", 64),
        ("v3", 80),
        ("tq3", 128),
        ("tq3", 40),
        ("asym4g32", 72),
        ("srft4g32", 128),
        ("srft4g32", 64),
        ("srft4g32", 80),
        ("srft4g32", 46),
        ("srft8", 18),
        ("k=srft5g32:p32,v=srft3:p128", 256),
        ("qjl", 64),
        ("nf4", 48),
        ("uniform4", 64),
        ("q5_1", 128),
        ("q8_0", 64),
        ("chg4", 64),
        ("k=sym4g32:s32,v=ch5:p128", 48),
        ("iq4", 64),
        ("iq4_nl", 128),
    ] {
        let layout = layout(policy, dim);
        let kernels = match LayoutKernels::new(&device.gpu, &layout) {
            Ok(kernels) => kernels,
            Err(refused) => panic!("{policy}: {refused}"),
        };
        let slot = kernels.slots[0].as_ref().unwrap();
        for (side, of) in [(Side::Key, &slot.key), (Side::Value, &slot.value)] {
            let codecs = layout.slots()[0].heads()[0].side(side).unwrap();
            for have in [of.tokens(), 19] {
                let rows = rows(random, have, dim);
                let (exact, coded, mark) = device.encoded(of, (0, of.format.bytes()), &rows);
                let (host_exact, host_coded) = by_host(codecs, &rows);
                assert!(exact == host_exact, "{policy} {side:?} {dim}: exact pages differ");
                assert_eq!(mark, 0);
                let Coding::Packed(format) = &of.format else { continue };
                let place = format!("{policy} {side:?} {dim} {have}");
                let is_exact = is_exact(fused, codecs.codec(), format);
                compare(codecs.codec(), &coded, &host_coded, is_exact)
                    .unwrap_or_else(|e| panic!("{place}: {e}"));
            }
        }
    }
}

/// Codes along tokens, angles and differences: pages decode to the rows as well as the host's do.
#[test]
pub(super) fn pages_of_compound_codecs_are_as_good_as_the_hosts() {
    let Some(gpu) = gpu() else { return };
    let device = Device::new(gpu);
    let random = &mut Random::new(13);
    for (policy, dim) in [
        ("turbo3", 64),
        ("k=turbo4:p32,v=turbo2", 40),
        ("trellis3", 64),
        ("k=trellis3.65,v=trellis2", 32),
        ("k=trellis5.5,v=trellis5", 20),
        ("k=trellis1,v=trellis4.4", 40),
        ("delta4", 64),
        ("k=delta3:srht,v=delta5g16:p32", 40),
        ("k=delta2:token,s32,v=delta8", 12),
        ("polar4", 64),
        ("k=polar3:p32,v=polar5", 40),
    ] {
        let layout = layout(policy, dim);
        let kernels =
            LayoutKernels::new(&device.gpu, &layout).unwrap_or_else(|refused| panic!("{policy}: {refused}"));
        let slot = kernels.slots[0].as_ref().unwrap();
        for (side, of) in [(Side::Key, &slot.key), (Side::Value, &slot.value)] {
            let codecs = layout.slots()[0].heads()[0].side(side).unwrap();
            for have in [of.tokens(), 19] {
                let rows = rows(random, have, dim);
                let (_, coded, mark) = device.encoded(of, (0, of.format.bytes()), &rows);
                let (_, host) = by_host(codecs, &rows);
                let place = format!("{policy} {side:?} {dim} {have}");
                assert_eq!(mark, 0, "{place}");
                let error = |page: &[u8]| -> f32 {
                    let found = decoded(codecs.codec(), page);
                    found.iter().zip(&rows).map(|(a, b)| (a - b).powi(2)).sum()
                };
                let differ = coded.iter().zip(&host).filter(|(a, b)| a != b).count();
                let (found, truth) = (error(&coded), error(&host));
                println!(
                    "{place}: error {found:.3e} and {truth:.3e}, {differ} of {} bytes differ",
                    host.len()
                );
                assert!(found <= 1.05 * truth + 1e-9, "{place}: {found} for {truth}");
            }
        }
    }
}

/// Whether pages are the host's to the byte: where no sum has another order, and where no multiply-add that is rounded twice is part of it.
pub(super) fn is_exact(fused: bool, codec: &dyn PageCodec, format: &PackedFormat) -> bool {
    let by_power = matches!(codec.rounding().unwrap().rule, Rule::LloydMax | Rule::Sketch);
    match &format.basis.linear {
        Linear::Rotation { kind: Rotation::Srft | Rotation::Haar | Rotation::Hadamard64, .. } => false,
        Linear::Rotation { kind: Rotation::Identity, .. } => fused || !(fits(codec, format) || by_power),
        Linear::Rotation { kind: Rotation::Srht, .. } | Linear::Dense(_) => fused,
    }
}

/// Whether any code of the format has a scale that is fitted.
fn fits(codec: &dyn PageCodec, format: &PackedFormat) -> bool {
    let rule = codec.rounding().unwrap().rule;
    format.spans.iter().any(|span| rule.fits(span.bits))
}

/// `exact` pages agree to the byte. In others a multiply-add that is rounded twice, or another order of sums on the way into the basis,
/// may take a number to the next code and a scale to the next of its format: few of them, and by no more than that.
pub(super) fn compare(codec: &dyn PageCodec, page: &[u8], host: &[u8], exact: bool) -> Result<(), String> {
    let differ = page.iter().zip(host).filter(|(a, b)| a != b).count();
    if exact && differ > 0 {
        return Err(format!("{differ} of {} bytes differ", host.len()));
    }
    if 50 * differ > host.len() {
        return Err(format!("{differ} of {} bytes differ", host.len()));
    }
    if let Some(PageFormat::Packed(format)) = codec.format().filter(|_| differ > 0)
        && !fits(codec, &format)
    {
        let arrays = [&format.channel_scale, &format.channel_zero, &format.token_scale, &format.token_zero];
        for at in arrays.into_iter().flatten().flat_map(|range| range.clone().step_by(2)) {
            // Halves in order, negative ones below; of a single's halves the lower one is noise.
            let half = |page: &[u8]| {
                let bits = i32::from(i16::from_le_bytes([page[at], page[at + 1]]));
                if bits < 0 { i32::from(i16::MIN) - bits } else { bits }
            };
            if format.scales == ScaleFormat::F16 && half(page).abs_diff(half(host)) > 1 {
                return Err(format!("the scale at byte {at} is {} and not {}", half(page), half(host)));
            }
        }
    }
    let (found, truth) = (decoded(codec, page), decoded(codec, host));
    let size = truth.iter().fold(0.0f32, |size, x| size.max(x.abs()));
    match found.iter().zip(&truth).find(|(found, truth)| (*found - *truth).abs() >= 0.3 * size) {
        Some((found, truth)) => Err(format!("{found} for {truth}, of at most {size}")),
        None => Ok(()),
    }
}

/// Whether the device rounds a multiply-add once. lavapipe does not.
pub(super) fn fuses(gpu: &Gpu) -> bool {
    let source = "struct Arguments { a: f32, b: f32, c: f32 }\nvar<immediate> a: Arguments;\n\
                  @group(0) @binding(0) var<storage, read_write> y: array<f32>;\n\
                  @compute @workgroup_size(1)\nfn main() { y[0] = fma(a.a, a.b, a.c); }\n";
    let (a, y) = (1.0 + 1.0 / 4096.0f32, Buffer::new(gpu, "y", 16));
    // a² = 1 + 2/4096 + 2⁻²⁴, of which a product that is rounded has lost the last part.
    let words = [a, a, -1.0 - 2.0 / 4096.0].map(f32::to_bits);
    run(gpu, |recorder| {
        recorder.dispatch(&gpu.kernel("probe", source.to_owned()), &[&y], &words, Grid(1, 1, 1));
    });
    super::floats(gpu, &y, 1)[0] != 0.0
}

/// The pages that `kvant-codec` keeps as files, `tests/fixtures/pages/README.md`: every backend writes these bytes. Where a multiply-add
/// is rounded twice, a few scales of values are others, which leave no more error.
#[test]
fn kept_pages_are_written_to_the_byte() {
    let Some(gpu) = gpu() else { return };
    let device = Device::new(gpu);
    let fused = fuses(&device.gpu);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-codec/tests/fixtures/pages");
    let number = |t: usize, c: usize| {
        let draw = ((37 * t * t + 101 * c + 13 * t * c) % 257) as f32 - 128.0;
        draw / 32.0 * (1 + c % 5) as f32
    };
    for (policy, dim) in ["int4", "int8", "k8v4"].into_iter().flat_map(|p| [64, 80, 128].map(|dim| (p, dim)))
    {
        let layout = layout(policy, dim);
        let kernels = LayoutKernels::new(&device.gpu, &layout).unwrap();
        let slot = kernels.slots[0].as_ref().unwrap();
        for (side, word, of) in [("key", Side::Key, &slot.key), ("value", Side::Value, &slot.value)] {
            for (have, part) in [(64, ""), (19, "-19")] {
                let rows: Vec<f32> = (0..have * dim).map(|n| number(n / dim, n % dim)).collect();
                let name = format!("{policy}-{side}-{dim}{part}.page");
                let kept = std::fs::read(folder.join(&name)).unwrap();
                let (_, coded, mark) = device.encoded(of, (0, of.format.bytes()), &rows);
                assert_eq!(mark, 0, "{name}");
                let codec = layout.slots()[0].heads()[0].side(word).unwrap().codec();
                // A channel of kept keys gets its scale by sums that come out the same.
                let exact = fused || word == Side::Key || policy == "int8";
                compare(codec, &coded, &kept, exact).unwrap_or_else(|e| panic!("{name}: {e}"));
                let whole: Vec<f32> =
                    (0..64 * dim).map(|n| number((n / dim).min(have - 1), n % dim)).collect();
                let squares = |page: &[u8]| -> f32 {
                    decoded(codec, page).iter().zip(&whole).map(|(a, b)| (a - b).powi(2)).sum()
                };
                let (found, truth) = (squares(&coded), squares(&kept));
                assert!(found <= 1.001 * truth, "{name}: {found} for {truth}");
            }
        }
    }
}

#[test]
fn numbers_that_cannot_be_stored_are_marked() {
    let Some(gpu) = gpu() else { return };
    let device = Device::new(gpu);
    let layout = layout("int8", 16);
    let kernels = LayoutKernels::new(&device.gpu, &layout).unwrap();
    let slot = kernels.slots[0].as_ref().unwrap();
    for bad in [f32::NAN, f32::INFINITY, 70_000.0] {
        let mut rows = vec![1.0; 64 * 16];
        rows[77] = bad;
        assert_eq!(device.encoded(&slot.key, (0, slot.key.format.bytes()), &rows).2, 7, "{bad}");
    }
}

#[test]
fn a_store_gives_zeros_and_takes_back() {
    let Some(gpu) = gpu() else { return };
    let pages = GpuPages::new(&gpu, Some(10_000));
    let read = |page: PageId, len: usize| {
        let mut bytes = vec![1; len];
        pages.read(page, &mut bytes);
        bytes
    };
    let (a, b) = (pages.take(PageKind::BYTES, 100).unwrap(), pages.take(PageKind::BYTES, 37).unwrap());
    let bytes: Vec<u8> = (0..100).collect();
    pages.write(a, &bytes);
    assert_eq!((read(a, 100), read(b, 37)), (bytes.clone(), vec![0; 37]));
    assert_eq!((pages.usage().pages, pages.usage().used), (2, 160));
    let c = pages.take(PageKind::BYTES, 100).unwrap();
    pages.copy(a, c, 100);
    pages.give_back(a, 100);
    let d = pages.take(PageKind::BYTES, 100).unwrap();
    assert_eq!((d, read(d, 100), read(c, 100)), (a, vec![0; 100], bytes));
    assert!(pages.take(PageKind::BYTES, 9_900).is_err());
    // A copy of a copy that waits still.
    let (e, f) = (pages.take(PageKind::BYTES, 100).unwrap(), pages.take(PageKind::BYTES, 100).unwrap());
    pages.write(d, &[7; 100]);
    pages.copy(d, e, 100);
    pages.copy(e, f, 100);
    assert_eq!((read(e, 100), read(f, 100)), (vec![7; 100], vec![7; 100]));
    // Beyond the first buffer: what was there moves along.
    let large = GpuPages::new(&gpu, None);
    let first = large.take(PageKind::BYTES, 8).unwrap();
    large.write(first, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let more = large.take(PageKind::BYTES, 5 << 20).unwrap();
    let mut bytes = [0; 8];
    large.read(first, &mut bytes);
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    large.give_back(more, 5 << 20);
}

/// Every codec that there is runs; heads that are too wide are refused with the list of those that run.
#[test]
fn codecs_that_do_not_run_are_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    for shown in kvant_codec::catalogue() {
        let refused = LayoutKernels::new(&gpu, &layout(&shown.spec.to_string(), 64)).err();
        assert!(refused.is_none(), "{}: {refused:?}", shown.name);
    }
    for (policy, dim, word) in [
        ("trellis3", 512, "more than the 256"),
        ("delta4:p32", 260, "more than the 256"),
        ("delta4", 13, "end within a word"),
    ] {
        let refused = LayoutKernels::new(&gpu, &layout(policy, dim)).err().unwrap().to_string();
        assert!(
            refused.contains(word) && refused.contains("layer 0: ") && refused.contains(" klt "),
            "{refused}"
        );
    }
}

/// Quotients and roots of integers against the processor's.
#[test]
fn quotients_and_roots_are_to_the_nearest() {
    let Some(gpu) = gpu() else { return };
    let source = "@group(0) @binding(0) var<storage, read> x: array<f32>;\n\
                  @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n\
                  @compute @workgroup_size(64)\n\
                  fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n    let i = 2u * id.x;\n    \
                  y[i] = divided(x[i], x[i + 1u]);\n    y[i + 1u] = square_root(abs(x[i]));\n}\n";
    let random = &mut Random::new(3);
    let mut pairs: Vec<[f32; 2]> = (0..64 * 200)
        .map(|_| {
            let mut number = || {
                let word = random.word();
                f32::from_bits((word as u32 & 0x807f_ffff) | ((70 + (word >> 40) as u32 % 116) << 23))
            };
            [number(), number()]
        })
        .collect();
    for (i, whole) in [1.0, 7.0, 15.0, -8.0, 255.0, 127.0, 3.0, 16.0].into_iter().enumerate() {
        pairs[64 * i..64 * (i + 1)].iter_mut().for_each(|pair| pair[1] = whole);
    }
    pairs[..5].copy_from_slice(&[[0.0, 3.0], [-0.0, 3.0], [1.0, 1.0], [65504.0, 7.0], [4.0, -0.5]]);
    let numbers: Vec<f32> = pairs.concat();
    let (x, y) = (Buffer::of_floats(&gpu, "x", &numbers), Buffer::new(&gpu, "y", 4 * numbers.len()));
    let kernel = gpu.kernel("probe", source.to_owned() + include_str!("../wgsl/quotient.wgsl"));
    run(&gpu, |recorder| recorder.dispatch(&kernel, &[&x, &y], &[], Grid(200, 1, 1)));
    for ([a, b], found) in pairs.iter().zip(super::floats(&gpu, &y, numbers.len()).chunks(2)) {
        assert_eq!(found[0].to_bits(), (a / b).to_bits(), "{a} / {b}");
        assert_eq!(found[1].to_bits(), a.abs().sqrt().to_bits(), "the root of {a}");
    }
}
