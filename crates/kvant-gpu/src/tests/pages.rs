//! Pages written and encoded on the device against the codecs of the host.

use super::{Random, gpu, run};
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::layout::{LayoutKernels, SideKernels};
use crate::pages::GpuPages;
use crate::recorder::Grid;
use kvant_cache::{CacheLayout, KvShape, PageId, PageStore, Policy, SideCodecs, Slots};
use kvant_codec::format::PackedFormat;
use kvant_codec::{PageCodec, PageFormat, Side};
use std::sync::Arc;

fn layout(policy: &str, dim: usize) -> CacheLayout {
    let policy: Policy = policy.parse().unwrap();
    let slots = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: dim, value_dim: dim, window: None });
    CacheLayout::new(&policy, &slots).unwrap()
}

struct Device {
    gpu: Gpu,
    pages: Arc<GpuPages>,
}

impl Device {
    /// Rows written in two goes, then encoded: the exact page and the coded one.
    fn encoded(&self, side: &SideKernels, rows: &[f32]) -> (Vec<u8>, Vec<u8>, u32) {
        let (gpu, dim, tokens) = (&self.gpu, side.dim(), side.tokens());
        let exact_bytes = tokens * dim * side.exact.element.bytes();
        let exact = self.pages.take(exact_bytes).unwrap();
        let coded = self.pages.take(side.format.bytes()).unwrap();
        let have = rows.len() / dim;
        let cut = have / 3;
        let record =
            |first: usize, count: usize| [exact.0 as u32, 1, first as u32, first as u32, count as u32, 0];
        let records = [record(0, cut), record(cut, have - cut)];
        let plan: Vec<u32> =
            records.concat().into_iter().chain([exact.0 as u32, have as u32, coded.0 as u32]).collect();
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
            if let Some(kernel) = side.encode_kernel(gpu, pages.len()) {
                let basis = side.moves.as_ref().map_or(&plan, |moves| &moves.encode);
                let bound = [&[&plan, basis, &status], &pages[..]].concat();
                recorder.dispatch(&kernel, &bound, &[12, 1, 7], Grid(1, 1, 1));
            }
        });
        let read = |page: PageId, len: usize| {
            let mut bytes = vec![0; len];
            self.pages.read(page, &mut bytes);
            bytes
        };
        let mark = super::floats(gpu, &status, 1)[0].to_bits();
        let both = (read(exact, exact_bytes), read(coded, side.format.bytes()), mark);
        self.pages.give_back(exact, exact_bytes);
        self.pages.give_back(coded, side.format.bytes());
        both
    }
}

/// The same by the codecs of the host, and the coded page decoded.
fn by_host(codecs: &SideCodecs, rows: &[f32]) -> (Vec<u8>, Vec<u8>) {
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
fn rows(random: &mut Random, tokens: usize, dim: usize) -> Vec<f32> {
    (0..tokens * dim)
        .map(|n| random.number() * [1.0, 0.1, 7.0, 2.0][n % dim % 4] + if n % dim == 5 { 3.0 } else { 0.0 })
        .collect()
}

#[test]
fn pages_are_those_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let device = Device { pages: GpuPages::new(&gpu, None), gpu };
    let (fused, random) = (fuses(&device.gpu), &mut Random::new(7));
    for (policy, dim) in [
        ("f16", 80),
        ("bf16", 9),
        ("f32", 7),
        ("int8", 64),
        ("int8", 80),
        ("int4", 64),
        ("int4", 80),
        ("int4", 128),
        ("k8v4", 72),
        ("k=ch3:fitmax,v=rot5g32:fitasym", 48),
        ("k=rot2g32,v=ch5:srht,p128", 48),
        ("kivi2", 72),
        ("kivi3", 16),
        ("k8v2", 64),
        ("q5_1", 128),
        ("q8_0", 64),
        ("chg4", 64),
        ("k=sym4g32:s32,v=ch5:p128", 48),
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
                let (exact, coded, mark) = device.encoded(of, &rows);
                let (host_exact, host_coded) = by_host(codecs, &rows);
                assert!(exact == host_exact, "{policy} {side:?} {dim}: exact pages differ");
                assert_eq!(mark, 0);
                let PageFormat::Packed(format) = &of.format else { continue };
                let place = format!("{policy} {side:?} {dim} {have}");
                let exact = of.moves.is_none() && (fused || !fits(codecs.codec(), format));
                compare(codecs.codec(), &coded, &host_coded, exact)
                    .unwrap_or_else(|e| panic!("{place}: {e}"));
            }
        }
    }
}

