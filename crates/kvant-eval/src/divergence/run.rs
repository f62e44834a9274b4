//! One window, under way through the reference and the caches in question.

use super::Models;
use super::compare::Comparison;
use super::truth::{Seen, Truth};
use crate::error::EvalError;
use crate::kept::{Kept, ReferenceReader, ReferenceWriter, WindowResult, round};
use kvant_engine::{KvCache, Policy};
use kvant_model::{Chunk, Model, Rows};
use std::ops::Range;

pub struct Run<'r> {
    models: Models<'r>,
    number: usize,
    window: &'r [u32],
    /// Positions whose logits are compared.
    scored: Range<usize>,
    reference: Reference,
    caches: Vec<Subject>,
}

/// Where the predictions come from that others are compared with.
enum Reference {
    /// From the disk.
    Kept(ReferenceReader),
    /// From the reference's cache; written down where there is room.
    Live { cache: Box<KvCache>, writer: Option<ReferenceWriter> },
}

/// A cache in question, with its place among the results.
struct Subject {
    place: usize,
    cache: KvCache,
    comparisons: Vec<Comparison>,
}

impl<'r> Run<'r> {
    pub fn new(
        models: Models<'r>,
        targets: Range<usize>,
        (number, window): (usize, &'r [u32]),
        members: &[usize],
        (policies, reference): (&[Policy], &Policy),
        kept: Option<&mut Kept>,
    ) -> Result<Self, EvalError> {
        let open = |model: &Model, policy: Policy| {
            KvCache::in_arena(policy, model.slots(), window.len(), model.store())
        };
        let subject = |&place: &usize| {
            let cache = open(models.subject, policies[place].clone())?;
            Ok(Subject { place, cache, comparisons: Vec::new() })
        };
        let caches = members.iter().map(subject).collect::<Result<_, EvalError>>()?;
        let vocabulary = models.reference.vocabulary();
        let (reader, writer) = match kept {
            None => (None, None),
            Some(kept) => match kept.reference(window, targets.start, vocabulary) {
                Some(reader) => (Some(reader), None),
                None => (None, kept.keep_reference(window, targets.start, vocabulary)),
            },
        };
        let reference = match reader {
            Some(reader) => Reference::Kept(reader),
            None => Reference::Live { cache: Box::new(open(models.reference, reference.clone())?), writer },
        };
        // The logits at a position are about the token after it.
        let scored = targets.start - 1..targets.end - 1;
        Ok(Self { models, number, window, scored, reference, caches })
    }

    /// The next positions, through all caches.
    pub fn block(&mut self, block: Range<usize>, kept: Option<&mut Kept>) -> Result<(), EvalError> {
        let (window, number) = (self.window, self.number);
        let from = block.start.max(self.scored.start).min(block.end);
        let wanted = from - block.start..block.len();
        let next = &window[from + 1..block.end + 1];
        let tokens = &window[block];
        let not_finite = |row: usize| EvalError::NotFinite { window: number, position: from + row };
        let (logits, seen) = match &mut self.reference {
            Reference::Kept(reader) => reader
                .read(from.saturating_sub(self.scored.start), wanted.len())
                .map_err(|reason| EvalError::KeptReference { reason })?,
            Reference::Live { cache, writer } => {
                let mut logits = logits_of(self.models.reference, cache, tokens, wanted.clone())?; // (wanted, vocabulary)
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
        for Subject { cache, comparisons, .. } in &mut self.caches {
            let logits = logits_of(self.models.subject, cache, tokens, wanted.clone())?; // (wanted, vocabulary)
            comparisons.extend(Comparison::of_rows(&truth, &logits, next).map_err(not_finite)?);
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
            let Subject { place, cache, comparisons } = subject;
            (place, WindowResult { comparisons, footprint: cache.footprint() })
        };
        self.caches.into_iter().map(result).collect()
    }
}

/// One pass with one cache.
fn logits_of(
    model: &Model,
    kv: &mut KvCache,
    tokens: &[u32],
    wanted: Range<usize>,
) -> Result<Rows, EvalError> {
    let wanted = if wanted.is_empty() { 0..0 } else { wanted };
    let logits = model.forward(&[Chunk { tokens, wanted }], kv)?;
    Ok(logits)
}
