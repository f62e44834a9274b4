//! Rankings against a sort on the host.

use super::{Random, gpu, run};
use crate::buffer::Buffer;
use crate::top::Ranking;
use crate::weights::Place;
use kvant_model::top::{TopK, TopTokens};

#[test]
fn rankings_are_those_of_a_sort() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(11);
    for (rows, vocabulary, count) in [(1, 5, 1), (2, 5, 9), (3, 2048, 1), (2, 2049, 7), (1, 50_000, 256)] {
        let mut logits: Vec<f32> = random.numbers(rows * vocabulary);
        // Many equals, both zeros, and the least number there is.
        logits.iter_mut().for_each(|z| *z = (64.0 * *z).round() / 8.0);
        (logits[0], logits[vocabulary - 1]) = (-0.0, 0.0);
        logits[vocabulary / 2] = f32::NEG_INFINITY;
        if rows == 3 {
            (logits[7], logits[2 * vocabulary - 1]) = (f32::NAN, f32::INFINITY);
        }
        let buffer = Buffer::of_floats(&gpu, "logits", &logits);
        let ranking = Ranking::new(&gpu, rows, vocabulary, count);
        let staging = Buffer::staging(&gpu, ranking.bytes(rows));
        let place = Place { buffer: &buffer, stride: vocabulary, at: 0 };
        run(&gpu, |recorder| {
            ranking.run(recorder, place, rows, vocabulary);
            recorder.copy(&ranking.lists, 0, &staging, 0, ranking.bytes(rows));
        });
        let mut bytes = vec![0; ranking.bytes(rows)];
        staging.read(&gpu, &mut bytes).unwrap();
        let found = ranking.read(&bytes);
        for (row, found) in logits.chunks(vocabulary).zip(&found) {
            let truth = TopTokens::of(row, TopK { count, temperature: None });
            assert_eq!(*found, truth, "{count} of {vocabulary}");
            let bits = |list: &Option<TopTokens>| -> Vec<u32> {
                list.iter().flat_map(|list| list.tokens.iter().map(|(_, logit)| logit.to_bits())).collect()
            };
            assert_eq!(bits(found), bits(&truth), "{count} of {vocabulary}");
        }
        assert_eq!(found.len(), rows);
    }
}
