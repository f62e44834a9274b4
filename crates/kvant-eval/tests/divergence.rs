//! What caches cost, on tiny models: against naive sums over the logits of the same caches, and against each other.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_eval::divergence::{Divergence, Mode, Models, Request, Same, device_divergence, divergence};
use kvant_eval::{EvalError, PassLimits, Score, Windows};
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass, Rows};
use std::path::Path;

const CTX: usize = 300;

/// Head dimension 64, so that every codec can be used.
fn model() -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/smollm2");
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap()
}

fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i / 7 + i * 37 + 5) % 256).collect()
}

fn windows(chunks: usize, score: Score) -> Windows {
    Windows::of_ids(&[1], &ids(CTX * chunks), CTX, chunks, score).unwrap()
}

fn measure(model: &Model, windows: &Windows, kv: &[&str], mode: Mode, limits: PassLimits) -> Vec<Divergence> {
    let caches: Vec<Policy> = kv.iter().map(|kv| kv.parse().unwrap()).collect();
    divergence(&request(model, windows, &caches, mode, limits), None, &mut |_| ()).unwrap()
}

fn request<'r>(
    model: &'r Model,
    windows: &'r Windows,
    caches: &'r [Policy],
    mode: Mode,
    limits: PassLimits,
) -> Request<'r> {
    let models = Models { reference: model, subject: model, arithmetic: "f32" };
    Request { models, windows, caches, mode, limits }
}

/// Logits of all positions but the last, read in passes of these sizes.
fn logits(model: &Model, window: &[u32], policy: Policy, sizes: &[usize]) -> Rows {
    let mut kv = KvCache::new(policy, model.slots(), window.len()).unwrap();
    let (mut data, mut at, end) = (Vec::new(), 0, window.len() - 1);
    for &size in sizes.iter().cycle() {
        let next = (at + size).min(end);
        let tokens = &window[at..next];
        let chunk = Chunk::new(tokens, 0..tokens.len());
        data.extend_from_slice(
            model.forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()]).unwrap().into_logits().data(),
        );
        at = next;
        if at == end {
            break;
        }
    }
    Rows::from_vec(data, model.vocabulary())
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let mass: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
    logits.iter().map(|&z| f64::from(z).exp() / mass).collect()
}

#[test]
fn agrees_with_naive_sums_over_the_same_logits() {
    let model = model();
    let windows = windows(2, Score::All);
    for (kv, mode) in [("int4", Mode::Deployed), ("f16", Mode::Deployed), ("int4", Mode::Strict)] {
        let found = &measure(&model, &windows, &[kv], mode, PassLimits::default())[0];
        let mut policy: Policy = kv.parse().unwrap();
        policy.rule.mode = mode;
        let (mut kl, mut same, mut nll, mut count) = (Vec::new(), 0, 0.0, 0);
        for window in &windows {
            let truth = logits(&model, window, "f32".parse().unwrap(), &[CTX]);
            let other = logits(&model, window, policy.clone(), &[CTX]);
            for at in 0..CTX - 1 {
                let (p, q) = (softmax(truth.row(at)), softmax(other.row(at)));
                kl.push(p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>());
                let top = |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
                same += usize::from(top(&p) == top(&q));
                nll -= q[window[at + 1] as usize].ln();
                count += 1;
            }
        }
        let mean = kl.iter().sum::<f64>() / kl.len() as f64;
        kl.sort_by(f64::total_cmp);
        assert_eq!(found.tokens(), count);
        assert!((found.kl().0 - mean).abs() < 1e-10, "{kv} {mode:?}: {} {mean}", found.kl().0);
        assert!((found.kl_quantile(0.999) - kl[kl.len() - 1]).abs() < 1e-9);
        assert_eq!(found.top1(), same as f64 / count as f64);
        assert!((found.estimate().nll_mean() - nll / count as f64).abs() < 1e-9);
    }
}

