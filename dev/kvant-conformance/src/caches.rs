//! Every codec against the CPU, and the CPU against attention over decoded pages.

use crate::cases::Case;
use crate::host::Host;
use crate::policies::{is_streaming, policy};
use crate::reading::{distance, largest_difference, median_distance, read};
use crate::subject::{Bounds, Subject};
use kvant_attention::KvCache;
use kvant_cache::{Arena, Policy};
use kvant_device::{BackendOptions, Device};
use kvant_model::{Checkpoint, Model};

/// The model on the processor.
pub(crate) fn on_host(checkpoint: &Checkpoint) -> Model {
    Model::load(&*Host.backend(BackendOptions::default()), checkpoint).unwrap()
}

pub(crate) fn agree(subject: &Subject) {
    let mut wrong = Vec::new();
    for case in subject.cases().into_iter().filter(|case| !case.caches.is_empty()) {
        wrong.extend(of_one(subject, &case));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn of_one(subject: &Subject, case: &Case) -> Vec<String> {
    let (name, on, host) = (&case.name, subject.load(&case.checkpoint), on_host(&case.checkpoint));
    let (model, width) = (&on.model, on.model.vocabulary());
    let count = subject.count(300, 150);
    let ids = case.tokens(count, width);
    let read_host = |mut cache: KvCache| read(&host, &mut cache, &ids, &[count]);
    let in_host = |policy: &Policy, capacity| {
        KvCache::in_arena(policy.clone(), host.slots(), capacity, Arena::new()).unwrap()
    };
    let exact = read_host(in_host(&"f32".parse().unwrap(), count));
    let mut wrong = Vec::new();
    let runs = case.caches.iter().filter(|text| subject.refusal(text).is_none());
    for text in runs.step_by(subject.count(1, 3)) {
        let kept = policy(text, model.slots());
        // A window goes on without end.
        let capacity = if is_streaming(text) { usize::MAX } else { count };
        let truth = if subject.is_host() {
            read_host(KvCache::decoded(kept.clone(), host.slots(), capacity).unwrap())
        } else {
            read_host(in_host(&kept, capacity))
        };
        let found = read(model, &mut on.cache(&kept, capacity), &ids, &[count - 42, 39, 1]);
        let other = read(model, &mut on.cache(&kept, capacity), &ids, &[31, 1, 90]);
        let exact = if is_streaming(text) {
            let mut exact: Policy = "f32".parse().unwrap();
            exact.rule = kept.rule;
            read_host(in_host(&exact, capacity))
        } else {
            exact.clone()
        };
        let (off, bound) = match subject.bounds {
            Bounds::F32(_) => {
                let loss = largest_difference(&truth, &exact);
                (largest_difference(&found, &truth), share(text, subject.is_host()) * loss + 2e-4)
            }
            Bounds::F16 if case.jumps => {
                (median_distance(&found, &truth, width), 0.5 * median_distance(&truth, &exact, width) + 2e-2)
            }
            Bounds::F16 => (distance(&found, &truth), half_share(text) * distance(&truth, &exact) + 2e-2),
        };
        let same = found == other;
        println!("{name:16} {text:42} off by {off:.1e} of {bound:.1e}, same bits in chunks {same}");
        if off > bound || !same {
            wrong.push(format!("{name} {text}: off by {off:.1e} of {bound:.1e}, same bits in chunks {same}"));
        }
        if is_streaming(text) {
            let mut all = kept.clone();
            all.rule.streaming = None;
            let all = read(model, &mut on.cache(&all, count), &ids, &[count]);
            let effect = largest_difference(&found, &all);
            assert!(effect > 2.0 * off, "{name} {text}: the window has no effect");
        }
    }
    wrong
}

/// The same where activations are f16. In a chain of differences one code in the middle changes all that come after it, and keys that are rounded to f16 have
/// such codes: then its errors are others than the CPU's, of the same size. Over the same pages both read the same numbers, which `pages` holds.
fn half_share(text: &str) -> f64 {
    if text.starts_with("delta") { 1.0 } else { 0.5 }
}

/// The part of a codec's own error that numbers may be off by. Codes are the same but for roundings at a middle; what is left is the
/// CPU's rounding of queries and weights to bytes. Behind the first layer numbers are apart by that, a hundredth or so, and of numbers a
/// hundredth apart fitted scales of 4 bits make codes that differ by three quarters of their own error: there this finds nonsense, and
/// tests of pages the rest.
fn share(text: &str, is_host: bool) -> f64 {
    match text {
        // The host rounds queries and weights to bytes where decoded pages are not rounded again.
        _ if is_host => 1.0,
        text if text.starts_with("int4") || text == "k8v4" => 1.0,
        text if is_streaming(text) => 0.5,
        _ => 0.35,
    }
}
