//! How fast a device runs the shape of Llama 3 8B with random Q4_0 weights.
//!
//! ```sh
//! cargo run --release -p kvant-gpu --example speed -- LAYERS CACHE PROMPT CONTEXT…
//! ```
//!
//! Reads a prompt, then decodes at an empty context and at each context that is named; `KVANT_GPU_TIMES=1` logs the device's own
//! clock beside that. All layers are alike, so a few of them tell. A card that was idle has a low clock for a second or more, so
//! every measurement comes after work of its own kind, for two seconds and until it gets no faster.

use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_gpu::{Gpu, GpuBackend};
use kvant_model::synth::{self, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_threads::Pool;
use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::time::Instant;
use tracing_subscriber::filter::LevelFilter;

/// Tokens of a pass over a prompt, as sessions have them on cards with matrices.
const CHUNK: usize = 1024;

/// Seconds of work before a measurement, at least and at most, and tokens that are decoded in one.
const WARM: f64 = 2.0;
const MOST_WARM: f64 = 10.0;
const DECODED: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("KVANT_GPU_TIMES").is_some() {
        tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(std::io::stderr).init();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, or: usize| arguments.get(index).map_or(Ok(or), |text| text.parse());
    let (layers, prompt) = (number(0, 8)?, number(2, 1024)?);
    let policy: Policy = arguments.get(1).map_or("int4", String::as_str).parse()?;
    let contexts: Vec<usize> = arguments.iter().skip(3).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let shape = Shape {
        layers,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14_336,
        vocabulary: 32_000,
        tied: false,
        ..Shape::LLAMA_3_2_1B
    };
    let path = std::env::temp_dir().join(format!("kvant-speed-{layers}.gguf"));
    let start = Instant::now();
    if !path.exists() {
        let model = synth::model(&shape, WeightType::Int4, 1)?;
        let mut file = BufWriter::new(File::create(&path)?);
        Pool::default().install(|| model.write_with(&mut file, &mut |_| {}))?;
    }
    println!("model of {} bytes there after {:.1} s", fs::metadata(&path)?.len(), seconds(start));
    let gpu = Gpu::open()?;
    println!("{}", gpu.report());
    let start = Instant::now();
    let backend = GpuBackend::new(&gpu);
    let model = Model::load(&backend, &Checkpoint::open(&path)?)?;
    println!("loaded in {:.1} s", seconds(start));
    let capacity = contexts.iter().copied().max().unwrap_or(0).max(prompt) + 2 * DECODED;
    let cache = || KvCache::in_arena(policy.clone(), model.slots(), capacity, backend.store());
    let decode = |cache: &mut KvCache| {
        for token in 0..DECODED {
            model
                .forward(Pass::new(&[Chunk::new(&[token as u32 + 5], 0..1)]), &mut [cache.sequence_mut()])?;
        }
        Ok::<_, Box<dyn Error>>(())
    };
    let read = |cache: &mut KvCache, tokens: std::ops::Range<usize>| {
        let tokens: Vec<u32> = tokens.map(|token| (token * 7919 % 31_000) as u32).collect();
        for tokens in tokens.chunks(CHUNK) {
            model.forward(Pass::new(&[Chunk::new(tokens, 0..0)]), &mut [cache.sequence_mut()])?;
        }
        Ok::<_, Box<dyn Error>>(())
    };
    // After `at` tokens, again and again until the clock is up, then once more.
    let timed = |cache: &mut KvCache, at: usize| {
        warm_up(|| {
            decode(cache)?;
            cache.truncate(at);
            Ok(())
        })?;
        let start = Instant::now();
        decode(cache)?;
        let each = seconds(start) / DECODED as f64;
        println!("decode at {at}: {:.3} ms a token, {:.1} tokens/s", 1e3 * each, 1.0 / each);
        cache.truncate(at);
        Ok::<_, Box<dyn Error>>(())
    };
    let mut short = cache()?;
    read(&mut short, 0..1)?;
    timed(&mut short, 1)?;
    warm_up(|| read(&mut cache()?, 0..prompt))?;
    let mut long = cache()?;
    let start = Instant::now();
    read(&mut long, 0..prompt)?;
    println!("prompt of {prompt}: {:.0} tokens/s", prompt as f64 / seconds(start));
    for &context in &contexts {
        let there = long.len();
        read(&mut long, there..context)?;
        timed(&mut long, context)?;
    }
    Ok(())
}

/// Repeats a work until the clock is up: its time falls no more.
fn warm_up(mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let (warm, mut before) = (Instant::now(), f64::INFINITY);
    loop {
        let start = Instant::now();
        work()?;
        let each = seconds(start);
        let is_steady = (each - before).abs() < 0.03 * before;
        if (seconds(warm) >= WARM && is_steady) || seconds(warm) >= MOST_WARM {
            return Ok(());
        }
        before = each;
    }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}
