//! Attention over pages as they are beside attention over pages that were decoded first: the same sums, and how long both take.
//!
//! The kernel that decodes whole pages to 16-bit floats is in this file alone, for the comparison. It stays in the codec's basis, which
//! is less work than papers that go back to the model's have to do.

use super::pages::Device;
use super::plans::planned;
use super::{Random, device_time, floats, gpu, run, short_or_all};
use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::head_widths;
use crate::kernel::Kernel;
use crate::layout::{LayoutKernels, SlotKernels};
use crate::page_text::{SHARED, buffers, exact_reader};
use crate::plan::{split, team_split};
use crate::recorder::{Grid, Recorder};
use crate::side_kernels::SideKernels;
use kvant_cache::{CacheLayout, PageId, PageKind, PageStore};
use kvant_codec::Side;
use std::sync::Arc;

pub(super) const KV_HEADS: usize = 2;

/// Tokens of a test, and positions of its splits: twice what kernels take at a time.
pub(super) const TOKENS: usize = 640;
pub(super) const SPLIT: usize = 512;

/// Pages of a side of all heads, one after another: as bytes, and decoded.
pub(super) struct Pages {
    exact: Vec<PageId>,
    pub coded: Vec<PageId>,
    decoded: Vec<PageId>,
}

pub(super) struct Bench<'a> {
    device: &'a Device,
    slot: &'a SlotKernels,
    plain: &'a SlotKernels,
    kv_heads: usize,
    group: usize,
    tokens: usize,
    pub keys: Pages,
    pub values: Pages,
    plan: Buffer,
    status: Buffer,
    q: Buffer,
    prepared: Buffer,
    partials: Buffer,
    y: Buffer,
    buffers: Vec<Arc<Buffer>>,
    /// Where in the plan: encode records of both sides, decode records, tables of bytes and of decoded pages.
    at: [u32; 6],
    /// The same of tasks and of the row over bytes and over decoded pages, and how many tasks there are.
    work: [Work; 2],
}

#[derive(Clone, Copy)]
struct Work {
    tasks_at: u32,
    tasks: usize,
    row_at: u32,
}

