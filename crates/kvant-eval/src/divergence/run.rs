//! One window, under way through the reference and the caches in question.

use super::compare::Comparison;
use super::truth::{Seen, Truth};
use super::{Models, Same};
use crate::error::EvalError;
use crate::kept::{Kept, ReferenceReader, ReferenceWriter, WindowResult, round};
use kvant_cache::snapshot::{self, Record, Snapshot};
use kvant_codec::Side;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Chunk, Model, Pass, Rows};
use std::ops::Range;

pub struct Run<'r> {
    models: Models<'r>,
    number: usize,
    window: &'r [u32],
    /// Positions whose logits are compared.
    scored: Range<usize>,
    reference: Reference,
    caches: Vec<Subject>,
    /// Whether caches get the reference's pages before every block.
    shares_pages: bool,
}

/// Where the predictions come from that others are compared with.
enum Reference {
    /// From the disk.
    Kept(ReferenceReader),
    /// From the reference's cache; written down where there is room.
    Live { cache: Box<KvCache>, writer: Option<ReferenceWriter> },
}

/// What runs: the caches in question by their places among all policies, and the reference's.
#[derive(Clone, Copy)]
pub struct Caches<'c> {
    pub members: &'c [usize],
    pub policies: &'c [Policy],
    pub reference: &'c Policy,
    /// How the reference has the cache in question, where it is compared with that.
    pub same: Option<Same>,
}

/// A cache in question, with its place among the results.
struct Subject {
    place: usize,
    /// The first layer that is not as the reference has it: those before need not be run again.
    first: usize,
    cache: KvCache,
    comparisons: Vec<Comparison>,
}