/// Whether any code of the format has a scale that is fitted.
fn fits(codec: &dyn PageCodec, format: &PackedFormat) -> bool {
    let rule = codec.rounding().unwrap().rule;
    format.spans.iter().any(|span| rule.fits(span.bits))
}

/// `exact` pages agree to the byte. In others a multiply-add that is rounded twice, or another order of sums on the way into the basis,
/// may take a number to the next code and a scale to the next of its format: few of them, and by no more than that.
fn compare(codec: &dyn PageCodec, page: &[u8], host: &[u8], exact: bool) -> Result<(), String> {
    let differ = page.iter().zip(host).filter(|(a, b)| a != b).count();
    if exact && differ > 0 {
        return Err(format!("{differ} of {} bytes differ", host.len()));
    }
    if 50 * differ > host.len() {
        return Err(format!("{differ} of {} bytes differ", host.len()));
    }
    let (found, truth) = (decoded(codec, page), decoded(codec, host));
    let size = truth.iter().fold(0.0f32, |size, x| size.max(x.abs()));
    match found.iter().zip(&truth).find(|(found, truth)| (*found - *truth).abs() >= 0.3 * size) {
        Some((found, truth)) => Err(format!("{found} for {truth}, of at most {size}")),
        None => Ok(()),
    }
}

/// Whether the device rounds a multiply-add once. lavapipe does not.
fn fuses(gpu: &Gpu) -> bool {
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
    let device = Device { pages: GpuPages::new(&gpu, None), gpu };
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
                let (_, coded, mark) = device.encoded(of, &rows);
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
    let device = Device { pages: GpuPages::new(&gpu, None), gpu };
    let layout = layout("int8", 16);
    let kernels = LayoutKernels::new(&device.gpu, &layout).unwrap();
    let slot = kernels.slots[0].as_ref().unwrap();
    for bad in [f32::NAN, f32::INFINITY, 70_000.0] {
        let mut rows = vec![1.0; 64 * 16];
        rows[77] = bad;
        assert_eq!(device.encoded(&slot.key, &rows).2, 7, "{bad}");
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
    let (a, b) = (pages.take(100).unwrap(), pages.take(37).unwrap());
    let bytes: Vec<u8> = (0..100).collect();
    pages.write(a, &bytes);
    assert_eq!((read(a, 100), read(b, 37)), (bytes.clone(), vec![0; 37]));
    assert_eq!((pages.usage().pages, pages.usage().used), (2, 160));
    let c = pages.take(100).unwrap();
    pages.copy(a, c, 100);
    pages.give_back(a, 100);
    let d = pages.take(100).unwrap();
    assert_eq!((d, read(d, 100), read(c, 100)), (a, vec![0; 100], bytes));
    assert!(pages.take(9_900).is_err());
    // A copy of a copy that waits still.
    let (e, f) = (pages.take(100).unwrap(), pages.take(100).unwrap());
    pages.write(d, &[7; 100]);
    pages.copy(d, e, 100);
    pages.copy(e, f, 100);
    assert_eq!((read(e, 100), read(f, 100)), (vec![7; 100], vec![7; 100]));
    // Beyond the first buffer: what was there moves along.
    let large = GpuPages::new(&gpu, None);
    let first = large.take(8).unwrap();
    large.write(first, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let more = large.take(5 << 20).unwrap();
    let mut bytes = [0; 8];
    large.read(first, &mut bytes);
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    large.give_back(more, 5 << 20);
}

#[test]
fn codecs_that_do_not_run_are_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    for (policy, word) in
        [("polar4", "codes under scales"), ("iq4_nl", "NonLinear"), ("int4;heads 0:k=f16", "")]
    {
        let refused = LayoutKernels::new(&gpu, &layout(policy, 64)).err();
        if !word.is_empty() {
            let refused = refused.unwrap().to_string();
            assert!(refused.contains("layer 0") && refused.contains(word), "{refused}");
        }
    }
}
