//! `encode` of whole pages.

use crate::rows::smooth;
use crate::{Options, time};
use kvant_codec::{Calibration, KvSpec, PageCodec, Side, Tier};
use std::hint::black_box;
use std::time::Duration;

const PARTS: [(&str, Side); 13] = [
    ("ch4", Side::Key),
    ("ch8", Side::Key),
    ("rot4g32", Side::Key),
    ("rot4g32", Side::Value),
    ("srft4g32", Side::Key),
    ("srft4g32", Side::Value),
    ("asym4g32", Side::Value),
    ("sym8g32", Side::Value),
    ("tq3", Side::Value),
    ("tq4", Side::Value),
    ("trellis3", Side::Key),
    ("trellis3", Side::Value),
    ("f16", Side::Value),
];
/// Enough pages to leave the first-level cache, few enough to stay in the second: encoding follows the projection that
/// has just produced the vectors.
const PAGES: usize = 16;

/// Prints the table for every dimension.
pub fn run(options: &Options) {
    for dim in &options.dims {
        println!("encode: d={dim}");
        println!(
            "{:<10} {:<6} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "codec", "side", "bits", "scalar ns", "avx2 ns", "avx512 ns", "neon ns"
        );
        for (part, side) in PARTS.iter().filter(|(part, _)| part.contains(&options.only)) {
            let spec: KvSpec = part.parse().expect("a spec of the bench");
            let mut columns = vec![String::from("–"); Tier::ALL.len()];
            let mut bits = 0.0;
            for tier in options.tiers() {
                let codec = spec.key.build_with(*side, *dim, &Calibration::default(), tier).expect("a codec");
                bits = codec.bits_per_value();
                columns[tier as usize] = format!("{:.1}", nanoseconds(codec.as_ref(), options.repeats));
            }
            let side = if *side == Side::Key { "key" } else { "value" };
            println!(
                "{part:<10} {side:<6} {bits:>10.3} {:>10} {:>10} {:>10} {:>10}",
                columns[0], columns[1], columns[2], columns[3]
            );
        }
        println!();
    }
}

/// Per vector, best of N passes.
fn nanoseconds(codec: &dyn PageCodec, repeats: usize) -> f64 {
    let rows = smooth(PAGES * codec.page_tokens() * codec.dim(), codec.dim(), 1);
    let mut pages = vec![0; PAGES * codec.page_bytes()];
    let mut best = Duration::MAX;
    for _ in 0..4 * repeats {
        let pass = time(|| {
            let rows = rows.chunks_exact(codec.page_tokens() * codec.dim());
            for (rows, page) in rows.zip(pages.chunks_exact_mut(codec.page_bytes())) {
                codec.encode(black_box(rows), page).expect("finite numbers");
            }
            black_box(&mut pages);
        });
        best = best.min(pass);
    }
    best.as_secs_f64() * 1e9 / (PAGES * codec.page_tokens()) as f64
}
