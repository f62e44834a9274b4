//! `--sparse-v`: what is left out is what the threshold says, and nothing at all where it is tiny.

use super::{Loaded, cache, card, count, distance, is_short, llama, load, on_cpu, read, shape, tokens};
use kvant_model::synth::{Shape, WeightType};

#[test]
fn values_are_left_out_by_the_threshold_however_a_text_is_cut() {
    let card = card();
    // In one run of pages the first of each of four chains is always read: fifth pages and later ones can be left out.
    let n = count(1500, 345);
    let mut cases = vec![("int4", 64)];
    if !is_short() {
        cases.extend([
            ("f16", 64),
            ("int4", 128),
            ("k8v4", 128),
            ("int8", 256),
            ("int4", 96),
            ("trellis3", 64),
            ("int4", 512),
        ]);
    }
    for (policy, dim) in cases {
        let what = format!("{policy}, {dim} channels");
        let checkpoint =
            llama(&Shape { layers: 1, hidden: 128, ffn: 128, ..shape(4, 1, dim) }, WeightType::F16);
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(n, model.vocabulary());
        let logits = |text: &str, chunks: &[usize]| {
            read(&model, &mut cache(&model, text, Some(backend.store()), n + 64), &ids, chunks)
        };
        let with = |tau: &str| format!("{policy};sparse-v={tau}");
        let plain = logits(policy, &[n]);
        assert!(plain == logits(&with("1e-12"), &[n]), "{what}: a tiny threshold");
        let [some, most] = ["0.8", "0.999"].map(|tau| logits(&with(tau), &[n]));
        let [few, many] = [distance(&some, &plain), distance(&most, &plain)];
        // The CPU knows more scores when it leaves values out, so it never leaves out less.
        let cpu = on_cpu(&checkpoint);
        let on_cpu = |text: &str| read(&cpu, &mut cache(&cpu, text, None, n + 64), &ids, &[n]);
        let far = distance(&on_cpu(&with("0.999")), &on_cpu(policy));
        println!("{what}: off by {few:.1e} and {many:.1e}; the CPU by {far:.1e}");
        assert!(0.0 < few && few <= many && many <= 1.5 * far, "{what}: {few:.1e}, {many:.1e}, {far:.1e}");
        // Tiles of many and one token alone, or few.
        let ways = if is_short() { vec![[n - 3, 1]] } else { vec![[n - 5, 1], [63, 65]] };
        for chunks in &ways {
            assert!(some == logits(&with("0.8"), chunks), "{what}: chunks of {chunks:?}");
        }
    }
}
