//! Attention by teams of threads over int4 pages, with sinks and the open page, against a loop in f64 that rounds where the kernel does.

use super::pages::Device;
use super::plans::planned;
use super::{Random, floats, gpu, run};
use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::layout::{LayoutKernels, SlotKernels};
use crate::recorder::Grid;
use half::f16;
use kvant_cache::{PageId, PageKind, PageStore};
use kvant_codec::Side;

const PAGE: usize = 64;
const SINK_PAGE: usize = 32;

/// What is attended to: `tokens` queries of one sequence from `position` on.
#[derive(Clone, Copy)]
struct Case {
    dim: usize,
    kv_heads: usize,
    group: usize,
    position: usize,
    tokens: usize,
    sinks: usize,
    window: Option<usize>,
    cap: f32,
    /// Positions of a split.
    split: usize,
}

const USUAL: Case = Case {
    dim: 128,
    kv_heads: 2,
    group: 4,
    position: 700,
    tokens: 1,
    sinks: 4,
    window: None,
    cap: 0.0,
    split: 256,
};

/// Pages of a kv head as bytes: sinks, coded ones, and the open one, of keys and of values.
struct Head {
    sinks: [Vec<u8>; 2],
    coded: Vec<[Vec<u8>; 2]>,
    open: [Vec<u8>; 2],
}

fn halves(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()
}

fn half_at(bytes: &[u8], index: usize) -> f64 {
    f64::from(f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32())
}

impl Head {
    fn random(random: &mut Random, dim: usize, pages: usize) -> Head {
        let mut plain = |tokens: usize| halves((0..tokens * dim).map(|_| random.number()));
        let (sinks, open) = ([plain(SINK_PAGE), plain(SINK_PAGE)], [plain(PAGE), plain(PAGE)]);
        let codes =
            |random: &mut Random| (0..PAGE * dim / 2).map(|_| random.word() as u8).collect::<Vec<u8>>();
        let coded = (0..pages)
            .map(|_| {
                // Channels of different sizes and with offsets, token scales of both signs.
                let scales = halves(
                    (0..dim).map(|c| 0.05 * (1.1 + random.number()) * if c % 17 == 3 { 6.0 } else { 1.0 }),
                );
                let zeros = halves((0..dim).map(|_| 0.8 * random.number() - 0.4));
                let key = [scales, zeros, codes(random)].concat();
                let tokens = halves((0..PAGE * dim / 32).map(|_| 0.2 * random.number()));
                [key, [tokens, codes(random)].concat()]
            })
            .collect();
        Head { sinks, coded, open }
    }
}

/// `code − 8` of a key's channel or of a value's, at a token.
fn level(page: &[u8], side: Side, dim: usize, token: usize, channel: usize) -> f64 {
    let (at, high) = match side {
        Side::Key => (4 * dim + channel / 8 * 4 * PAGE + 4 * token + channel % 4, channel % 8 >= 4),
        Side::Value => {
            let unit = channel / 16 * 8 + token / 8;
            (4 * dim + 64 * unit + 4 * (channel % 16) + token % 4, token % 8 >= 4)
        }
    };
    f64::from((page[at] >> if high { 4 } else { 0 }) & 15) - 8.0
}

