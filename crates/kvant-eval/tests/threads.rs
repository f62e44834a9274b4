use kvant_cpu::LoadOptions;
use kvant_eval::{PassLimits, Score, Windows, perplexity};
use kvant_model::Checkpoint;
use kvant_threads::Pool;
use std::path::Path;

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/gemma3");
    let model = kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap();
    let ids: Vec<u32> = (0..96).map(|i| (i * 37 + 5) % model.vocabulary() as u32).collect();
    let windows = Windows::of_ids(&[], &ids, 48, 2, Score::All).unwrap();
    for kv in ["f32", "f16"] {
        let measure = |threads| {
            Pool::new(threads).install(|| {
                perplexity(&model, &windows, &kv.parse().unwrap(), PassLimits::default(), &mut |_| ())
                    .unwrap()
            })
        };
        let one = measure(1);
        assert_eq!(measure(3), one);
        assert_eq!(measure(16), one);
    }
}
