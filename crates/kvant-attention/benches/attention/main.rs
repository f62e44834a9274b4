//! The attention bench: `cargo bench -p kvant-attention -- [decode|prefill] [--shape NAME] [--tokens N] [--kv SPEC,SPEC…] [--threads N]
//! [--repeats N]`.
//!
//! Specs take turns, pass by pass, and the best pass of each counts. Beside every decode step stands its floor: a plain
//! read of as many bytes as the sequence holds, from a buffer of its own. Ratios travel between machines, times do not.

mod decode;
mod prefill;
#[path = "../../../kvant-codec/benches/codec/rows.rs"]
mod rows;
#[path = "../../../kvant-codec/benches/codec/stream.rs"]
mod stream;

use kvant_cache::{Arena, CacheLayout, KvShape, LatentShape, Policy, Sequence, Slots};
use kvant_codec::KvSpec;
use kvant_threads::Pool;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model's attention, as far as the cache sees it.
#[derive(Clone, Copy)]
pub struct Shape {
    /// What it is called here.
    pub name: &'static str,
    layers: usize,
    kv_heads: usize,
    group: usize,
    /// Channels of keys and of values; or of a latent.
    dim: usize,
    /// Channels of the rotated part, where latents are kept.
    rope: Option<usize>,
    /// Context of the decode bench.
    tokens: usize,
}

/// The last three are an MLA layer's latents with few and with many heads, and keys and values with the bytes of the first.
const SHAPES: [Shape; 6] = [
    shape("smollm2-135m", 30, [3, 3, 64], None, 7168),
    shape("llama-3.2-1b", 16, [8, 4, 64], None, 32_768),
    shape("llama-3-8b", 32, [8, 4, 128], None, 8192),
    shape("deepseek-v2-lite", 27, [1, 16, 512], Some(64), 8192),
    shape("deepseek-v3", 8, [1, 128, 512], Some(64), 8192),
    shape("mla-bytes", 27, [1, 16, 288], None, 8192),
];

const fn shape(
    name: &'static str,
    layers: usize,
    [kv_heads, group, dim]: [usize; 3],
    rope: Option<usize>,
    tokens: usize,
) -> Shape {
    Shape { name, layers, kv_heads, group, dim, rope, tokens }
}

impl Shape {
    /// Numbers of a token, by side, and of its queries.
    fn widths(&self) -> [usize; 3] {
        let (key, query) = self.rope.map_or((self.dim, self.dim), |rope| (rope, rope + self.dim));
        [self.kv_heads * key, self.kv_heads * self.dim, self.kv_heads * self.group * query]
    }
}

/// What the command line asked for.
pub struct Options {
    shapes: Vec<Shape>,
    specs: Vec<KvSpec>,
    repeats: usize,
}

fn main() {
    let mut options = Options {
        shapes: SHAPES.to_vec(),
        specs: KvSpec::parse_list("f16,int8,int4,trellis3").expect("specs"),
        repeats: 7,
    };
    let mut sections = Vec::new();
    let mut threads = 1;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| usage(&format!("{argument} needs a value")));
        match argument.as_str() {
            "--shape" => {
                let name = value();
                options.shapes.retain(|shape| shape.name == name);
            }
            "--tokens" => {
                let tokens = number(&value());
                options.shapes.iter_mut().for_each(|shape| shape.tokens = tokens);
            }
            "--kv" => options.specs = KvSpec::parse_list(&value()).unwrap_or_else(|e| usage(&e.to_string())),
            "--threads" => threads = number(&value()),
            "--repeats" => options.repeats = number(&value()),
            "decode" | "prefill" => sections.push(argument),
            // What cargo passes to every bench.
            "--bench" => {}
            _ => usage(&format!("unknown argument {argument}")),
        }
    }
    let pool = Pool::new(threads);
    let wanted = |name: &str| sections.is_empty() || sections.iter().any(|section| section == name);
    for shape in &options.shapes {
        let Shape { name, layers, kv_heads, group, dim, rope, .. } = shape;
        let rotated = rope.map_or_else(String::new, |rope| format!("+{rope} latents"));
        println!(
            "{name}: {layers} layers, {kv_heads} kv heads, {group} query heads each, d={dim}{rotated}, {threads} threads"
        );
        if wanted("decode") {
            pool.install(|| decode::run(shape, &options));
        }
        if wanted("prefill") {
            pool.install(|| prefill::run(shape, &options));
        }
    }
}

fn usage(problem: &str) -> ! {
    let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
    eprintln!(
        "{problem}\nusage: cargo bench -p kvant-attention -- [decode|prefill] [--shape {}] [--tokens N] [--kv SPEC,SPEC] [--threads N] [--repeats N]",
        names.join("|")
    );
    std::process::exit(2);
}

fn number(text: &str) -> usize {
    text.parse().ok().filter(|n| *n > 0).unwrap_or_else(|| usage(&format!("{text} is no positive number")))
}

/// The time of one call.
pub fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// An empty sequence of `layers` layers.
pub fn sequence(shape: &Shape, spec: &KvSpec, layers: usize) -> Sequence {
    let layout = CacheLayout::new(&Policy::from(spec.clone()), &slots(shape, layers)).expect("a layout");
    Sequence::new(Arc::new(layout), Arena::new())
}

/// The slots of that many layers.
pub fn slots(shape: &Shape, layers: usize) -> Slots {
    let Shape { kv_heads, dim, rope, .. } = *shape;
    let mut slots = Slots::new();
    for layer in 0..layers {
        match rope {
            Some(rope_dim) => {
                slots.latent(layer, LatentShape { kv_heads, latent_dim: dim, rope_dim, window: None })
            }
            None => {
                slots.keys_values(layer, KvShape { kv_heads, key_dim: dim, value_dim: dim, window: None })
            }
        };
    }
    slots
}