#[test]
fn finer_caches_cost_less_and_strict_costs_more() {
    let model = model();
    let windows = windows(2, Score::All);
    let specs = ["f32", "f16", "int8", "int4", "tq2"];
    let deployed = measure(&model, &windows, &specs, Mode::Deployed, PassLimits::default());
    let kl: Vec<f64> = deployed.iter().map(|found| found.kl().0).collect();
    assert_eq!(kl[0], 0.0);
    assert!(kl.windows(2).all(|pair| pair[0] < pair[1]), "{kl:?}");
    assert_eq!((deployed[0].top1(), deployed[0].ppl_growth_percent()), (1.0, (0.0, 0.0)));

    let strict = measure(&model, &windows, &specs, Mode::Strict, PassLimits::default());
    assert!((3..5).all(|spec| strict[spec].kl().0 > deployed[spec].kl().0));
    let bits = |found: &Divergence| (found.bits_per_value().unwrap(), found.bits_total());
    assert_eq!((bits(&deployed[0]), bits(&deployed[1])), ((32.0, 32.0), (16.0, 16.0)));
    let (pages, total) = bits(&deployed[3]);
    assert!(pages == 4.5 && total > pages && total < 8.0, "{pages} {total}");
    assert_eq!(bits(&strict[3]).0, 4.5);
}

#[test]
fn a_result_does_not_depend_on_passes_or_on_company() {
    let model = model();
    for mode in [Mode::Deployed, Mode::Strict] {
        for score in [Score::All, Score::SecondHalf] {
            let windows = windows(2, score);
            let alone = |kv| measure(&model, &windows, &[kv], mode, PassLimits::default()).remove(0);
            // Sinks that end elsewhere cannot share the passes of a strict cache.
            let specs = ["int4", "int4;sinks=9", "k=ch4:p128,v=rot4g32"];
            let expected = specs.map(alone);
            for (tokens, rows) in [(512, 512), (100, 70), (7, 1000)] {
                let limits = PassLimits { tokens, logit_bytes: rows * model.vocabulary() * 4 };
                let found = measure(&model, &windows, &specs, mode, limits);
                assert!(found == expected, "{mode:?} {score} in passes of {tokens} and {rows}");
            }
            assert_eq!(expected[0].tokens(), windows.scored());
        }
    }
}

#[test]
fn a_pass_from_a_layer_on_gives_the_bits_of_the_whole() {
    let model = model();
    let (window, exact) = (ids(CTX), "f32".parse::<Policy>().unwrap());
    let layers = model.slots().layers();
    assert!(model.resumes() && layers >= 2);
    let cache = || KvCache::new(exact.clone(), model.slots(), CTX).unwrap();
    let (mut whole, mut parts) = (cache(), (0..layers).map(|_| cache()).collect::<Vec<KvCache>>());
    for tokens in window.chunks(128) {
        let chunk = || [Chunk::new(tokens, 0..tokens.len())];
        let mut inputs = Vec::new();
        let mut keep = |_: usize, input: &Rows| inputs.push(input.clone());
        let logits = model
            .forward(Pass::new(&chunk()).observed(&mut keep), &mut [whole.sequence_mut()])
            .unwrap()
            .into_logits();
        for (layer, part) in parts.iter_mut().enumerate() {
            let found = model
                .forward(Pass::new(&chunk()).from_layer(layer, &inputs[layer]), &mut [part.sequence_mut()])
                .unwrap()
                .into_logits();
            assert_eq!(found, logits, "from layer {layer} on");
        }
    }
}

#[test]
fn layers_that_are_exact_need_not_run_again() {
    // Another model of the same weights has to be run whole.
    let (one, other) = (model(), model());
    let windows = windows(2, Score::All);
    let last = one.slots().layers() - 1;
    let policies =
        [format!("f32;layers {last}:k=ch4"), format!("f32;layers 1-{last}:v=tq2"), "int4".to_owned()];
    let caches: Vec<Policy> = policies.iter().map(|kv| kv.parse().unwrap()).collect();
    for mode in [Mode::Strict, Mode::Deployed] {
        let request = request(&one, &windows, &caches, mode, PassLimits::default());
        let resumed = divergence(&request, None, &mut |_| ()).unwrap();
        let models = Models { subject: &other, ..request.models };
        let whole = divergence(&Request { models, ..request }, None, &mut |_| ()).unwrap();
        for ((kv, resumed), whole) in policies.iter().zip(&resumed).zip(&whole) {
            let ((kl, _), (want, _)) = (resumed.kl(), whole.kl());
            assert!(want > 1e-7 && (kl / want - 1.0).abs() < 1e-3, "{kv} {mode:?}: {kl}, {want}");
            assert_eq!(resumed.bits_total(), whole.bits_total(), "{kv}");
        }
    }
}

