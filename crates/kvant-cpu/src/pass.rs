//! One pass through the network: which tokens of which sequences are in it, and how they are rotated.

use crate::blocks::{Activations, AdaptedRows, Folded, RopeTable, TokenInput};
use crate::reference;
use kvant_attention::Attention;
use kvant_cache::{
    AttentionObserver, KvSlot, Queries, RecurrentState, Scoring, Sequence, SequencePass, StateError,
    StateErrorKind, StateSlot, pass,
};
use kvant_model::description::{Rope, RopeId};
use kvant_model::{Chunk, Input, Positions};
use std::ops::Range;
use std::sync::Arc;

/// The rotations of a pass's tokens.
#[derive(Clone)]
pub struct Rotations {
    /// By their positions.
    pub own: Arc<RopeTable>,
    /// As queries meet the sinks of a streaming window; none where no sequence has one.
    pub at_sinks: Option<Arc<RopeTable>>,
}

/// A pass under way. Rows of activations follow the chunks' tokens, chunk after chunk.
pub struct CpuPass<'p, 's> {
    chunks: &'p [Chunk<'p>],
    sequences: &'p mut [&'s mut Sequence],
    /// Their parts of the pass.
    parts: Vec<SequencePass>,
    attention: &'p mut Attention,
    observer: Option<&'p mut (dyn AttentionObserver + 'p)>,
    /// Rows that run with adapters.
    pub adapted: AdaptedRows<'p>,
    /// Inputs of each layer's own, `(tokens, layers · width)`.
    pub per_layer: Option<Activations>,
    /// Positions that follow one another, and the sequence they belong to.
    spans: Vec<(Range<usize>, usize)>,
    /// How queries and keys meet slots of latents, by slot.
    pub folded: &'p [Option<Folded>],
    ropes: &'p [Rope],
    rotations: Vec<Option<Rotations>>, // (ropes)
}

