//! A codec that attends to decoded pages.

use kvant_codec::{Accumulator, DecodedCodec, KvSpec, PageCodec, Query, Side};
use std::sync::Arc;

#[test]
fn scores_and_sums_are_those_of_the_decoded_rows() {
    let (dim, tokens) = (64, 64);
    let spec: KvSpec = "int4".parse().unwrap();
    let number = |n: usize| ((n * 37 % 101) as f32 - 50.0) / 25.0;
    let rows: Vec<f32> = (0..tokens * dim).map(number).collect();
    let query: Vec<f32> = (0..dim).map(|n| number(3 * n + 1)).collect();
    for side in [Side::Key, Side::Value] {
        let own = match side {
            Side::Key => spec.key.build(side, dim).unwrap(),
            Side::Value => spec.value.build(side, dim).unwrap(),
        };
        let own: Arc<dyn PageCodec> = Arc::from(own);
        let codec = DecodedCodec::new(Arc::clone(&own));
        assert_eq!(codec.format(), own.format());
        let (mut page, mut same) = (vec![0; codec.page_bytes()], vec![0; own.page_bytes()]);
        codec.encode(&rows, &mut page).unwrap();
        own.encode(&rows, &mut same).unwrap();
        assert_eq!(page, same);
        let mut back = vec![0.0; rows.len()];
        own.decode(&page, &mut back).unwrap();
        let dot =
            |row: &[f32]| row.iter().zip(&query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
        let (mut prepared, mut scores) = (Query::new(), vec![0.0; tokens]);
        codec.prepare(&query, &mut prepared).unwrap();
        codec.scores(&prepared, &page, &mut scores).unwrap();
        for (score, row) in scores.iter().zip(back.chunks_exact(dim)) {
            assert!((f64::from(*score) - dot(row)).abs() < 1e-4, "{side:?}");
        }
        let weights: Vec<f32> = (0..tokens).map(|n| number(n).abs()).collect();
        let (mut sums, mut out) = (Accumulator::new(1, dim), vec![0.0; dim]);
        codec.accumulate(&weights, &page, &mut sums).unwrap();
        codec.finish(&sums, &mut out).unwrap();
        for (channel, sum) in out.iter().enumerate() {
            let terms = weights.iter().zip(back.chunks_exact(dim));
            let want: f64 = terms.map(|(w, row)| f64::from(*w) * f64::from(row[channel])).sum();
            assert!((f64::from(*sum) - want).abs() < 1e-3, "{side:?} {sum} {want}");
        }
    }
}
