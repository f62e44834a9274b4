//! Errors layer by layer, on a tiny model.

use kvant_cpu::LoadOptions;
use kvant_engine::Policy;
use kvant_eval::PassLimits;
use kvant_eval::divergence::Mode;
use kvant_eval::layers::{LayerViews, layer_views};
use kvant_model::Checkpoint;
use std::path::Path;

fn views(fixture: &str, kv: &[&str], mode: Mode, tokens: usize) -> LayerViews {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(fixture);
    let model = kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap();
    let window: Vec<u32> = (0..300).map(|i| (i * i / 7 + i * 37 + 5) % 256).collect();
    let caches: Vec<Policy> = kv.iter().map(|kv| kv.parse().unwrap()).collect();
    layer_views(&model, &window, &caches, mode, PassLimits { tokens, ..PassLimits::default() }).unwrap()
}

#[test]
fn finer_caches_err_less_in_every_layer() {
    for mode in [Mode::Deployed, Mode::Strict] {
        let found = views("smollm2", &["f32", "int8", "int4", "tq2"], mode, 512);
        assert_eq!(found.caches.len(), 4);
        for layer in 0..found.layers.len() {
            let of = |cache: usize| found.caches[cache].layers[layer];
            assert_eq!((of(0).key_error, of(0).value_error, of(0).score_error), (0.0, 0.0, 0.0));
            assert!(of(0).output_error < 1e-6);
            for pair in [1, 2, 3].windows(2) {
                let (fine, coarse) = (of(pair[0]), of(pair[1]));
                assert!(fine.key_error < coarse.key_error && fine.value_error < coarse.value_error);
                assert!(fine.score_error < coarse.score_error && fine.output_error < coarse.output_error);
            }
            let int4 = of(2);
            assert!(
                (0.005..0.3).contains(&int4.key_error) && (0.005..0.3).contains(&int4.value_error),
                "{int4:?}"
            );
            assert!(int4.score_share > 0.0 && int4.score_share < int4.key_error, "{int4:?}");
        }
    }
}

#[test]
fn one_side_alone_errs_alone() {
    let found = views("smollm2", &["k=f32,v=rot4g32", "k=ch4,v=f32"], Mode::Strict, 512);
    for layer in &found.caches[0].layers {
        assert!(layer.key_error == 0.0 && layer.score_error == 0.0 && layer.value_error > 0.0);
    }
    for layer in &found.caches[1].layers {
        assert!(layer.key_error > 0.0 && layer.score_error > 0.0 && layer.value_error == 0.0);
    }
}

#[test]
fn chunks_and_shapes_do_not_matter() {
    assert_eq!(views("smollm2", &["int4"], Mode::Strict, 512), views("smollm2", &["int4"], Mode::Strict, 77));
    // Windows narrower than the text, soft caps, several kinds of layers.
    for fixture in ["gemma2", "gemma3", "qwen2"] {
        let found = views(fixture, &["f16"], Mode::Deployed, 512);
        assert!(found.caches[0].layers.iter().all(|layer| layer.output_error < 2e-3), "{fixture}: {found:?}");
        assert!(found.layers.iter().all(|layer| layer.score_scale > 0.0 && layer.loud_channels.len() == 3));
    }
}
