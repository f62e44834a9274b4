//! A prompt read in chunks: append and attend, without the rest of the model.

use crate::rows::{gaussian, smooth};
use crate::{Options, Shape, sequence, slots, time};
use kvant_attention::{Attention, Scoring};
use std::hint::black_box;
use std::time::Duration;

const TOKENS: usize = 4096;
const CHUNK: usize = 512;
/// Layers that are run; all are alike.
const LAYERS: usize = 1;

/// Prints the table of one shape.
pub fn run(shape: &Shape, options: &Options) {
    let [key, value, query] = shape.widths();
    let (keys, values) = (smooth(CHUNK * key, key, 1), smooth(CHUNK * value, value, 2));
    let queries = gaussian(CHUNK * query, 3);
    let mut out = vec![0.0; CHUNK * value * shape.group];
    let mut attention = Attention::new().expect("an instruction set");
    let scoring = Scoring::new(1.0 / (shape.dim as f32).sqrt());
    let mut best = vec![None::<(Duration, Duration)>; options.specs.len()];
    for _ in 0..options.repeats {
        for (spec, best) in options.specs.iter().zip(&mut best) {
            let mut sequence = sequence(shape, spec, LAYERS);
            let (mut append, mut attend) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..TOKENS / CHUNK {
                for slot in slots(shape, LAYERS).kv_slots() {
                    append += time(|| sequence.append(slot, &keys, &values).expect("finite numbers"));
                    attend += time(|| {
                        let queries = queries[..].into();
                        attention.attend(&sequence, slot, queries, &scoring, &mut out).expect("a chunk");
                        black_box(&mut out);
                    });
                }
                sequence.advance(CHUNK).expect("all layers");
            }
            if best.is_none_or(|(a, b)| append + attend < a + b) {
                *best = Some((append, attend));
            }
        }
    }
    println!(
        "prefill of {TOKENS} tokens in chunks of {CHUNK}, {LAYERS} layer (ms, best of {})",
        options.repeats
    );
    println!(
        "{:<8} {:>9} {:>9} {:>16} {:>8}",
        "kv",
        "append",
        "attend",
        "ns per q and k",
        format!("× {}", options.specs[0])
    );
    let pairs = (TOKENS * TOKENS / 2 * shape.kv_heads * shape.group * LAYERS) as f64;
    let best: Vec<(Duration, Duration)> = best.into_iter().flatten().collect();
    let first = (best[0].0 + best[0].1).as_secs_f64();
    for (spec, (append, attend)) in options.specs.iter().zip(&best) {
        let (append, attend) = (append.as_secs_f64(), attend.as_secs_f64());
        println!(
            "{:<8} {:>9.2} {:>9.1} {:>16.3} {:>8.2}",
            spec.to_string(),
            append * 1e3,
            attend * 1e3,
            attend * 1e9 / pairs,
            first / (append + attend)
        );
    }
    println!();
}
