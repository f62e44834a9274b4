//! How fast one thread encodes and decodes blocks, in GB of f16 a second: `cargo run --release -p kvant-tier --example speed [SPEC …]`.
//!
//! A block of the shape of an 8B model: 32 layers, 8 kv heads of 128 channels, 64 tokens. Its numbers are drawn once from a normal
//! distribution. The best of five rounds is printed, without files: reading and writing are the disk's.

use half::f16;
use kvant_tier::{BlockCodec, BlockForm, Blocks, HeadPlace, Number};
use std::time::{Duration, Instant};

const LAYERS: usize = 32;
const HEADS: usize = 8;
const DIM: usize = 128;
const TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let specs = if named.is_empty() { ["f16", "int8", "int4"].map(String::from).to_vec() } else { named };
    let row = HEADS * DIM * 2;
    let place = |layer: usize, head: usize| {
        let key = layer * 2 * TOKENS * row + head * DIM * 2;
        HeadPlace { key, value: key + TOKENS * row }
    };
    let form = BlockForm {
        number: Number::F16,
        tokens: TOKENS,
        key_dim: DIM,
        value_dim: DIM,
        token_stride: row,
        run: TOKENS,
        run_stride: 0,
        layers: (0..LAYERS)
            .map(|layer| (layer, (0..HEADS).map(|head| place(layer, head)).collect()))
            .collect(),
    };
    let mut numbers = normal(form.bytes() / 2);
    let (base, len) = (numbers.as_mut_ptr().cast(), numbers.len() * 2);
    // SAFETY: the numbers live until the end, and nothing else looks at them.
    let blocks = unsafe { Blocks::new(base, len, len, Box::new(())) };
    let block = blocks.get(0, form.extent()).ok_or("a block")?;
    println!("{:<10} {:>8} {:>8} {:>8} {:>8}", "spec", "bytes", "encode", "decode", "both");
    for spec in specs {
        let codec = BlockCodec::new(form.clone(), &spec.parse()?, "speed")?;
        let (mut encode, mut decode, mut packed) = (Duration::MAX, Duration::MAX, Vec::new());
        for _ in 0..5 {
            let begun = Instant::now();
            packed = codec.pack(&[b"block".to_vec()], &[block])?;
            encode = encode.min(begun.elapsed());
            let begun = Instant::now();
            codec.unpack(&packed, &[(0, block)])?;
            decode = decode.min(begun.elapsed());
        }
        let speed = |time: Duration| len as f64 / time.as_secs_f64() / 1e9;
        let share = packed.len() as f64 / len as f64;
        println!(
            "{spec:<10} {share:>8.3} {:>8.2} {:>8.2} {:>8.2}",
            speed(encode),
            speed(decode),
            speed(encode + decode)
        );
    }
    Ok(())
}

/// Box and Muller's, from a fixed seed.
fn normal(count: usize) -> Vec<u16> {
    let mut state = 7u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    let number = |_| {
        f16::from_f32((-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos()).to_bits()
    };
    (0..count).map(number).collect()
}
