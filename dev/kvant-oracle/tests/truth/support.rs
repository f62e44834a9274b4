//! Differences, and a backend's run in the oracle's terms.

use kvant_attention::KvCache;
use kvant_cache::{AttentionObserver, KvSlot, Queries, Scoring, SequencePass, SlotKind, Slots, pass};
use kvant_conformance::Fixture;
use kvant_model::{Chunk, Description, Network, Pass};
use kvant_oracle::{Rows, Trace};
use std::collections::BTreeMap;

/// A fixture against the oracle.
pub trait Compare {
    /// Compares a run over [`Fixture::sequence`] `index` with the reference: logits, layers, keys and values.
    fn compare(&self, trace: &Trace, description: &Description, index: usize, found: &mut Differences);
}

impl Compare for Fixture {
    fn compare(&self, trace: &Trace, description: &Description, index: usize, found: &mut Differences) {
        let slots = &description.slots;
        let prompt = self.prompt();
        let rows = |rows: &[Vec<f64>]| rows.concat();
        found.compare(
            "prefill",
            &rows(&trace.logits[..prompt]),
            &self.expected("prefill_logits", Some(index)),
        );
        found.compare("steps", &rows(&trace.logits[prompt..]), &self.expected("step_logits", Some(index)));
        let next = trace.logits[prompt - 1..].iter().map(|logits| argmax(logits));
        found.greedy_agrees &= next.zip(&self.greedy[index]).all(|(next, &id)| next == id);
        if index != 0 {
            return;
        }
        let layers: Vec<f64> = trace.hidden.iter().flat_map(|x| rows(&x[..prompt])).collect();
        let mut expected = self.expected("hidden", None);
        let mut layers = layers;
        if description.embedding.streams.is_some() {
            // The reference shows the last one before the norm.
            let shown = expected.len() / trace.hidden.len() * description.layers.len();
            expected.truncate(shown);
            layers.truncate(shown);
        }
        found.compare("hidden", &layers, &expected);
        let mut compared = 0;
        for id in slots.kv_slots() {
            let slot = slots.get(id.index()).unwrap();
            if !self.has(&format!("k.{}", slot.layer)) {
                continue;
            }
            let kept = |side: &str| self.expected(&format!("{side}.{}", slot.layer), None);
            let mut expected_keys = kept("k");
            let (keys, values) = match slot.kind {
                SlotKind::KeysValues(shape) => (
                    by_head(&trace.keys[&id][..prompt], shape.kv_heads),
                    by_head(&trace.values[&id][..prompt], shape.kv_heads),
                ),
                // Keys are those of values but for the channels that turn.
                SlotKind::Latent(shape) if description.architecture == "gemma4_text" => {
                    let (_, attention) = description.attentions().find(|(_, of)| of.slot == id).unwrap();
                    let turning = description.ropes[attention.rope.unwrap().0].turning_channels();
                    let head = |head: &[f32]| turning.iter().map(|&at| head[at]).collect::<Vec<f32>>();
                    expected_keys = expected_keys.chunks(shape.latent_dim).flat_map(head).collect();
                    (
                        by_head(&trace.keys[&id][..prompt], shape.kv_heads),
                        by_head(&trace.values[&id][..prompt], shape.kv_heads),
                    )
                }
                // The reference calls a latent key, and a rotated part value, whose pairs most models tear apart.
                SlotKind::Latent(_) if description.architecture == "deepseek_v2" => {
                    (rows(&trace.values[&id][..prompt]), rows(&trace.keys[&id][..prompt]))
                }
                SlotKind::Latent(_) => {
                    let rotated = &trace.keys[&id][..prompt];
                    let half =
                        |row: &[f64], first| row.iter().copied().skip(first).step_by(2).collect::<Vec<f64>>();
                    let torn = rotated.iter().flat_map(|row| [half(row, 0), half(row, 1)].concat());
                    (rows(&trace.values[&id][..prompt]), torn.collect())
                }
                SlotKind::View(_) | SlotKind::Recurrent(_) => unreachable!("slots that hold keys and values"),
            };
            found.compare("k", &keys, &expected_keys);
            found.compare("v", &values, &kept("v"));
            compared += 1;
        }
        for state in slots.state_slots() {
            let (layer, trace) = (slots.get(state.index()).unwrap().layer, &trace.states[&state]);
            if self.has(&format!("conv.{layer}")) {
                let expected = self.expected(&format!("conv.{layer}"), None); // (channels, kernel)
                let channels = trace.conv_inputs[0].len();
                let last = &trace.conv_inputs[prompt - expected.len() / channels..prompt];
                let inputs: Vec<f64> =
                    (0..channels).flat_map(|c| last.iter().map(move |row| row[c])).collect();
                found.compare("conv", &inputs, &expected);
            }
            if self.has(&format!("rec.{layer}")) {
                let expected = self.expected(&format!("rec.{layer}"), None);
                found.compare("rec", &trace.matrices[prompt - 1], &expected);
            }
        }
        let recorded = self.tensors.names().filter(|name| name.starts_with("k.")).count();
        assert_eq!(compared, recorded, "every recorded layer has a slot");
    }
}

