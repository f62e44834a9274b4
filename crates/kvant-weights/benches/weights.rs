//! Products at the shapes of real models: time, the floor of reading the bytes once, bytes and multiplications per second,
//! and how many times sooner they are there than with the same weights in f16.
//!
//!     cargo bench -p kvant-weights [-- --only Q4_1] [--tokens 1,512] [--threads 1] [--tier avx512]

use kvant_simd::Tier;
use kvant_threads::Pool;
use kvant_weights::{Layout, Matrix, Number, QuantizedActivations, multiply_dense};
use std::hint::black_box;
use std::time::Instant;

const REPEATS: usize = 7;
/// Matrices of one shape that take turns, so that weights come from memory as they do in a model.
const WEIGHT_BYTES: usize = 128 << 20;

fn option(name: &str) -> Option<String> {
    let mut args = std::env::args();
    args.find(|arg| arg == name).and_then(|_| args.next())
}

fn best(mut work: impl FnMut()) -> f64 {
    work();
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(|_| time(&mut work)).fold(f64::INFINITY, f64::min)
}

/// Bytes per second of adding up 256 MiB on the threads in use.
fn read_bandwidth() -> f64 {
    let data = vec![1u64; 32 << 20];
    let seconds = best(|| {
        kvant_threads::for_each(256, |task| {
            black_box(data[task << 17..][..1 << 17].iter().fold(0u64, |a, &b| a.wrapping_add(b)));
        });
    });
    (data.len() * 8) as f64 / seconds
}

fn main() {
    let only = option("--only");
    let tokens = option("--tokens").unwrap_or("1,4,16,512".into());
    let threads = option("--threads").map_or(1, |n| n.parse().expect("a number of threads"));
    let tier = option("--tier").map_or_else(|| Tier::select().unwrap(), |t| t.parse().expect("a tier"));
    Pool::new(threads).install(|| measure(tier, only, &tokens));
}

/// Seconds of a product with weights in f16 that come from memory.
fn half_precision(tier: Tier, (rows, columns): (usize, usize), x: &[f32]) -> f64 {
    let size = 2 * rows * columns;
    let weights = vec![0x11u8; size * WEIGHT_BYTES.div_ceil(size)];
    let mut out = vec![0.0; x.len() / columns * rows];
    let turns = if x.len() > 16 * columns { 4 } else { weights.len() / size };
    best(|| {
        for matrix in weights.chunks_exact(size).take(turns) {
            multiply_dense(tier, Number::F16, matrix, columns, x, black_box(&mut out));
        }
    }) / turns as f64
}

fn measure(tier: Tier, only: Option<String>, tokens: &str) {
    let bandwidth = read_bandwidth();
    println!("{tier}, {} threads, plain read {:.1} GB/s", kvant_threads::threads(), bandwidth / 1e9);
    println!("layout   rows  cols tokens      time    floor   GB/s   GMAC/s   f16 takes");
    for (rows, columns) in [(1536, 512), (576, 1536), (4864, 1024)] {
        for tokens in tokens.split(',').map(|n| n.parse::<usize>().expect("a number of tokens")) {
            let x: Vec<f32> = (0..tokens * columns).map(|i| (i as f32 * 0.37).sin()).collect();
            let half = half_precision(tier, (rows, columns), &x);
            let x = QuantizedActivations::new(tier, &x, columns);
            for layout in Layout::ALL {
                if only.as_ref().is_some_and(|only| *only != layout.to_string()) {
                    continue;
                }
                let size = rows * columns / layout.block_len() * layout.block_bytes();
                let mut blocks = vec![0u8; size];
                blocks.iter_mut().enumerate().for_each(|(i, b)| *b = ((i * 7919) >> 3) as u8 & 0x3f);
                if layout == Layout::MXFP4 {
                    // Exponents of weights: small ones would measure arithmetic with subnormal numbers.
                    blocks.chunks_exact_mut(layout.block_bytes()).for_each(|block| block[0] = 120);
                }
                let turns = if tokens > 16 { 4 } else { WEIGHT_BYTES.div_ceil(size) };
                let matrices: Vec<Matrix> =
                    (0..turns).map(|_| Matrix::pack(tier, layout, rows, columns, &blocks).unwrap()).collect();
                let mut out = vec![0.0; tokens * rows];
                let seconds = best(|| {
                    matrices.iter().for_each(|m| m.multiply(&x, black_box(&mut out)));
                }) / turns as f64;
                let bytes = matrices[0].bytes().len() as f64;
                println!(
                    "{:6} {rows:6} {columns:5} {tokens:6} {:7.1} us {:6.1}us {:6.1} {:8.1} {:9.2} ×",
                    layout.to_string(),
                    seconds * 1e6,
                    bytes / bandwidth * 1e6,
                    bytes / seconds / 1e9,
                    (rows * columns * tokens) as f64 / seconds / 1e9,
                    half / seconds,
                );
            }
        }
    }
}
