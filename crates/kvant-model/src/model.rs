//! A model ready to run: tokens in, logits out.

use crate::backend::{Backend, Chunk, Enough, Network, Observer};
use crate::checkpoint::Checkpoint;
use crate::description::{Description, ScoreTraits};
use crate::error::Result;
use crate::mapped::FileHealth;
use crate::rows::Rows;
use crate::top::{Outputs, TopK};
use kvant_cache::{Arena, KvSlot, PassState, SlotKind, Slots, StateError, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// A description, compiled by a backend. It is immutable; all state of a sequence is in its cache.
pub struct Model {
    description: Description,
    network: Box<dyn Network>,
    /// The files its weights are in, or were.
    files: Vec<Arc<FileHealth>>,
}

/// A pass that cannot be made. Nothing has changed when one of these is returned: the state holds what it held.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// A token id beyond the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of ids.
        vocabulary: usize,
    },
    /// A chunk without tokens, or logits asked for beyond its end.
    #[error("a chunk of {tokens} tokens cannot give logits for {wanted:?}; chunks hold at least one token")]
    BadChunk {
        /// Tokens in the chunk.
        tokens: usize,
        /// Positions asked for.
        wanted: std::ops::Range<usize>,
    },
    /// More or fewer chunks than sequences.
    #[error("{chunks} chunks for {sequences} sequences: a pass has one chunk of each")]
    Chunks {
        /// Chunks given.
        chunks: usize,
        /// Sequences of the state.
        sequences: usize,
    },
    /// A position the model has no embedding for.
    #[error("position {position} is beyond the {limit} positions the model has learned")]
    BeyondPositions {
        /// The position.
        position: usize,
        /// The number of positions.
        limit: usize,
    },
    /// The file of the weights shrank, or its disk failed.
    #[error("{} was truncated or cannot be read any more: fetch it again, and load the model anew", .0.display())]
    FileDamaged(PathBuf),
    /// The state of a sequence refuses the pass, or cannot keep what a layer computed.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Model {
    /// Describes a checkpoint of any architecture in [`crate::arch::REGISTRY`] and has it compiled.
    ///
    /// # Errors
    /// If it cannot be described, or the backend cannot run it.
    pub fn load(backend: &dyn Backend, checkpoint: &Checkpoint) -> Result<Self> {
        let description = Description::of(checkpoint)?;
        let network = backend.compile(&description, checkpoint)?;
        checkpoint.intact()?;
        Ok(Self { description, network, files: checkpoint.files() })
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Number of token ids, which is the width of logits.
    pub fn vocabulary(&self) -> usize {
        self.description.vocabulary
    }

    /// The context the model was made for, where its file says.
    pub fn context(&self) -> Option<usize> {
        self.description.context
    }

    /// The number of positions the model has embeddings for; `None` where only quality suffers beyond its
    /// [`context`](Self::context).
    pub fn position_limit(&self) -> Option<usize> {
        self.description.position_limit()
    }

    /// What a sequence of this model keeps between passes.
    pub fn slots(&self) -> &Slots {
        &self.description.slots
    }

    /// How every attention layer makes scores.
    pub fn score_traits(&self) -> Vec<ScoreTraits> {
        self.description.score_traits()
    }

    /// The output weights of every attention layer that reads this slot, each `(hidden, heads · value_dim)`: what
    /// becomes of values once attention has summed them up.
    pub fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        self.network.output_weights(slot)
    }

    /// Where its sequences have to take their pages from, on a device; `None` for memory of the host, whichever.
    pub fn device_store(&self) -> Option<Store> {
        self.network.store()
    }

    /// A store for a sequence of this model: the device's, or fresh memory of the host.
    pub fn store(&self) -> Store {
        self.device_store().unwrap_or_else(|| Arena::new().into())
    }

    /// Runs one chunk of every sequence of `state` through the network and returns the wanted logits,
    /// `(wanted tokens, vocabulary)`, chunk after chunk. The sequences then hold the chunks' tokens.
    ///
    /// **Invariant:** a token's logits depend on the tokens before it in its sequence and on nothing else: not
    /// on how they were cut into chunks, what else was in the pass, or how many threads ran.
    ///
    /// # Errors
    /// If tokens or positions are out of range, or the state of a sequence refuses; nothing has changed then.
    pub fn forward(&self, chunks: &[Chunk<'_>], state: &mut dyn PassState) -> Result<Rows, ForwardError> {
        self.run(chunks, state, |network, state| network.forward(chunks, state, None))
    }

    /// The same, where rows may come as the beginnings of their rankings instead of as logits; see [`Network::forward_top`].
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_top(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        top: &[Option<TopK>],
        enough: &Enough<'_>,
    ) -> Result<Outputs, ForwardError> {
        self.run(chunks, state, |network, state| network.forward_top(chunks, state, top, enough))
    }

    /// The same, showing `observer` the input of every layer by number, and last (under the number of layers)
    /// the output of the last one after the final norm; each `(tokens, hidden)`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_observed(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        observer: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        self.run(chunks, state, |network, state| network.forward(chunks, state, Some(observer)))
    }

    /// Whether [`forward_from`](Self::forward_from) can begin a pass at a layer: on a CPU, where every layer keeps its own keys and
    /// values and reads one residual stream.
    pub fn resumes(&self) -> bool {
        let own = |kind: &SlotKind| matches!(kind, SlotKind::KeysValues(_));
        self.network.resumes() && self.slots().iter().all(|(_, slot)| own(&slot.kind))
    }

    /// The rest of a pass whose first layers are known: layer number `layer` gets `input`, `(tokens, hidden)`, which
    /// [`forward_observed`](Self::forward_observed) has shown. The state holds zeros for the layers before, so a sequence that was
    /// begun like this goes on like this, from the same layer or a later one.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and always where the model does not [resume](Self::resumes).
    pub fn forward_from(
        &self,
        (layer, input): (usize, &Rows),
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
    ) -> Result<Rows, ForwardError> {
        let tokens = input.tokens();
        self.run(chunks, state, |network, state| {
            let logits = network.forward_from((layer, input), chunks, state)?;
            for slot in self.slots().kv_slots() {
                let of_slot = self.slots().get(slot.index()).filter(|slot| slot.layer < layer);
                if let Some(shape) = of_slot.and_then(|slot| slot.kind.stored()) {
                    let zeros = |dim: usize| vec![0.0; tokens * shape.kv_heads * dim];
                    state.append(slot, &zeros(shape.key_dim), &zeros(shape.value_dim))?;
                }
            }
            Ok(logits)
        })
    }

    fn run<T>(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        pass: impl FnOnce(&dyn Network, &mut dyn PassState) -> Result<T, StateError>,
    ) -> Result<T, ForwardError> {
        self.check(chunks, state)?;
        self.check_files()?;
        let tokens: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len()).collect();
        state.begin(&tokens)?;
        let found = pass(&*self.network, state).map_err(ForwardError::from).and_then(|found| {
            self.check_files()?;
            state.end()?;
            Ok(found)
        });
        found.inspect_err(|_| state.abandon())
    }

    /// Weights that are gone read as zeros: what a pass made of them must not be taken for an answer.
    fn check_files(&self) -> Result<(), ForwardError> {
        match self.files.iter().find(|file| file.is_damaged()) {
            Some(file) => Err(ForwardError::FileDamaged(file.path().to_path_buf())),
            None => Ok(()),
        }
    }

    fn check(&self, chunks: &[Chunk<'_>], state: &dyn PassState) -> Result<(), ForwardError> {
        let (sequences, vocabulary) = (state.sequences(), self.vocabulary());
        if chunks.len() != sequences.len() {
            return Err(ForwardError::Chunks { chunks: chunks.len(), sequences: sequences.len() });
        }
        for (chunk, sequence) in chunks.iter().zip(sequences) {
            let tokens = chunk.tokens.len();
            if tokens == 0 || chunk.wanted.start > chunk.wanted.end || chunk.wanted.end > tokens {
                return Err(ForwardError::BadChunk { tokens, wanted: chunk.wanted.clone() });
            }
            if let Some(&id) = chunk.tokens.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(ForwardError::UnknownToken { id, vocabulary });
            }
            let end = sequence.start + tokens;
            if let Some(limit) = self.position_limit().filter(|&limit| end > limit) {
                return Err(ForwardError::BeyondPositions { position: end - 1, limit });
            }
        }
        Ok(())
    }
}