/// Attention of one query over a kv head's pages; with `rounds` queries and weights become bytes where they meet codes.
fn naive(case: Case, head: &Head, q: &[f32], position: usize, rounds: bool) -> Vec<f64> {
    let (dim, scale) = (case.dim, 1.0 / (case.dim as f64).sqrt());
    let window = case.window.unwrap_or(usize::MAX);
    let is_seen = |at: usize| at <= position && position - at < window;
    let capped = |s: f64| match f64::from(case.cap) {
        cap if cap > 0.0 => cap * (s / cap).tanh(),
        _ => s,
    };
    // (score, value) of what is read exactly, then pages of (scores, page).
    let mut exact: Vec<(f64, Vec<f64>)> = Vec::new();
    let mut plain = |pages: &[Vec<u8>; 2], tokens: usize, first: usize, count: usize| {
        for token in (0..count).filter(|token| is_seen(first + token)) {
            let score: f64 = (0..dim).map(|c| f64::from(q[c]) * half_at(&pages[0], c * tokens + token)).sum();
            let value = (0..dim).map(|c| half_at(&pages[1], token * dim + c)).collect();
            exact.push((capped(scale * score), value));
        }
    };
    plain(&head.sinks, SINK_PAGE, 0, case.sinks);
    let coded = (case.position - case.sinks) / PAGE;
    plain(&head.open, PAGE, case.sinks + coded * PAGE, PAGE);
    let mut pages = Vec::new();
    for (number, [key, value]) in head.coded.iter().take(coded).enumerate() {
        let x: Vec<f64> = (0..dim).map(|c| f64::from(q[c]) * half_at(key, c)).collect();
        let step = x.iter().fold(1e-300, |most: f64, x| most.max(x.abs())) / 127.0;
        let x: Vec<f64> = x.iter().map(|x| if rounds { (x / step).round() * step } else { *x }).collect();
        let base: f64 =
            (0..dim).map(|c| f64::from(q[c]) * (half_at(key, dim + c) + 8.0 * half_at(key, c))).sum();
        let scores: Vec<f64> = (0..PAGE)
            .map(|token| match is_seen(case.sinks + number * PAGE + token) {
                true => {
                    let sum: f64 = (0..dim).map(|c| x[c] * level(key, Side::Key, dim, token, c)).sum();
                    capped(scale * (sum + base))
                }
                false => f64::NEG_INFINITY,
            })
            .collect();
        pages.push((scores, value));
    }
    let all = exact.iter().map(|(s, _)| *s).chain(pages.iter().flat_map(|(s, _)| s.iter().copied()));
    let top = all.fold(f64::NEG_INFINITY, f64::max);
    let (mut total, mut sums) = (0.0, vec![0.0; dim]);
    for (score, value) in &exact {
        let w = (score - top).exp();
        total += w;
        sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += w * v);
    }
    for (scores, value) in &pages {
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        total += weights.iter().sum::<f64>();
        for group in 0..dim / 32 {
            let x: Vec<f64> =
                (0..PAGE).map(|token| weights[token] * half_at(value, group * PAGE + token)).collect();
            let step = x.iter().fold(1e-300, |most: f64, x| most.max(x.abs())) / 127.0;
            for (token, x) in x.iter().enumerate() {
                let x = if rounds { (x / step).round() * step } else { *x };
                for (c, sum) in sums.iter_mut().enumerate().skip(32 * group).take(32) {
                    *sum += x * level(value, Side::Value, dim, token, c);
                }
            }
        }
    }
    sums.iter().map(|sum| sum / total).collect()
}

/// A case on a device.
struct Bench {
    device: Device,
    kernels: LayoutKernels,
    case: Case,
    heads: Vec<Head>,
    /// Of every kv head: keys and values of sinks, the open page, then the coded ones.
    pages: Vec<[Vec<PageId>; 2]>,
    q: Vec<f32>,
}

impl Bench {
    fn new(case: Case) -> Option<Bench> {
        let gpu = gpu()?.reopened(Arithmetic::FAST).unwrap();
        let device = Device::new(gpu);
        let layout = planned("k=ch4,v=sym4g32", case.kv_heads, case.dim);
        let kernels = LayoutKernels::new(&device.gpu, &layout).unwrap();
        let random = &mut Random::new(case.dim as u64 + case.position as u64);
        let coded = (case.position - case.sinks) / PAGE;
        let heads: Vec<Head> = (0..case.kv_heads).map(|_| Head::random(random, case.dim, coded)).collect();
        let store = |bytes: &[u8]| {
            let page = device.pages.take(PageKind::BYTES, bytes.len()).unwrap();
            device.pages.write(page, bytes);
            page
        };
        // Coded pages in an order that is not theirs.
        let pages = heads
            .iter()
            .map(|head| {
                [0, 1].map(|side| {
                    let mut coded: Vec<_> = head
                        .coded
                        .iter()
                        .enumerate()
                        .rev()
                        .map(|(n, page)| (n, store(&page[side])))
                        .collect();
                    coded.sort_by_key(|(n, _)| *n);
                    let first = [store(&head.sinks[side]), store(&head.open[side])];
                    first.into_iter().chain(coded.into_iter().map(|(_, page)| page)).collect()
                })
            })
            .collect();
        let q = random.numbers(case.tokens * case.kv_heads * case.group * case.dim);
        Some(Bench { device, kernels, case, heads, pages, q })
    }