#[test]
fn reading_a_prompt_and_generating_give_the_same_bits() {
    let model = model();
    let window = ids(CTX);
    for kv in ["f32", "f16", "int8", "int4", "k8v4", "tq3", "q4_0", "int4;recent=70", "int4;sinks=0"] {
        let policy: Policy = kv.parse().unwrap();
        let bits = |sizes: &[usize]| -> Vec<u32> {
            logits(&model, &window, policy.clone(), sizes).data().iter().map(|z| z.to_bits()).collect()
        };
        let prefill = bits(&[CTX]);
        assert!(bits(&[1]) == prefill, "{kv}: one by one");
        assert!(bits(&[256, 1, 7]) == prefill, "{kv}: in chunks");
    }
}

#[test]
fn headway_covers_every_position() {
    let model = model();
    let windows = windows(2, Score::All);
    let limits = PassLimits { tokens: 128, ..PassLimits::default() };
    let (mut last, mut steps) = ((0, 0), 0);
    let caches = ["f16".parse().unwrap()];
    let request = request(&model, &windows, &caches, Mode::Deployed, limits);
    divergence(&request, None, &mut |headway| {
        assert!(headway.done >= last.0 && headway.so_far[0].tokens() <= headway.done);
        last = (headway.done, headway.total);
        steps += 1;
    })
    .unwrap();
    // Three blocks and the end of each window.
    assert_eq!((last, steps), ((2 * (CTX - 1), 2 * (CTX - 1)), 8));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let model = model();
    let run = |windows: &Windows, kv: &str| {
        let caches = [kv.parse().unwrap()];
        let request = request(&model, windows, &caches, Mode::Deployed, PassLimits::default());
        divergence(&request, None, &mut |_| ()).unwrap_err()
    };
    let good = windows(1, Score::All);
    assert!(matches!(run(&good, "klt"), EvalError::Kv(_)));
    let beyond = Windows::of_ids(&[], &ids(600), 600, 1, Score::All).unwrap();
    assert!(matches!(run(&beyond, "f16"), EvalError::ContextTooLong { .. }));
    let unknown = Windows::of_ids(&[], &[1, 1, 1, 1, 1, 1, 1, 999], 8, 1, Score::All).unwrap();
    assert!(matches!(run(&unknown, "f16"), EvalError::Forward(_)));
}

#[test]
fn devices_are_compared_on_the_same_cache() {
    let model = model();
    let windows = windows(1, Score::All);
    let caches: Vec<Policy> = ["int4", "f16"].iter().map(|kv| kv.parse().unwrap()).collect();
    for mode in [Mode::Deployed, Mode::Strict] {
        let request = request(&model, &windows, &caches, mode, PassLimits::default());
        let same = device_divergence(&request, Same::Kernels, &mut |_| ()).unwrap();
        assert!(same.len() == 2 && same.iter().all(|found| found.kl().0.abs() < 1e-12), "{mode:?}");
        let codec = divergence(&request, None, &mut |_| ()).unwrap()[0].kl().0;
        assert!(codec > 0.0, "{mode:?}");
        // What the CPU's kernels round is less than what the codec does, and nothing where there are no codes.
        let decoded = device_divergence(&request, Same::Decoded, &mut |_| ()).unwrap();
        let [kernels, none] = [decoded[0].kl().0, decoded[1].kl().0];
        assert!(
            kernels > 1e-12 && kernels < codec && none.abs() < 1e-12,
            "{mode:?} {kernels:e} {codec:e} {none:e}"
        );
        if mode == Mode::Deployed {
            // Over the same pages rounding makes nothing more of it.
            let pages = device_divergence(&request, Same::Pages, &mut |_| ()).unwrap();
            let [shared, none] = [pages[0].kl().0, pages[1].kl().0];
            assert!(
                shared > 1e-12 && shared < kernels && none.abs() < 1e-12,
                "{shared:e} {kernels:e} {none:e}"
            );
        }
    }
    // Another arithmetic shows.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/smollm2");
    let options = LoadOptions { weights: Some(DType::Int8G32), ..LoadOptions::default() };
    let other = kvant_cpu::load(&Checkpoint::open(folder).unwrap(), options).unwrap();
    let request = request(&model, &windows, &caches, Mode::Deployed, PassLimits::default());
    let models = Models { subject: &other, arithmetic: "int8", ..request.models };
    let found = device_divergence(&Request { models, ..request }, Same::Kernels, &mut |_| ()).unwrap();
    assert!(found.iter().all(|found| found.kl().0 > 0.0));
}