/// `(tokens, heads · dim)` to `(heads, tokens, dim)`.
fn by_head(rows: &[Vec<f64>], heads: usize) -> Vec<f64> {
    let dim = rows[0].len() / heads;
    (0..heads).flat_map(|head| rows.iter().flat_map(move |row| row[head * dim..][..dim].to_vec())).collect()
}

fn argmax(logits: &[f64]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap() as u32
}

/// The largest differences found, by what was compared.
pub struct Differences {
    worst: BTreeMap<&'static str, f64>,
    pub greedy_agrees: bool,
}

impl Default for Differences {
    fn default() -> Self {
        Self { worst: BTreeMap::new(), greedy_agrees: true }
    }
}

impl Differences {
    pub fn compare(&mut self, what: &'static str, found: &[f64], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{what}");
        let worst = self.worst.entry(what).or_default();
        for (a, &b) in found.iter().zip(expected) {
            let difference = (a - f64::from(b)).abs();
            *worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
        }
    }

    /// The largest of all.
    pub fn largest(&self) -> f64 {
        self.worst.values().copied().fold(0.0, f64::max)
    }

    pub fn line(&self) -> String {
        let shown: Vec<String> =
            self.worst.iter().map(|(what, worst)| format!("{what} {worst:.1e}")).collect();
        shown.join(", ") + if self.greedy_agrees { "" } else { ", GREEDY IDS DIFFER" }
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

/// Runs a sequence in these chunks through a compiled model, on an exact cache, and compares all it comes by with the oracle.
pub fn compare_backend(
    network: &dyn Network,
    slots: &Slots,
    tokens: &[u32],
    chunks: &[usize],
    capacity: usize,
    truth: &Trace,
) -> Differences {
    let mut cache = KvCache::reference(slots, capacity).unwrap();
    let mut recorder = Recorder::default();
    let mut hidden: Vec<Vec<f32>> = vec![Vec::new(); truth.hidden.len()];
    let mut logits = Vec::new();
    let mut left = tokens;
    for &size in chunks {
        let (chunk, rest) = left.split_at(size.min(left.len()));
        left = rest;
        if chunk.is_empty() {
            break;
        }
        let chunk = [Chunk::new(chunk, 0..chunk.len())];
        let mut observer = |layer: usize, x: &kvant_model::Rows| hidden[layer].extend_from_slice(x.data());
        let sequences = &mut [cache.sequence_mut()];
        pass::begin(sequences, &[chunk[0].tokens()]).unwrap();
        let pass = Pass::new(&chunk).observed(&mut observer).watched(&mut recorder);
        let found = network.forward(pass, sequences).unwrap().into_logits();
        // Some descriptions here have slots that no layer writes to; a pass ends when all hold its tokens.
        for slot in slots.kv_slots().filter(|slot| !recorder.given.contains_key(slot)) {
            let shape = slots.get(slot.index()).and_then(|slot| slot.kind.stored()).unwrap();
            let zeros = |dim: usize| vec![0.0; chunk[0].tokens() * shape.kv_heads * dim];
            pass::append(sequences, slot, &zeros(shape.key_dim), &zeros(shape.value_dim)).unwrap();
        }
        pass::end(sequences).unwrap();
        logits.extend_from_slice(found.data());
    }
    assert!(left.is_empty(), "the chunks hold {} tokens too few", left.len());
    let mut found = Differences::default();
    found.compare("logits", &truth.logits.concat(), &logits);
    for (truth, hidden) in truth.hidden.iter().zip(&hidden) {
        found.compare("hidden", &truth.concat(), hidden);
    }
    let all = |rows: &Rows| rows.concat();
    assert!(recorder.given.keys().eq(truth.keys.keys()), "the same slots get keys and values");
    for (slot, (keys, values)) in &recorder.given {
        found.compare("k", &all(&truth.keys[slot]), keys);
        found.compare("v", &all(&truth.values[slot]), values);
    }
    found
}