impl<'p, 's> CpuPass<'p, 's> {
    /// A pass over chunks of sequences, which have begun it.
    ///
    /// # Errors
    /// For positions that rotations are not made for, and caches that are not read in one way.
    pub fn new(
        chunks: &'p [Chunk<'p>],
        sequences: &'p mut [&'s mut Sequence],
        attention: &'p mut Attention,
        ropes: &'p [Rope],
        folded: &'p [Option<Folded>],
    ) -> Result<Self, StateError> {
        let is_reference = |sequence: &&mut Sequence| sequence.layout().is_reference();
        if let Some(index) = sequences.iter().position(|of| is_reference(of) != is_reference(&sequences[0])) {
            let what = "a pass over reference caches and others: make one of each";
            return Err(StateError::new(index, StateErrorKind::Pass { what }));
        }
        let parts: Vec<SequencePass> = sequences.iter().map(|sequence| sequence.pass()).collect();
        let mut spans = Vec::with_capacity(chunks.len());
        for (sequence, (chunk, of)) in chunks.iter().zip(&parts).enumerate() {
            match chunk.positions {
                Positions::Next => spans.push((of.start..of.start + of.tokens, sequence)),
                Positions::Each(each) => spans.extend(each.iter().map(|&at| (at..at + 1, sequence))),
                Positions::Three(_) => {
                    let what = "a CPU does not rotate by three positions a token (M-RoPE)";
                    return Err(StateError::new(sequence, StateErrorKind::Pass { what }));
                }
            }
        }
        let rotations = vec![None; ropes.len()];
        let (observer, per_layer) = (None, None);
        let adapted = AdaptedRows::none();
        Ok(Self {
            chunks,
            sequences,
            parts,
            attention,
            observer,
            adapted,
            per_layer,
            spans,
            folded,
            ropes,
            rotations,
        })
    }

    /// The same pass, whose keys, values and queries are shown to somebody.
    pub fn observed(self, observer: Option<&'p mut (dyn AttentionObserver + 'p)>) -> Self {
        Self { observer, ..self }
    }

    /// The same pass, some of whose rows run with adapters.
    pub fn adapted(self, adapted: AdaptedRows<'p>) -> Self {
        Self { adapted, ..self }
    }

    /// The sequences' parts of it.
    pub fn sequences(&self) -> &[SequencePass] {
        &self.parts
    }

    /// The recurrent state of one sequence.
    pub fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        self.sequences[sequence].host_state(slot).map_err(|kind| StateError::new(sequence, kind))
    }

    /// Takes keys and values of all sequences.
    pub fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        if let Some(observer) = &mut self.observer {
            observer.append(&self.parts, slot, keys, values);
        }
        pass::append(self.sequences, slot, keys, values)
    }

    /// What the embedding makes a row of, for every token of the pass.
    pub fn inputs(&self) -> impl Iterator<Item = TokenInput<'p>> {
        self.chunks.iter().flat_map(|chunk| {
            (0..chunk.tokens()).map(move |token| match chunk.input {
                Input::Ids(ids) => TokenInput::Id(ids[token]),
                Input::Embeddings(rows) => TokenInput::Row(rows.row(token)),
            })
        })
    }

    /// The positions of all tokens of the pass, as the model sees them.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.spans.iter().flat_map(|(positions, _)| positions.clone())
    }

    /// The rotations of this pass, made on first use.
    pub fn rotations(&mut self, id: RopeId) -> Rotations {
        if let Some(Some(rotations)) = self.rotations.get(id.0) {
            return rotations.clone();
        }
        let rope = &self.ropes[id.0];
        let sequences = &self.parts;
        // A sequence without end is to the model one as long as its window.
        let capacity = |of: &SequencePass| of.streaming.map_or(of.capacity, |streaming| streaming.span());
        let spans = || self.spans.iter().map(|(positions, sequence)| (positions, &sequences[*sequence]));
        let own = spans().map(|(positions, of)| (positions.clone(), capacity(of)));
        let at_sinks = sequences.iter().any(|of| of.streaming.is_some()).then(|| {
            let tokens = spans().flat_map(|(positions, of)| {
                positions.clone().map(move |position| {
                    let position = of.streaming.map_or(position, |streaming| streaming.at_sinks(position));
                    (position..position + 1, capacity(of))
                })
            });
            Arc::new(RopeTable::new(rope, tokens))
        });
        let rotations = Rotations { own: Arc::new(RopeTable::new(rope, own)), at_sinks };
        self.rotations[id.0] = Some(rotations.clone());
        rotations
    }

    /// Attends with the queries of all sequences; the result is `out_width` wide. `at_sinks` are the queries as they meet the
    /// sinks of a streaming window, where a sequence has one.
    pub fn attend(
        &mut self,
        slot: KvSlot,
        queries: &Activations,
        at_sinks: Option<&Activations>,
        scoring: &Scoring<'_>,
        out_width: usize,
    ) -> Result<Activations, StateError> {
        let mut out = Activations::unset(queries.tokens(), out_width);
        let queries = Queries { own: queries.data(), at_sinks: at_sinks.map(Activations::data) };
        match self.sequences.first() {
            Some(first) if first.layout().is_reference() => {
                self.attend_reference(slot, queries, scoring, out.data_mut())?;
            }
            _ => self.attention.attend(&*self.sequences, slot, queries, scoring, out.data_mut())?,
        }
        if let Some(observer) = &mut self.observer {
            observer.attend(&self.parts, slot, queries, scoring, out.data());
        }
        Ok(out)
    }

    fn attend_reference(
        &self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let rows = self.parts.iter().map(|part| part.tokens).sum::<usize>().max(1);
        let (query_width, out_width) = (queries.own.len() / rows, out.len() / rows);
        let mut row = 0;
        for (index, (sequence, part)) in self.sequences.iter().zip(&self.parts).enumerate() {
            let end = row + part.tokens;
            let queries = &queries.own[row * query_width..end * query_width];
            let out = &mut out[row * out_width..end * out_width];
            reference::attend(sequence, slot, queries, scoring, out)
                .map_err(|kind| StateError::new(index, kind))?;
            row = end;
        }
        Ok(())
    }
}