    fn slot(&self) -> &SlotKernels {
        self.kernels.slots[0].as_ref().unwrap()
    }

    /// What the device makes of it.
    fn found(&self) -> Vec<f32> {
        let (case, slot, gpu) = (self.case, self.slot(), &self.device.gpu);
        let columns = slot.class_columns(case.group, case.tokens);
        assert!(slot.attends_by_teams(columns), "the kernel that is tested");
        let (end, coded) = (case.position + case.tokens, (case.position - case.sinks) / PAGE);
        let entries = coded + 2;
        let mut words: Vec<u32> = Vec::new();
        for page in self.pages.iter().flatten().flatten() {
            words.push(page.0 as u32);
        }
        let first = case.window.map_or(0, |window| {
            (case.position + 1).saturating_sub(window).saturating_sub(case.sinks) / PAGE * PAGE
        });
        let until = coded * PAGE;
        let mut splits = Vec::new();
        if case.sinks > 0 {
            splits.push((0, case.sinks, 2));
        }
        let mut start = first;
        while start < until {
            let stop = ((start / case.split + 1) * case.split).min(until);
            splits.push((start + case.sinks, stop + case.sinks, 0));
            start = stop;
        }
        splits.push((until + case.sinks, end, 1));
        let tiles = (case.tokens * case.group).div_ceil(columns);
        let tasks_at = words.len() as u32;
        let mut tasks = 0;
        for head in 0..case.kv_heads {
            // Of sinks, of the open page as if it were page `coded`, and of coded pages.
            let at = |side: usize, form: u32| {
                let base = ((2 * head + side) * entries) as u32;
                match form {
                    0 => base + 2,
                    1 => (base + 1).wrapping_sub(coded as u32),
                    _ => base,
                }
            };
            for tile in 0..tiles {
                for (start, end, form) in &splits {
                    tasks += 1;
                    words.extend([0, case.tokens as u32, head as u32, (tile * columns) as u32]);
                    words.extend([case.position as u32, *start as u32, *end as u32, *form, *form]);
                    words.extend([at(0, *form), at(1, *form)]);
                }
            }
        }
        let rows_at = words.len() as u32;
        for token in 0..case.tokens {
            words.extend([0, splits.len() as u32, tiles as u32, token as u32]);
        }
        let (dim, heads) = (case.dim as u32, (case.kv_heads * case.group) as u32);
        let plan = Buffer::of_words(gpu, "plan", &words);
        let q = Buffer::of_floats(gpu, "q", &self.q);
        let partials = Buffer::new(gpu, "partials", 4 * tasks * columns * (case.dim + 2));
        let y = Buffer::new(gpu, "y", 4 * self.q.len());
        let buffers = self.device.pages.buffers();
        let window = case.window.map_or(u32::MAX, |window| window as u32);
        run(gpu, |recorder| {
            let arguments = [
                tasks_at,
                tasks as u32,
                0,
                0,
                case.group as u32,
                window,
                window,
                (f64::from(dim).sqrt().recip() as f32).to_bits(),
                case.cap.to_bits(),
                case.sinks as u32,
                heads * dim,
                dim,
                0,
                0,
                0,
            ];
            let kernel = slot.attend_kernel(gpu, columns, buffers.len());
            let mut bound = vec![&plan, &q, &q, &partials];
            bound.extend(buffers.iter().map(|buffer| &**buffer));
            recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(tasks, 1));
            let arguments = [rows_at, case.tokens as u32, tasks_at, heads, case.group as u32, heads * dim, 0];
            let kernel = slot.merge_kernel(gpu, columns, false);
            let grid = slot.merge_grid(columns, case.tokens * heads as usize);
            recorder.dispatch(&kernel, &[&plan, &partials, &plan, &plan, &y], &arguments, grid);
        });
        floats(gpu, &y, self.q.len())
    }

    fn truth(&self, rounds: bool) -> Vec<f64> {
        let Case { dim, kv_heads, group, position, .. } = self.case;
        let queries = self.q.chunks(dim).enumerate();
        let one = |(n, q): (usize, &[f32])| {
            let (token, head) = (n / (kv_heads * group), n / group % kv_heads);
            naive(self.case, &self.heads[head], q, position + token, rounds)
        };
        queries.flat_map(one).collect()
    }
}

