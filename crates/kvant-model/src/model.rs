//! A loaded model: tokens in, logits out.

use crate::arch::{Architecture, LoadOptions, Network, Parts};
use crate::blocks::{Chunk, Observer, Pass, Rows, ScoreTraits};
use crate::cache::{CacheFull, LayerState};
use crate::checkpoint::Checkpoint;
use crate::config::Key;
use crate::error::Result;

/// A model ready to run. It is immutable; all state of a sequence is in its cache.
pub struct Model {
    architecture: &'static Architecture,
    network: Box<dyn Network>,
    states: Vec<LayerState>,
    context: Option<usize>,
}

/// A pass that cannot be made. Nothing has changed when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// A position the model has no embedding for.
    #[error("position {position} is beyond the {limit} positions the model has learned")]
    BeyondPositions {
        /// The position.
        position: usize,
        /// The number of positions.
        limit: usize,
    },
    /// The sequence's cache refuses the chunk.
    #[error(transparent)]
    Full(#[from] CacheFull),
}

impl Model {
    /// Loads a checkpoint of any architecture in [`crate::arch::REGISTRY`].
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self> {
        let parts = Parts::new(checkpoint, options)?;
        let architecture = Architecture::of(&parts)?;
        let network = architecture.load(&parts)?;
        let context = parts.hyper().size_if(Key("max_position_embeddings|n_positions", "context_length"))?;
        let states = network.states();
        Ok(Self { architecture, network, states, context })
    }

    /// The architecture it was loaded as.
    pub fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// Number of token ids, which is the width of logits.
    pub fn vocabulary(&self) -> usize {
        self.network.vocabulary()
    }

    /// The context the model was made for, where its file says.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// The number of positions the model has embeddings for; `None` where only quality suffers beyond its
    /// [`context`](Self::context).
    pub fn position_limit(&self) -> Option<usize> {
        self.network.position_limit()
    }

    /// What a cache for this model has to hold, entry by entry.
    pub fn states(&self) -> &[LayerState] {
        &self.states
    }

    /// How every attention layer makes scores.
    pub fn score_traits(&self) -> Vec<ScoreTraits> {
        self.network.score_traits()
    }

    /// The output weights of every attention layer that reads this entry of the cache, each `(hidden, heads · value_dim)`: what
    /// becomes of values once attention has summed them up.
    pub fn output_weights(&self, entry: usize) -> Vec<Rows> {
        self.network.output_weights(entry)
    }

    /// Runs the chunks through the network and returns the wanted logits, `(wanted tokens, vocabulary)`, chunk
    /// after chunk. The caches then hold the chunks' tokens.
    ///
    /// **Invariant:** a token's logits depend on the tokens before it in its sequence and on nothing else: not
    /// on how they were cut into chunks, what else was in the pass, or how many threads ran.
    pub fn forward(&self, chunks: &mut [Chunk<'_>]) -> Result<Rows, ForwardError> {
        self.run(chunks, None)
    }

    /// The same, showing `observer` the input of every layer by number, and last (under the number of layers)
    /// the output of the last one after the final norm; each `(tokens, hidden)`.
    pub fn forward_observed(
        &self,
        chunks: &mut [Chunk<'_>],
        observer: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        self.run(chunks, Some(observer))
    }

    fn run<'p>(
        &self,
        chunks: &'p mut [Chunk<'_>],
        observer: Option<&'p mut Observer<'p>>,
    ) -> Result<Rows, ForwardError> {
        for chunk in &mut *chunks {
            self.check(chunk)?;
        }
        for chunk in &mut *chunks {
            chunk.cache.reserve(chunk.tokens.len())?;
        }
        let mut pass = Pass::new(chunks, observer);
        let hidden = self.network.hidden(&mut pass);
        let wanted = pass.wanted();
        let logits = match wanted.len() {
            0 => Rows::zeros(0, self.vocabulary()),
            n if n == hidden.tokens() => self.network.logits(&hidden),
            _ => self.network.logits(&hidden.gather(&wanted)),
        };
        pass.finish();
        Ok(logits)
    }

    fn check(&self, chunk: &Chunk<'_>) -> Result<(), ForwardError> {
        let (tokens, vocabulary) = (chunk.tokens.len(), self.vocabulary());
        if tokens == 0 || chunk.wanted.start > chunk.wanted.end || chunk.wanted.end > tokens {
            return Err(ForwardError::BadChunk { tokens, wanted: chunk.wanted.clone() });
        }
        if let Some(&id) = chunk.tokens.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(ForwardError::UnknownToken { id, vocabulary });
        }
        let end = chunk.cache.len() + tokens;
        match self.network.position_limit() {
            Some(limit) if end > limit => Err(ForwardError::BeyondPositions { position: end - 1, limit }),
            _ => Ok(()),
        }
    }
}
