//! One decode step at a given depth: append and attend in every layer.

use crate::rows::{gaussian, smooth};
use crate::{Options, Shape, sequence, slots, stream, time};
use kvant_attention::{Attention, Scoring};
use kvant_cache::Sequence;
use std::hint::black_box;
use std::time::Duration;

/// Tokens whose rows are made up; the context repeats them, every page at its own address.
const CHUNK: usize = 512;

struct Contender {
    name: String,
    sequence: Sequence,
    best: Duration,
    floor: Duration,
}

/// Prints the table of one shape.
pub fn run(shape: &Shape, options: &Options) {
    let [key, value, query] = shape.widths();
    let (keys, values) = (smooth(CHUNK * key, key, 1), smooth(CHUNK * value, value, 2));
    let queries = gaussian(query, 3);
    let mut out = vec![0.0; value * shape.group];
    let mut contenders: Vec<Contender> = options
        .specs
        .iter()
        .map(|spec| {
            let mut sequence = sequence(shape, spec, shape.layers);
            while sequence.len() < shape.tokens {
                let tokens = CHUNK.min(shape.tokens - sequence.len());
                for slot in slots(shape, shape.layers).kv_slots() {
                    sequence
                        .append(slot, &keys[..tokens * key], &values[..tokens * value])
                        .expect("finite numbers");
                }
                sequence.advance(tokens).expect("all layers");
            }
            Contender { name: spec.to_string(), sequence, best: Duration::MAX, floor: Duration::MAX }
        })
        .collect();
    let largest = contenders.iter().map(|c| c.sequence.footprint().bytes()).max().unwrap_or(0);
    let plain: Vec<u8> = (0..largest).map(|i| i as u8).collect();
    let layers = slots(shape, shape.layers);
    let mut attention = Attention::new().expect("an instruction set");
    let scoring = Scoring::new(1.0 / (shape.dim as f32).sqrt());
    for _ in 0..options.repeats {
        for contender in &mut contenders {
            let Contender { sequence, best, floor, .. } = contender;
            let bytes = sequence.footprint().bytes();
            *floor = (*floor).min(time(|| {
                black_box(stream::read(&plain[..bytes]));
            }));
            *best = (*best).min(time(|| {
                for slot in layers.kv_slots() {
                    sequence.append(slot, &keys[..key], &values[..value]).expect("finite numbers");
                    attention
                        .attend(sequence, slot, queries[..].into(), &scoring, &mut out)
                        .expect("a chunk");
                    black_box(&mut out);
                }
                sequence.advance(1).expect("all layers");
            }));
            sequence.truncate(shape.tokens).expect("room");
        }
    }
    let slowest = contenders[0].best.as_secs_f64();
    println!("decode at {} tokens (ms, best of {})", shape.tokens, options.repeats);
    println!(
        "{:<8} {:>9} {:>9} {:>9} {:>10} {:>10} {:>8}",
        "kv",
        "MiB",
        "bits",
        "attend",
        "plain read",
        "× read",
        format!("× {}", contenders[0].name)
    );
    for Contender { name, sequence, best, floor } in &contenders {
        let footprint = sequence.footprint();
        let (best, floor) = (best.as_secs_f64(), floor.as_secs_f64());
        println!(
            "{name:<8} {:>9.1} {:>9.3} {:>9.2} {:>10.2} {:>10.2} {:>8.2}",
            footprint.bytes() as f64 / (1 << 20) as f64,
            footprint.bits_total,
            best * 1e3,
            floor * 1e3,
            best / floor,
            slowest / best
        );
    }
    println!();
}