fn sides(slot: &SlotKernels) -> [(Side, &SideKernels); 2] {
    [(Side::Key, &slot.key), (Side::Value, &slot.value)]
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        device: &'a Device,
        layout: &CacheLayout,
        (slot, plain): (&'a SlotKernels, &'a SlotKernels),
        (group, tokens, split): (usize, usize, usize),
    ) -> Bench<'a> {
        let (gpu, kv_heads) = (&device.gpu, layout.slots()[0].heads().len());
        let take = |bytes: usize| device.pages.take(PageKind::BYTES, bytes).unwrap();
        let pages = |side: Side, of: &SideKernels| {
            let codec = |head: usize| layout.slots()[0].heads()[head].side(side).unwrap().codec();
            let exact = of.tokens() * of.dim() * of.exact.element.bytes();
            let count = tokens / of.tokens();
            Pages {
                exact: (0..kv_heads).map(|_| take(exact)).collect(),
                coded: (0..kv_heads * count).map(|n| take(codec(n / count).page_bytes())).collect(),
                decoded: (0..kv_heads * count).map(|_| take(2 * of.tokens() * of.dim())).collect(),
            }
        };
        let (keys, values) = (pages(Side::Key, &slot.key), pages(Side::Value, &slot.value));
        let mut words: Vec<u32> = Vec::new();
        let mut at = [0; 6];
        for (index, (pages, (_, of))) in [&keys, &values].into_iter().zip(sides(slot)).enumerate() {
            let count = tokens / of.tokens();
            at[index] = words.len() as u32;
            for (n, page) in pages.coded.iter().enumerate() {
                let exact = &pages.exact[n / count];
                let (exact, tokens) = (exact.0 as u32, of.tokens() as u32);
                words.extend([exact, tokens, page.0 as u32, (n / count) as u32, 1]);
            }
            at[2 + index] = words.len() as u32;
            for (n, (from, to)) in pages.coded.iter().zip(&pages.decoded).enumerate() {
                words.extend([from.0 as u32, to.0 as u32, (n / count) as u32]);
            }
        }
        for (index, decoded) in [false, true].into_iter().enumerate() {
            at[4 + index] = words.len() as u32;
            for pages in [&keys, &values] {
                let list = if decoded { &pages.decoded } else { &pages.coded };
                words.extend(list.iter().map(|page| page.0 as u32));
            }
        }
        let (of_keys, of_values) = (tokens / slot.key.tokens(), tokens / slot.value.tokens());
        let splits = tokens.div_ceil(split);
        let work = [slot, plain].map(|of| {
            let tasks_at = words.len() as u32;
            let columns = of.class_columns(group, 1);
            let tiles = group.div_ceil(columns);
            for (head, tile) in (0..kv_heads).flat_map(|head| (0..tiles).map(move |tile| (head, tile))) {
                for start in (0..tokens).step_by(split) {
                    let end = (start + split).min(tokens);
                    let value_table = kv_heads * of_keys + head * of_values;
                    words.extend([0, 1, head as u32, (tile * columns) as u32, tokens as u32]);
                    words.extend([
                        start as u32,
                        end as u32,
                        0,
                        0,
                        (head * of_keys) as u32,
                        value_table as u32,
                    ]);
                }
            }
            let row_at = words.len() as u32;
            words.extend([0, splits as u32, tiles as u32, 0]);
            Work { tasks_at, tasks: kv_heads * tiles * splits, row_at }
        });
        let (dim, heads) = (slot.key.dim(), group * kv_heads);
        let columns = slot.class_columns(group, 1).max(plain.class_columns(group, 1));
        let tasks = work.iter().map(|work| work.tasks).max().unwrap_or(0);
        Bench {
            plan: Buffer::of_words(gpu, "plan", &words),
            status: Buffer::new(gpu, "status", 16),
            q: Buffer::of_floats(gpu, "q", &Random::new(2).numbers(heads * dim)),
            prepared: Buffer::new(gpu, "prepared", 4 * heads * (dim + 1)),
            partials: Buffer::new(gpu, "partials", 4 * tasks * columns * (slot.value.dim() + 2)),
            y: Buffer::new(gpu, "y", 4 * heads * slot.value.dim()),
            buffers: device.pages.buffers(),
            device,
            slot,
            plain,
            kv_heads,
            group,
            tokens,
            keys,
            values,
            at,
            work,
        }
    }

    fn bound<'b>(&'b self, first: Vec<&'b Buffer>) -> Vec<&'b Buffer> {
        first.into_iter().chain(self.buffers.iter().map(|buffer| &**buffer)).collect()
    }

    /// Random rows into the exact page of every head.
    pub(super) fn fill(&self) {
        let random = &mut Random::new(4);
        for (pages, (_, of)) in [&self.keys, &self.values].into_iter().zip(sides(self.slot)) {
            let numbers = of.tokens() * of.dim();
            for page in &pages.exact {
                let bytes: Vec<u8> =
                    (0..numbers).flat_map(|_| half::f16::from_f32(random.number()).to_le_bytes()).collect();
                self.device.pages.write(*page, &bytes);
            }
        }
    }

    pub(super) fn encode(&self, recorder: &mut Recorder<'_>, index: usize) {
        let (_, of) = sides(self.slot)[index];
        let pages = self.kv_heads * self.tokens / of.tokens();
        for call in of.encode_calls(&self.device.gpu, (&self.plan, &self.status), (pages, self.buffers.len()))
        {
            recorder.dispatch(
                &call.kernel,
                &self.bound(call.bound),
                &[self.at[index], pages as u32],
                call.grid,
            );
        }
    }

    fn decode_kernel(&self, index: usize) -> Arc<Kernel> {
        let (side, of) = sides(self.slot)[index];
        let (dim, tokens) = (of.dim(), of.tokens());
        let main = match side {
            Side::Key => format!(
                "for (var i = thread; i < {fours}u * {half}u; i += 128u) {{
        let four = i / {half}u;
        let t = 2u * (i % {half}u);
        let x = key4_coded(page, t, four);
        let y = key4_coded(page, t + 1u, four);
        for (var j = 0u; j < 4u; j++) {{
            set_page_word(to, ((4u * four + j) * {tokens}u + t) / 2u, pack2x16float(vec2<f32>(x[j], y[j])));
        }}
    }}",
                fours = dim / 4,
                half = tokens / 2,
            ),
            Side::Value => format!(
                "for (var i = thread; i < {half}u * {fours}u; i += 128u) {{
        let c = 2u * (i % {half}u);
        let four = i / {half}u;
        let x = value4_coded(page, c, four);
        let y = value4_coded(page, c + 1u, four);
        for (var j = 0u; j < 4u; j++) {{
            set_page_word(to, ((4u * four + j) * {dim}u + c) / 2u, pack2x16float(vec2<f32>(x[j], y[j])));
        }}
    }}",
                fours = tokens / 4,
                half = dim / 2,
            ),
        };
        let name = if side == Side::Key { "key_map" } else { "value_map" };
        let (maps, codes, first) = match of.widths {
            Some(_) => (head_widths::binding(1, name), head_widths::CODES, 2),
            None => (String::new(), "", 1),
        };
        let text = format!(
            "struct Arguments {{ at: u32, records: u32 }}\nvar<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
{maps}@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {{
    let n = id.x + id.y * count.x;
    if n >= a.records {{
        return;
    }}
    let page = plan[a.at + 3u * n];
    let to = plan[a.at + 3u * n + 1u];
    kv_head = plan[a.at + 3u * n + 2u];
    {main}
}}\n{codes}{SHARED}{}{}{}",
            exact_reader(&of.exact),
            of.reader,
            buffers(first, self.buffers.len(), true),
        );
        self.device.gpu.kernel("decode", text)
    }

    fn decode(&self, recorder: &mut Recorder<'_>) {
        for (index, (_, of)) in sides(self.slot).into_iter().enumerate() {
            let pages = self.kv_heads * self.tokens / of.tokens();
            let maps = of.widths.as_ref().map(|widths| &widths.maps);
            let bound = self.bound([&self.plan].into_iter().chain(maps).collect());
            let arguments = [self.at[2 + index], pages as u32];
            recorder.dispatch(&self.decode_kernel(index), &bound, &arguments, Grid::rows(pages, 1));
        }
    }

    pub(super) fn attend(&self, recorder: &mut Recorder<'_>, decoded: bool) {
        let (gpu, dim) = (&self.device.gpu, self.slot.key.dim() as u32);
        let heads = (self.group * self.kv_heads) as u32;
        if let Some(moves) = &self.slot.key.moves {
            let group = self.group as u32;
            let arguments = [1, heads, heads * dim, heads * (dim + 1), dim + 1, group, 0, dim, 0];
            let bound = [&self.q, &*moves.attend, &self.prepared];
            recorder.dispatch(
                &self.slot.prepare_kernel(gpu, false),
                &bound,
                &arguments,
                Grid::rows(heads as usize, 1),
            );
        }
        let is_moved = self.slot.key.moves.is_some();
        let (of, table) = if decoded { (self.plain, self.at[5]) } else { (self.slot, self.at[4]) };
        let (q, q_head) = if decoded && is_moved { (&self.prepared, dim + 1) } else { (&self.q, dim) };
        let prepared = if is_moved { &self.prepared } else { &self.q };
        let (columns, work) = (of.class_columns(self.group, 1), self.work[usize::from(decoded)]);
        let scale = (dim as f32).sqrt().recip();
        let arguments = [
            work.tasks_at,
            work.tasks as u32,
            table,
            table,
            self.group as u32,
            u32::MAX,
            u32::MAX,
            scale.to_bits(),
            0,
            0,
            heads * q_head,
            q_head,
            heads * (dim + 1),
            dim + 1,
            0,
        ];
        let first = [&self.plan, q, prepared, &self.partials].into_iter().chain(of.maps()).collect();
        let kernel = of.attend_kernel(gpu, columns, self.buffers.len());
        recorder.dispatch(&kernel, &self.bound(first), &arguments, Grid::rows(work.tasks, 1));
        let value_dim = self.slot.value.dim() as u32;
        let arguments = [work.row_at, 1, work.tasks_at, heads, self.group as u32, heads * value_dim, 0];
        let finish = self.slot.value.moves.as_ref().map_or(&self.plan, |moves| &*moves.attend);
        let bound = [&self.plan, &self.partials, finish, &self.plan, &self.y];
        // Sums over decoded pages are in the codec's basis too: it is the slot's to go back.
        let kernel = self.slot.merge_of(gpu, columns, of.attends_by_teams(columns));
        let grid = of.merge_grid(columns, heads as usize);
        recorder.dispatch(&kernel, &bound, &arguments, grid);
    }

    pub(super) fn output(&self) -> Vec<f32> {
        floats(&self.device.gpu, &self.y, self.group * self.kv_heads * self.slot.value.dim())
    }

    /// Microseconds of a step.
    fn time(&self, repeats: usize, step: impl Fn(&mut Recorder<'_>)) -> f64 {
        device_time(&self.device.gpu, |recorder| (0..repeats).for_each(|_| step(recorder))) / repeats as f64
    }

    fn bytes(&self) -> usize {
        let sides = sides(self.slot).map(|(_, of)| of.format.bytes() * self.tokens / of.tokens());
        self.kv_heads * sides.iter().sum::<usize>()
    }
}

