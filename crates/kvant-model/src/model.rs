//! A model ready to run: tokens in, logits out.

use crate::adapter::AdapterMix;
use crate::backend::{Backend, Network};
use crate::checkpoint::Checkpoint;
use crate::description::{Description, Mtp, ScoreTraits};
use crate::error::{LoadError, Result};
use crate::outputs::Outputs;
use crate::pass::{Abilities, Chunk, Form, Guesses, Input, Pass, Positions};
use crate::rows::Rows;
use kvant_cache::mapped::FileHealth;
use kvant_cache::{Arena, KvSlot, Sequence, SlotKind, Slots, StateError, Store, pass};
use std::path::PathBuf;
use std::sync::Arc;

/// A description, compiled by a backend. It is immutable; all state of a sequence is in its cache.
pub struct Model {
    pub(crate) description: Description,
    pub(crate) network: Box<dyn Network>,
    /// The backend's name.
    device: String,
    /// The files its weights are in, or were.
    files: Vec<Arc<FileHealth>>,
    /// Of its description's tensors: what adapters are held against.
    tensor_digest: [u8; 32],
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
    /// Rows of activations of another size than the model's.
    #[error("{rows} rows of {width} numbers for {tokens} tokens of {hidden}")]
    BadRows {
        /// Rows given.
        rows: usize,
        /// Numbers of each.
        width: usize,
        /// Tokens of the chunk or the pass.
        tokens: usize,
        /// Numbers that the model has of each.
        hidden: usize,
    },
    /// Lists or positions that are not one for each row.
    #[error("{given} {what} for {wanted} rows: give one for each")]
    Count {
        /// Which of them.
        what: &'static str,
        /// How many there are.
        given: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// Something that the backend cannot do.
    #[error("{device} cannot run this model with {what}")]
    Unsupported {
        /// The backend's name.
        device: String,
        /// What was asked for.
        what: &'static str,
    },
    /// An encoder where a decoder is needed.
    #[error(
        "this model is an encoder: it gives vectors of texts or scores of pairs, and no text; use it for embeddings or to rerank"
    )]
    Encoder,
    /// A model that cannot do what encoders do.
    #[error("this model {0}")]
    NotEncoder(&'static str),
    /// An adapter that was opened for another model.
    #[error("adapter {name:?} was opened for another model")]
    OtherBase {
        /// What it is called.
        name: String,
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
        if description.encoder.is_some() && !backend.runs_encoders() {
            return Err(LoadError::unsupported(format!(
                "{} runs no encoders (attention in both directions); the CPU does: --device cpu",
                backend.name()
            )));
        }
        let network = backend.compile(&description, checkpoint)?;
        checkpoint.intact()?;
        let (device, tensor_digest) = (backend.name().to_owned(), description.tensor_digest());
        Ok(Self { description, network, device, files: checkpoint.files(), tensor_digest })
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

    /// Whether a pass can begin at a layer ([`Pass::first`]): on a CPU, where every layer keeps its own keys and values and reads one
    /// residual stream.
    pub fn resumes(&self) -> bool {
        let own = |kind: &SlotKind| matches!(kind, SlotKind::KeysValues(_));
        self.network.abilities().first_layer && self.slots().iter().all(|(_, slot)| own(&slot.kind))
    }

    /// Runs a pass over these sequences and returns what was wanted of it. They then hold the chunks' tokens.
    ///
    /// **Invariant:** what comes of a token depends on the tokens before it in its sequence and on nothing else: not on how they were
    /// cut into chunks, what else was in the pass, or how many threads ran.
    ///
    /// # Errors
    /// If tokens or positions are out of range, the backend cannot do what the pass asks, or a sequence refuses; nothing has changed
    /// then.
    pub fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, ForwardError> {
        self.check(&pass, sequences)?;
        self.check_files()?;
        let tokens: Vec<usize> = pass.chunks.iter().map(Chunk::tokens).collect();
        let first = pass.first.map(|(layer, _)| (layer, pass.rows()));
        pass::begin(sequences, &tokens)?;
        let found = self.network.forward(pass, sequences).map_err(ForwardError::from).and_then(|found| {
            if let Some((layer, rows)) = first {
                self.append_zeros(layer, rows, sequences)?;
            }
            self.check_files()?;
            pass::end(sequences)?;
            Ok(found)
        });
        found.inspect_err(|_| pass::abandon(sequences))
    }

    /// The head that guesses further tokens, where the file has one and it was loaded.
    pub fn mtp(&self) -> Option<&Mtp> {
        let mtp = self.description.mtp.as_ref().and_then(|mtp| mtp.as_ref().ok())?;
        self.network.abilities().mtp.then_some(mtp)
    }

    /// Runs that head over sequences of its own slots: chunks of ids, each the token *after* that which its row of `hidden` is about, in
    /// the chunks' order. They then hold the chunks' tokens.
    ///
    /// # Errors
    /// If there is no such head, tokens are out of range, rows are not one for each token, or a sequence refuses; nothing has changed then.
    pub fn guess(
        &self,
        chunks: &[Chunk<'_>],
        hidden: &Rows,
        sequences: &mut [&mut Sequence],
    ) -> Result<Guesses, ForwardError> {
        if self.mtp().is_none() {
            let what = "a head that guesses further tokens (MTP)";
            return Err(ForwardError::Unsupported { device: self.device.clone(), what });
        }
        if let Some(what) = Abilities::default().lacks(&Pass::new(chunks)) {
            return Err(ForwardError::Unsupported { device: self.device.clone(), what });
        }
        if chunks.len() != sequences.len() {
            return Err(ForwardError::Chunks { chunks: chunks.len(), sequences: sequences.len() });
        }
        let tokens: Vec<usize> = chunks.iter().map(Chunk::tokens).collect();
        self.check_rows(hidden, tokens.iter().sum())?;
        for (chunk, sequence) in chunks.iter().zip(&*sequences) {
            self.check_chunk(chunk, sequence.len())?;
        }
        self.check_files()?;
        pass::begin(sequences, &tokens)?;
        let found = self.network.guess(chunks, hidden, sequences).map_err(ForwardError::from);
        let found = found.and_then(|found| {
            self.check_files()?;
            pass::end(sequences)?;
            Ok(found)
        });
        found.inspect_err(|_| pass::abandon(sequences))
    }

    /// Weights that are gone read as zeros: what a pass made of them must not be taken for an answer.
    pub(crate) fn check_files(&self) -> Result<(), ForwardError> {
        match self.files.iter().find(|file| file.is_damaged()) {
            Some(file) => Err(ForwardError::FileDamaged(file.path().to_path_buf())),
            None => Ok(()),
        }
    }

    /// What the slots of layers before the first of a pass get.
    fn append_zeros(
        &self,
        first: usize,
        rows: usize,
        sequences: &mut [&mut Sequence],
    ) -> Result<(), StateError> {
        for slot in self.slots().kv_slots() {
            let of_slot = self.slots().get(slot.index()).filter(|slot| slot.layer < first);
            if let Some(shape) = of_slot.and_then(|slot| slot.kind.stored()) {
                let zeros = |dim: usize| vec![0.0; rows * shape.kv_heads * dim];
                pass::append(sequences, slot, &zeros(shape.key_dim), &zeros(shape.value_dim))?;
            }
        }
        Ok(())
    }

    /// What its backend can do, and what it promises.
    pub fn abilities(&self) -> Abilities {
        Abilities { first_layer: self.resumes(), ..self.network.abilities() }
    }

    fn check(&self, pass: &Pass<'_>, sequences: &[&mut Sequence]) -> Result<(), ForwardError> {
        if self.is_encoder() {
            return Err(ForwardError::Encoder);
        }
        if pass.chunks.len() != sequences.len() {
            return Err(ForwardError::Chunks { chunks: pass.chunks.len(), sequences: sequences.len() });
        }
        if let Some(what) = self.abilities().lacks(pass) {
            return Err(ForwardError::Unsupported { device: self.device.clone(), what });
        }
        if let Some((_, input)) = pass.first {
            self.check_rows(input, pass.rows())?;
        }
        for (chunk, sequence) in pass.chunks.iter().zip(sequences) {
            chunk.adapters.map_or(Ok(()), |adapters| self.check_adapters(adapters))?;
            self.check_chunk(chunk, sequence.len())?;
        }
        Ok(())
    }

    /// Whether sequences of this model can run with these adapters.
    ///
    /// # Errors
    /// If the backend applies none, or one was opened for another model.
    pub fn check_adapters(&self, adapters: &AdapterMix) -> Result<(), ForwardError> {
        if !adapters.is_empty() && !self.network.abilities().adapters {
            let device = self.device.clone();
            return Err(ForwardError::Unsupported { device, what: "LoRA adapters" });
        }
        match adapters.iter().find(|applied| !applied.adapter.fits(&self.tensor_digest)) {
            Some(other) => Err(ForwardError::OtherBase { name: other.adapter.name().to_owned() }),
            None => Ok(()),
        }
    }

    fn check_chunk(&self, chunk: &Chunk<'_>, start: usize) -> Result<(), ForwardError> {
        let (tokens, vocabulary) = (chunk.tokens(), self.vocabulary());
        if tokens == 0 || chunk.wanted.start > chunk.wanted.end || chunk.wanted.end > tokens {
            return Err(ForwardError::BadChunk { tokens, wanted: chunk.wanted.clone() });
        }
        match chunk.input {
            Input::Ids(ids) => {
                if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                    return Err(ForwardError::UnknownToken { id, vocabulary });
                }
            }
            Input::Embeddings(rows) => self.check_rows(rows, tokens)?,
        }
        let of_tokens = |what, given, wanted| match given == wanted {
            true => Ok(()),
            false => Err(ForwardError::Count { what, given, wanted }),
        };
        if let Form::Top(top) = chunk.form {
            of_tokens("lists", top.len(), chunk.wanted.len())?;
        }
        let last = match chunk.positions {
            Positions::Next => start + tokens - 1,
            Positions::Each(positions) => {
                of_tokens("positions", positions.len(), tokens)?;
                positions.iter().copied().max().unwrap_or(0)
            }
            Positions::Three(positions) => {
                of_tokens("positions", positions.len(), tokens)?;
                positions.iter().flatten().copied().max().unwrap_or(0)
            }
        };
        match self.position_limit().filter(|&limit| last >= limit) {
            Some(limit) => Err(ForwardError::BeyondPositions { position: last, limit }),
            None => Ok(()),
        }
    }

    fn check_rows(&self, rows: &Rows, tokens: usize) -> Result<(), ForwardError> {
        let hidden = self.description.hidden;
        if rows.width() != hidden || rows.tokens() != tokens {
            return Err(ForwardError::BadRows { rows: rows.tokens(), width: rows.width(), tokens, hidden });
        }
        Ok(())
    }
}
