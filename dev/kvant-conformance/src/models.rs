//! Every model against the oracle, and against what Hugging Face transformers computed.

use crate::cases::Case;
use crate::fixture::reference_tolerance;
use crate::reading::{distance, largest_difference, median_distance, read, same_choice};
use crate::subject::{Bounds, Loaded, Subject};
use kvant_cache::{AttentionObserver, KvSlot, Queries, Scoring, SequencePass};
use kvant_model::{Chunk, Pass, Rows};
use kvant_oracle::{Oracle, Trace};
use std::collections::BTreeMap;

/// The largest distance of f16 from the oracle, and how many of a hundred rows have to have the same largest logit: where rounding may
/// send a token to another expert the median of rows counts.
const HALF: f64 = 3e-3;
const SAME: (usize, usize) = (97, 95);

pub(crate) fn agree(subject: &Subject) {
    let mut wrong = Vec::new();
    for case in subject.cases() {
        let on = subject.load(&case.checkpoint);
        let room = on.model.position_limit().unwrap_or(usize::MAX);
        let ids = case.tokens(subject.count(90, 75).min(room), on.model.vocabulary());
        let trace = Oracle::new(&case.description(), &case.checkpoint).unwrap().run(&ids, 96.max(ids.len()));
        let (right, line) = compare(subject, &case, &on, &ids, &trace);
        println!("{:20} {} {line}", case.name, if right { "ok   " } else { "WRONG" });
        if !right {
            wrong.push(format!("{}: {line}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a model is as near as it has to be, and how near it is.
fn compare(subject: &Subject, case: &Case, on: &Loaded, ids: &[u32], trace: &Trace) -> (bool, String) {
    let truth: Vec<f32> = trace.logits.iter().flatten().map(|x| *x as f32).collect();
    let (architecture, width) = (case.description().architecture, on.model.vocabulary());
    match subject.bounds {
        Bounds::F32(bound) => {
            let bound = bound(architecture);
            let (found, inner) = if on.model.abilities().attention_observer {
                observed(subject, on, ids, trace)
            } else {
                (read(&on.model, &mut subject.exact(on, ids.len()), ids, &[70, 5, 1]), 0.0)
            };
            let off = largest_difference(&found, &truth).max(inner);
            let reference = case.fixture.as_ref().map_or_else(Vec::new, |fixture| fixture.logits(0));
            let shared = reference.len().min(found.len());
            let from_reference = largest_difference(&found[..shared], &reference[..shared]);
            let right = off <= bound && from_reference <= reference_tolerance(architecture);
            (right, format!("off by {off:.1e}, from the reference by {from_reference:.1e}"))
        }
        Bounds::F16 => {
            let found = read(&on.model, &mut subject.exact(on, ids.len()), ids, &[70, 3, 1]);
            let (whole, median) = (distance(&found, &truth), median_distance(&found, &truth, width));
            let same = same_choice(&found, &truth, width);
            let right =
                if case.jumps { median <= HALF && same >= SAME.1 } else { whole <= HALF && same >= SAME.0 };
            (right, format!("off by {whole:.1e}, the median row by {median:.1e}, same choice {same} %"))
        }
    }
}

/// What slots were given: keys and values.
#[derive(Default)]
struct Recorder {
    given: BTreeMap<KvSlot, (Vec<f32>, Vec<f32>)>,
}

impl AttentionObserver for Recorder {
    fn append(&mut self, _: &[SequencePass], slot: KvSlot, keys: &[f32], values: &[f32]) {
        let given = self.given.entry(slot).or_default();
        given.0.extend_from_slice(keys);
        given.1.extend_from_slice(values);
    }
    fn attend(&mut self, _: &[SequencePass], _: KvSlot, _: Queries<'_>, _: &Scoring<'_>, _: &[f32]) {}
}

/// Logits, and the largest difference of layers, keys and values from the oracle's.
fn observed(subject: &Subject, on: &Loaded, ids: &[u32], trace: &Trace) -> (Vec<f32>, f64) {
    let (mut cache, mut recorder) = (subject.exact(on, ids.len()), Recorder::default());
    let mut hidden: Vec<Vec<f32>> = vec![Vec::new(); trace.hidden.len()];
    let mut logits = Vec::new();
    let (first, rest) = ids.split_at(70.min(ids.len()));
    for tokens in [first].into_iter().chain(rest.chunks(1)) {
        let chunk = [Chunk::new(tokens, 0..tokens.len())];
        let mut layers = |layer: usize, x: &Rows| hidden[layer].extend_from_slice(x.data());
        let pass = Pass::new(&chunk).observed(&mut layers).watched(&mut recorder);
        let outputs = on.model.forward(pass, &mut [cache.sequence_mut()]).unwrap();
        logits.extend_from_slice(outputs.into_logits().data());
    }
    assert!(recorder.given.keys().eq(trace.keys.keys()), "the same slots get keys and values");
    let off = |truth: &[Vec<f64>], found: &[f32]| {
        let truth: Vec<f32> = truth.iter().flatten().map(|x| *x as f32).collect();
        largest_difference(&truth, found)
    };
    let layers = trace.hidden.iter().zip(&hidden).map(|(truth, found)| off(truth, found));
    let slots = recorder
        .given
        .iter()
        .flat_map(|(slot, (keys, values))| [off(&trace.keys[slot], keys), off(&trace.values[slot], values)]);
    let inner = layers.chain(slots).fold(0.0, f64::max);
    (logits, inner)
}