/// The cache of a policy, and plain pages of the same sizes.
pub(super) fn layouts(policy: &str, kv_heads: usize, dim: usize) -> [CacheLayout; 2] {
    let own = planned(policy, kv_heads, dim);
    let tokens = |side: Side| own.slots()[0].heads()[0].side(side).unwrap().codec().page_tokens();
    let plain = format!("k=f16:p{},v=f16:p{}", tokens(Side::Key), tokens(Side::Value));
    let plain = planned(&plain, kv_heads, dim);
    [own, plain]
}

/// Seeds of the project, and what it uses.
const POLICIES: [&str; 10] = [
    "int4",
    "int8",
    "k8v4",
    "k8v2",
    "v3",
    "tq3",
    "asym4g32",
    "srft4g32",
    "srft4g32:lambda",
    "k=klt4.25,v=rot4g32",
];

#[test]
fn attention_over_bytes_is_that_over_decoded_pages() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(64, 3), (128, 4), (48, 1), (64, 2), (64, 5), (32, 7), (72, 1), (64, 2), (80, 3), (64, 4)];
    let ways = [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap());
    print_times(&ways[1]);
    // Those that `quads.wgsl` reads have sizes of their own: a chunk of channels too many for two halves, and sets that stay idle.
    let by_fours = [(48, 4), (80, 4), (128, 3), (192, 4), (256, 4)].map(|shape| ("int4", shape));
    for (policy, shape) in POLICIES.into_iter().zip(shapes).chain(by_fours).step_by(short_or_all(2, 1)) {
        let [found, in_integers] = ways.each_ref().map(|gpu| attended_both_ways(gpu, policy, shape));
        let size = found.iter().fold(0.0f32, |size, x| size.max(x.abs()));
        // Teams round queries and weights to bytes; `teams.rs` holds them to an oracle that does.
        let apart = if rounds_to_bytes(policy, shape.0) { IN_BYTES } else { 5e-5 };
        for (found, other) in found.iter().zip(&in_integers) {
            assert!(
                (found - other).abs() < apart * size,
                "{policy}: {found} and {other} of {size} in integers"
            );
        }
    }
}

