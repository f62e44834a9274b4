//! Values of pages whose weights are tiny are not read: `--sparse-v`.

use super::pages::Device;
use super::timing::{Bench, KV_HEADS, SPLIT, TOKENS, layouts};
use super::{gpu, run, short_or_all};
use crate::arithmetic::Arithmetic;
use crate::device::Gpu;
use crate::layout::LayoutKernels;
use kvant_cache::{PageId, PageStore};
use kvant_codec::Side;

/// Positions whose keys are zero: after others of the first split, for every team of threads and every step of 128 or 256.
const ZERO: std::ops::Range<usize> = 256..512;

/// A threshold that such positions are below: among 64 random keys before them one has a score well above zero.
const SPARSE: &str = ";sparse-v=0.9";

/// Heads of every kernel that attends: by teams, by fours, and the general one over every kind of codes.
const CASES: [(&str, usize, usize); 9] = [
    ("int4", 128, 4),
    ("f16", 64, 4),
    ("k8v4", 64, 2),
    ("int4", 64, 3),
    ("int4", 96, 4),
    ("f16", 48, 5),
    ("k=int8,v=rot4g32:p128", 64, 4),
    ("trellis3", 64, 2),
    ("delta4", 64, 1),
];

/// Of a cache, what attention gives: with values of the positions whose keys are zero, or with bytes in their place that are no numbers.
fn attended(gpu: &Gpu, policy: &str, (dim, group): (usize, usize), is_corrupt: bool) -> Vec<f32> {
    let device = Device::new(gpu.clone());
    let [own, plain] = layouts(policy, KV_HEADS, dim);
    let [own_kernels, plain_kernels] =
        [&own, &plain].map(|layout| LayoutKernels::new(&device.gpu, layout).unwrap());
    let slots = (own_kernels.slots[0].as_ref().unwrap(), plain_kernels.slots[0].as_ref().unwrap());
    let bench = Bench::new(&device, &own, slots, (group, TOKENS, SPLIT));
    bench.fill();
    run(&device.gpu, |recorder| [0, 1].into_iter().for_each(|side| bench.encode(recorder, side)));
    for (side, pages) in [(Side::Key, &bench.keys), (Side::Value, &bench.values)] {
        let codec = own.slots()[0].heads()[0].side(side).unwrap().codec();
        let (tokens, bytes) = (codec.page_tokens(), codec.page_bytes());
        let count = TOKENS / tokens;
        for (number, page) in pages.coded.iter().enumerate() {
            let write = |byte: u8| device.pages.write(*page, &vec![byte; bytes]);
            match ZERO.contains(&(number % count * tokens)) {
                true if side == Side::Value && is_corrupt => write(0xff),
                true => write(0),
                // Plain numbers have no kernel that encodes them.
                false if policy.starts_with("f16") => halves(&device, *page, tokens * dim),
                false => {}
            }
        }
    }
    run(&device.gpu, |recorder| bench.attend(recorder, false));
    bench.output()
}

/// The same numbers for every page, so that none of them is below the threshold.
fn halves(device: &Device, page: PageId, count: usize) {
    let random = &mut super::Random::new(9);
    let bytes = (0..count).flat_map(|_| half::f16::from_f32(random.number()).to_le_bytes());
    device.pages.write(page, &bytes.collect::<Vec<u8>>());
}

/// What is left out is not read, and has no part in the sum of weights.
#[test]
fn values_of_tiny_weights_are_not_read() {
    let Some(gpu) = gpu() else { return };
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    for (gpu, (policy, dim, group)) in ways
        .iter()
        .flat_map(|gpu| CASES.into_iter().take(short_or_all(3, CASES.len())).map(move |case| (gpu, case)))
    {
        let place = format!("{policy} {dim} {group}, {}", gpu.arithmetic());
        let sparse = attended(gpu, &format!("{policy}{SPARSE}"), (dim, group), true);
        assert!(sparse.iter().all(|x| x.is_finite()), "{place}: values were read");
        let whole = attended(gpu, policy, (dim, group), false);
        // Values of zero change nothing but the sum of weights, by one number for all channels of a query head.
        for (sparse, whole) in sparse.chunks(dim).zip(whole.chunks(dim)) {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let share = dot(whole, sparse) / dot(sparse, sparse);
            assert!((0.2..0.85).contains(&share), "{place}: {share} of the weights");
            let size = whole.iter().fold(0f32, |size, x| size.max(x.abs()));
            for (sparse, whole) in sparse.iter().zip(whole) {
                let off = (f64::from(*sparse) * share - f64::from(*whole)).abs();
                assert!(off < 2e-2 * f64::from(size), "{place}: {sparse} · {share} and {whole}");
            }
        }
    }
}