impl<'r> Run<'r> {
    pub fn new(
        models: Models<'r>,
        targets: Range<usize>,
        (number, window): (usize, &'r [u32]),
        caches: &Caches<'_>,
        kept: Option<&mut Kept>,
    ) -> Result<Self, EvalError> {
        let Caches { members, policies, reference, same } = *caches;
        let open = |model: &Model, policy: &Policy| {
            KvCache::in_arena(policy, model.slots(), window.len(), model.store())
        };
        let subject = |&place: &usize| {
            let cache = open(models.subject, &policies[place])?;
            let first = first_rounded(&models, reference, &policies[place]);
            Ok(Subject { place, first, cache, comparisons: Vec::new() })
        };
        let mut caches = members.iter().map(subject).collect::<Result<Vec<Subject>, EvalError>>()?;
        let vocabulary = models.reference.vocabulary();
        let (reader, writer) = match kept {
            None => (None, None),
            Some(kept) => match kept.reference(window, targets.start, vocabulary) {
                Some(reader) => (Some(reader), None),
                None => (None, kept.keep_reference(window, targets.start, vocabulary)),
            },
        };
        let reference = match reader {
            Some(reader) => {
                // Predictions are kept, what layers get is not.
                caches.iter_mut().for_each(|subject| subject.first = 0);
                Reference::Kept(reader)
            }
            None => {
                let cache = match same {
                    None | Some(Same::Kernels) => open(models.reference, reference)?,
                    Some(Same::Decoded | Same::Pages) => {
                        KvCache::decoded(reference, models.reference.slots(), window.len())?
                    }
                };
                Reference::Live { cache: Box::new(cache), writer }
            }
        };
        // The logits at a position are about the token after it.
        let scored = targets.start - 1..targets.end - 1;
        let shares_pages = same == Some(Same::Pages);
        Ok(Self { models, number, window, scored, reference, caches, shares_pages })
    }

    /// The next positions, through all caches.
    pub fn block(&mut self, block: Range<usize>, kept: Option<&mut Kept>) -> Result<(), EvalError> {
        let (window, number) = (self.window, self.number);
        let from = block.start.max(self.scored.start).min(block.end);
        let wanted = from - block.start..block.len();
        let next = &window[from + 1..block.end + 1];
        let tokens = &window[block];
        if self.shares_pages && from > 0 {
            self.share_pages()?;
        }
        let not_finite = |row: usize| EvalError::NotFinite { window: number, position: from + row };
        let mut inputs: Vec<Option<Rows>> =
            vec![None; self.caches.iter().map(|of| of.first + 1).max().unwrap_or(0)];
        for Subject { first, .. } in &self.caches {
            inputs[*first] = (*first > 0).then(|| Rows::from_vec(Vec::new(), 1));
        }
        let (logits, seen) = match &mut self.reference {
            Reference::Kept(reader) => reader
                .read(from.saturating_sub(self.scored.start), wanted.len())
                .map_err(|reason| EvalError::KeptReference { reason })?,
            Reference::Live { cache, writer } => {
                let chunk = chunk(tokens, wanted.clone());
                let mut keep = |layer: usize, input: &Rows| {
                    if let Some(Some(kept)) = inputs.get_mut(layer) {
                        kept.clone_from(input);
                    }
                };
                let mut logits = self
                    .models
                    .reference
                    .forward(Pass::new(&[chunk]).observed(&mut keep), &mut [cache.sequence_mut()])?
                    .into_logits(); // (wanted, vocabulary)
                let seen = Seen::of_rows(&logits, next).map_err(not_finite)?;
                if let Some(kept) = kept {
                    let records = round(&mut logits, &seen).map_err(not_finite)?;
                    if let Some(mut open) = writer.take() {
                        match open.write(&records) {
                            Ok(()) => *writer = Some(open),
                            Err(error) => {
                                open.discard();
                                kept.give_up(&error);
                            }
                        }
                    }
                }
                (logits, seen)
            }
        };
        let truth = Truth::new(logits, &seen);
        for Subject { first, cache, comparisons, .. } in &mut self.caches {
            let chunk = chunk(tokens, wanted.clone());
            let (chunks, input) = ([chunk], inputs[*first].as_ref());
            let pass = Pass { first: input.map(|input| (*first, input)), ..Pass::new(&chunks) };
            let logits = self.models.subject.forward(pass, &mut [cache.sequence_mut()])?.into_logits(); // (wanted, vocabulary)
            comparisons.extend(Comparison::of_rows(&truth, &logits, next).map_err(not_finite)?);
        }
        Ok(())
    }

    /// Puts what the reference's cache holds into the others.
    fn share_pages(&mut self) -> Result<(), EvalError> {
        let Reference::Live { cache: reference, .. } = &self.reference else { return Ok(()) };
        let moved = |reason: String| EvalError::Moved { reason };
        let tokens = &self.window[..reference.len()];
        if tokens.is_empty() {
            return Ok(());
        }
        let record = Record { signature: [0; 32], numerics: [0; 32], policy: "", tokens, note: b"" };
        let mut bytes = Vec::new();
        snapshot::write(reference.sequence(), &record, &mut bytes).map_err(|e| moved(e.to_string()))?;
        let saved = Snapshot::from_bytes(bytes).map_err(|e| moved(e.to_string()))?;
        for Subject { cache, .. } in &mut self.caches {
            cache.restore(&saved, &[0; 32]).map_err(|e| moved(e.to_string()))?;
        }
        Ok(())
    }

    /// What the caches showed, each with its place.
    pub fn finish(self, kept: Option<&mut Kept>) -> Vec<(usize, WindowResult)> {
        if let Reference::Live { writer: Some(writer), .. } = self.reference
            && let Err(error) = writer.finish()
            && let Some(kept) = kept
        {
            kept.give_up(&error);
        }
        let result = |subject: Subject| {
            let Subject { place, cache, comparisons, .. } = subject;
            (place, WindowResult { comparisons, footprint: cache.footprint() })
        };
        self.caches.into_iter().map(result).collect()
    }
}

fn chunk(tokens: &[u32], wanted: Range<usize>) -> Chunk<'_> {
    Chunk::new(tokens, if wanted.is_empty() { 0..0 } else { wanted })
}

/// The first layer with something else than exact keys and values; zero where all have to be run whatever they hold.
fn first_rounded(models: &Models<'_>, reference: &Policy, policy: &Policy) -> usize {
    let exact: Policy = "f32".parse().expect("a spec of the grammar");
    if *reference != exact
        || !std::ptr::eq(models.reference, models.subject)
        || !models.subject.resumes()
        || policy.sparse_v.is_some()
        || policy.rule.streaming.is_some()
    {
        return 0;
    }
    let slots = models.subject.slots().iter().filter_map(|(_, slot)| Some((slot.layer, slot.kind.stored()?)));
    let is_rounded = |layer: usize, head: usize| {
        [Side::Key, Side::Value]
            .into_iter()
            .any(|side| policy.spec(layer, head, side) != exact.base.side(side))
    };
    let rounded = slots.filter(|(layer, shape)| (0..shape.kv_heads).any(|head| is_rounded(*layer, head)));
    rounded.map(|(layer, _)| layer).min().unwrap_or(0)
}