/// What rounding of queries and weights to bytes may change, of the largest number.
const IN_BYTES: f32 = 6e-2;

/// Whether the fast arithmetic attends over these pages by teams.
fn rounds_to_bytes(policy: &str, dim: usize) -> bool {
    policy == "int4" && [64, 128].contains(&dim)
}

/// What attention over a cache's bytes gives, once it is that over pages which were decoded to f16.
fn attended_both_ways(gpu: &Gpu, policy: &str, (dim, group): (usize, usize)) -> Vec<f32> {
    let device = Device::new(gpu.clone());
    let [own, plain] = layouts(policy, KV_HEADS, dim);
    let [own_kernels, plain_kernels] =
        [&own, &plain].map(|layout| LayoutKernels::new(&device.gpu, layout).unwrap());
    let slots = (own_kernels.slots[0].as_ref().unwrap(), plain_kernels.slots[0].as_ref().unwrap());
    let bench = Bench::new(&device, &own, slots, (group, TOKENS, SPLIT));
    bench.fill();
    run(&device.gpu, |recorder| {
        bench.encode(recorder, 0);
        bench.encode(recorder, 1);
        bench.attend(recorder, false);
    });
    let found = bench.output();
    run(&device.gpu, |recorder| {
        bench.decode(recorder);
        bench.attend(recorder, true);
    });
    let decoded = bench.output();
    let size = found.iter().fold(0.0f32, |size, x| size.max(x.abs()));
    assert!(size > 1e-3, "{policy}: nothing was attended");
    let in_bytes = gpu.arithmetic().dots && rounds_to_bytes(policy, dim);
    let apart = if in_bytes { IN_BYTES } else { 4e-3 };
    for (found, decoded) in found.iter().zip(&decoded) {
        assert!((found - decoded).abs() < apart * size, "{policy}: {found} and {decoded} of {size}");
    }
    found
}