/// The norm of what is wrong over the norm.
fn error(found: &[f64], truth: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(truth).map(|(a, b)| a - b)) / norm(&mut truth.iter().copied())
}

fn check(name: &str, case: Case) {
    let Some(bench) = Bench::new(case) else { return };
    let found = bench.found();
    assert_eq!(found, bench.found(), "{name}: another run, other bits");
    let found: Vec<f64> = found.into_iter().map(f64::from).collect();
    let (rounded, exact) = (bench.truth(true), bench.truth(false));
    let (off, rounding) = (error(&found, &rounded), error(&rounded, &exact));
    println!("{name:28} off by {off:.1e}, rounding to bytes by {rounding:.1e}");
    // A number on the middle between two bytes may go the other way in f32.
    assert!(off < 5e-4, "{name}: off by {off:e} from the same rounding");
    assert!(error(&found, &exact) < 1.2 * rounding + 1e-5, "{name}");
    assert!(rounding < 4e-2, "{name}: bytes cost {rounding:e}");
}

#[test]
fn teams_attend_as_the_oracle_that_rounds_alike() {
    for (dim, groups) in [(64, &[1, 3, 8][..]), (128, &[2, 4, 5])] {
        for &group in groups {
            // Two kv heads, splits that end within four pages and not, an open page of one token and of many.
            let (position, kv_heads) = ([700, 388, 957][group % 3], 1 + group % 2);
            let name = format!("d {dim}, {group} queries");
            check(&name, Case { dim, group, position, kv_heads, ..USUAL });
        }
    }
}

#[test]
fn teams_see_windows_caps_and_no_sinks() {
    check("window", Case { window: Some(300), position: 957, ..USUAL });
    check("window within a page", Case { window: Some(130), dim: 64, group: 2, ..USUAL });
    check("soft cap", Case { cap: 2.0, ..USUAL });
    check("no sinks", Case { sinks: 0, position: 768, dim: 64, ..USUAL });
    check("many sinks", Case { sinks: 32, position: 700, ..USUAL });
    check("one long split", Case { split: 4096, position: 1500, kv_heads: 1, ..USUAL });
    check("a page alone", Case { position: 70, ..USUAL });
}

#[test]
fn tokens_of_a_sequence_have_the_bits_of_one() {
    for (dim, group, window) in [(64, 4, None), (128, 3, None), (64, 1, Some(200))] {
        let many = Case { dim, group, window, tokens: 16, position: 710, kv_heads: 1, ..USUAL };
        check("sixteen tokens", many);
        let Some(bench) = Bench::new(many) else { return };
        let together = bench.found();
        let width = many.kv_heads * group * dim;
        for token in [0, 1, 7, 15] {
            let position = many.position + token;
            let mut alone = Bench::new(Case { tokens: 1, ..many }).unwrap();
            alone.case.position = position;
            alone.q = bench.q[token * width..(token + 1) * width].to_vec();
            let found = alone.found();
            assert_eq!(found, together[token * width..(token + 1) * width], "{dim} {group}: token {token}");
        }
    }
}

/// A byte of every array of a page, and of codes that different loads have.
#[test]
fn a_corrupt_byte_of_an_int4_page_changes_the_output() {
    for dim in [64, 128] {
        let case = Case { dim, kv_heads: 1, position: 350, ..USUAL };
        let Some(bench) = Bench::new(case) else { return };
        let before = bench.found();
        for side in 0..2 {
            for page in 0..bench.heads[0].coded.len() {
                let (id, bytes) = (bench.pages[0][side][2 + page], &bench.heads[0].coded[page][side]);
                let codes = 4 * dim;
                let step = (bytes.len() - codes) / 3;
                for at in [1, 2 * dim + 1].into_iter().chain((codes..bytes.len()).step_by(step)) {
                    let mut corrupt = bytes.clone();
                    corrupt[at] ^= 0x37;
                    bench.device.pages.write(id, &corrupt);
                    assert_ne!(before, bench.found(), "d {dim}, side {side}, page {page}, byte {at}");
                }
                bench.device.pages.write(id, bytes);
            }
        }
        assert_eq!(before, bench.found());
    }
}