/// The environment variable that has times printed, over so many tokens.
const CONTEXT: &str = "KVANT_GPU_CONTEXT";

/// Prints how long attention and encoding take where that was asked for.
fn print_times(gpu: &Gpu) {
    let context = std::env::var(CONTEXT).ok().and_then(|text| text.parse::<usize>().ok());
    let Some(tokens) = context.filter(|tokens| tokens.is_multiple_of(128)) else { return };
    let (kv_heads, group, dim) = (8, 4, 128);
    println!(
        "{}: {tokens} tokens, {kv_heads} kv heads of {dim} channels, {group} queries each",
        gpu.report()
    );
    println!("codec                    MB   attend µs  decode+attend µs  decode µs  encode ns/key  ns/value");
    for policy in ["f16"].into_iter().chain(POLICIES) {
        let device = Device::new(gpu.clone());
        let [own, plain] = layouts(policy, kv_heads, dim);
        let [own_kernels, plain_kernels] =
            [&own, &plain].map(|layout| LayoutKernels::new(&device.gpu, layout).unwrap());
        let slots = (own_kernels.slots[0].as_ref().unwrap(), plain_kernels.slots[0].as_ref().unwrap());
        let split = match slots.0.attends_by_teams(slots.0.class_columns(group, 1)) {
            true => team_split(tokens - 1, kv_heads),
            false => split(tokens - 1, kv_heads),
        };
        let bench = Bench::new(&device, &own, slots, (group, tokens, split));
        bench.fill();
        let repeats = 20;
        let vectors = (kv_heads * tokens) as f64;
        let encode =
            [0, 1].map(|side| bench.time(repeats, |recorder| bench.encode(recorder, side)) * 1e3 / vectors);
        let own = bench.time(repeats, |recorder| bench.attend(recorder, false));
        if policy == "f16" {
            println!("{policy:22} {:6.1} {own:11.1}", bench.bytes() as f64 / 1e6);
            continue;
        }
        let decode = bench.time(repeats, |recorder| bench.decode(recorder));
        let both = bench.time(repeats, |recorder| {
            bench.decode(recorder);
            bench.attend(recorder, true);
        });
        println!(
            "{policy:22} {:6.1} {own:11.1} {both:17.1} {decode:10.1} {:14.2} {:9.2}",
            bench.bytes() as f64 / 1e6,
            encode[0],
            encode[1],
        );
    }
}
