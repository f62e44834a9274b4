//! One pass through a model: what goes in, and what is wanted of it.
//!
//! Everything that reads tokens is a [`Pass`]: prefill, a decode step of many sequences, an image's embeddings, a reranker that wants
//! hidden states, calibration that looks at layers. A backend has one function for all of them, and [`Abilities`] says what of a
//! pass it can do; the model refuses the rest by name before anything has changed.
//!
//! ```
//! use kvant_model::{Chunk, Pass};
//!
//! // Two sequences: one is read without logits, the other gives those after its token.
//! let chunks = [Chunk::new(&[1, 2, 3], 0..0), Chunk::new(&[4], 0..1)];
//! let pass = Pass::new(&chunks);
//! assert_eq!(pass.rows(), 4);
//! assert_eq!(pass.wanted().scored, [3]);
//! ```

use crate::adapter::AdapterMix;
use crate::rows::Rows;
use crate::top::{TopK, TopTokens};
use kvant_cache::AttentionObserver;
use std::ops::Range;

/// What a sequence reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Input<'a> {
    /// Token ids, at least one.
    Ids(&'a [u32]),
    /// Rows in place of those that the embedding table has for ids, `(tokens, hidden)`, with the model's scale in them. Learned
    /// positions are added as they are to ids.
    Embeddings(&'a Rows),
}

/// Where the tokens of a chunk stand, as the model sees it. What is held, and what a query may read, goes by the order of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions<'a> {
    /// One after another, after those that the sequence holds.
    Next,
    /// One number for every token.
    Each(&'a [usize]),
    /// Three numbers for every token: time, height and width (M-RoPE).
    Three(&'a [[usize; 3]]),
}

/// As what the wanted rows of a chunk come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form<'a> {
    /// Logits, `(vocabulary)`.
    Logits,
    /// For every wanted row the beginning of its ranking; where it is `None`, where [`Pass::accept`] does not accept the list, where
    /// a logit is NaN or +∞, and wherever the backend likes, the row comes as logits. [`crate::top`] has the rule.
    Top(&'a [Option<TopK>]),
    /// What the last layer has left after the final norm, `(hidden)`.
    Hidden,
}

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk<'a> {
    /// The tokens, at least one.
    pub input: Input<'a>,
    /// Where they stand.
    pub positions: Positions<'a>,
    /// Which of the tokens to give something for; `0..0` for none.
    pub wanted: Range<usize>,
    /// As what.
    pub form: Form<'a>,
    /// The adapters that they run with: those that the tokens before them ran with. None where this is `None`.
    pub adapters: Option<&'a AdapterMix>,
}

impl<'a> Chunk<'a> {
    /// Token ids, and which of them logits are wanted for.
    pub fn new(ids: &'a [u32], wanted: Range<usize>) -> Self {
        Self::of(Input::Ids(ids), wanted)
    }

    /// The same of rows of embeddings.
    pub fn of_embeddings(rows: &'a Rows, wanted: Range<usize>) -> Self {
        Self::of(Input::Embeddings(rows), wanted)
    }

    fn of(input: Input<'a>, wanted: Range<usize>) -> Self {
        Self { input, positions: Positions::Next, wanted, form: Form::Logits, adapters: None }
    }

    /// The same tokens, with the wanted rows in another form.
    #[must_use]
    pub fn form(self, form: Form<'a>) -> Self {
        Self { form, ..self }
    }

    /// The same tokens at other positions.
    #[must_use]
    pub fn at(self, positions: Positions<'a>) -> Self {
        Self { positions, ..self }
    }

    /// The same tokens with adapters.
    #[must_use]
    pub fn with(self, adapters: &'a AdapterMix) -> Self {
        Self { adapters: Some(adapters).filter(|mix| !mix.is_empty()), ..self }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        match self.input {
            Input::Ids(ids) => ids.len(),
            Input::Embeddings(rows) => rows.tokens(),
        }
    }

    /// Its token ids; none of embeddings.
    pub fn ids(&self) -> &'a [u32] {
        match self.input {
            Input::Ids(ids) => ids,
            Input::Embeddings(_) => &[],
        }
    }
}

/// Who is shown what, while a pass runs.
#[derive(Default)]
pub struct Observer<'o> {
    /// The layers' inputs.
    pub layers: Option<&'o mut LayerObserver<'o>>,
    /// Keys, values and queries.
    pub attention: Option<&'o mut (dyn AttentionObserver + 'o)>,
    /// What the last layer has left, `(tokens, hidden)`, before the final norm.
    pub stream: Option<&'o mut StreamObserver<'o>>,
}

/// What is shown the residual stream behind the last layer.
pub type StreamObserver<'o> = dyn FnMut(Rows) + 'o;

/// What is shown the activations of a pass: a layer's number and its input, `(tokens, hidden)`; last, under the number of
/// layers, the output of the last one after the final norm.
pub type LayerObserver<'o> = dyn FnMut(usize, &Rows) + 'o;

/// Whether the list of a wanted row, by its number among all wanted rows, settles the choice of a token.
pub type AcceptTopK<'e> = dyn Fn(usize, &TopTokens) -> bool + 'e;

/// A pass over the next tokens of some sequences, in their order. Rows of activations follow the chunks' tokens, chunk after chunk.
pub struct Pass<'p> {
    /// One for each sequence.
    pub chunks: &'p [Chunk<'p>],
    /// Which lists settle their rows, of those that are wanted as [`Form::Top`].
    pub accept: &'p AcceptTopK<'p>,
    /// Who looks on.
    pub observer: Observer<'p>,
    /// The layer to begin with, and its input as an observer was shown it, `(tokens, hidden)`; `None` for the whole model. Slots of
    /// layers before it get zeros, so a sequence that was begun like this goes on like this, from the same layer or a later one.
    pub first: Option<(usize, &'p Rows)>,
}

fn any_list(_: usize, _: &TopTokens) -> bool {
    true
}

impl<'p> Pass<'p> {
    /// A plain pass over these chunks.
    pub fn new(chunks: &'p [Chunk<'p>]) -> Self {
        Self { chunks, accept: &any_list, observer: Observer::default(), first: None }
    }

    /// The same pass, with a say in which lists settle their rows.
    #[must_use]
    pub fn accept(self, accept: &'p AcceptTopK<'p>) -> Self {
        Self { accept, ..self }
    }

    /// The same pass, shown to an observer layer by layer.
    #[must_use]
    pub fn observed(self, layers: &'p mut LayerObserver<'p>) -> Self {
        let observer = Observer { layers: Some(layers), ..self.observer };
        Self { observer, ..self }
    }

    /// The same pass, whose keys, values and queries are shown to an observer.
    #[must_use]
    pub fn watched(self, attention: &'p mut (dyn AttentionObserver + 'p)) -> Self {
        let observer = Observer { attention: Some(attention), ..self.observer };
        Self { observer, ..self }
    }

    /// The same pass, whose residual stream behind the last layer is shown.
    #[must_use]
    pub fn streamed(self, stream: &'p mut StreamObserver<'p>) -> Self {
        let observer = Observer { stream: Some(stream), ..self.observer };
        Self { observer, ..self }
    }

    /// The rest of the pass from a layer on.
    #[must_use]
    pub fn from_layer(self, layer: usize, input: &'p Rows) -> Self {
        Self { first: Some((layer, input)), ..self }
    }

    /// Rows of activations: the tokens of all chunks.
    pub fn rows(&self) -> usize {
        self.chunks.iter().map(Chunk::tokens).sum()
    }

    /// The ids of all chunks. A backend that reads ids alone gets no others.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().flat_map(|chunk| chunk.ids().iter().copied())
    }

    /// What is wanted, by row.
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        let (mut start, mut number) = (0, 0);
        for chunk in self.chunks {
            for (place, token) in chunk.wanted.clone().enumerate() {
                match chunk.form {
                    Form::Hidden => {
                        wanted.hidden.push(start + token);
                        wanted.hidden_numbers.push(number);
                    }
                    Form::Logits | Form::Top(_) => {
                        wanted.scored.push(start + token);
                        wanted.numbers.push(number);
                        wanted.top.push(match chunk.form {
                            Form::Top(top) => top.get(place).copied().flatten(),
                            Form::Logits | Form::Hidden => None,
                        });
                    }
                }
                number += 1;
            }
            start += chunk.tokens();
        }
        wanted
    }
}

/// The wanted rows of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// Rows that the head is to score.
    pub scored: Vec<usize>,
    /// Their numbers among all wanted rows.
    pub numbers: Vec<usize>,
    /// What is wanted of them in place of logits.
    pub top: Vec<Option<TopK>>,
    /// Rows whose hidden states are wanted.
    pub hidden: Vec<usize>,
    /// Their numbers among all wanted rows.
    pub hidden_numbers: Vec<usize>,
}

impl Wanted {
    /// Wanted hidden states out of those of all rows, `(rows, hidden)`.
    pub fn hidden_of(&self, all: &Rows) -> Rows {
        Rows::from_vec(self.hidden.iter().flat_map(|row| all.row(*row)).copied().collect(), all.width())
    }
}

/// What of a [`Pass`] a compiled model can do beside the rest, which every one can: ids at their own positions in, any form out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// [`Input::Embeddings`].
    pub embeddings: bool,
    /// [`Positions::Each`].
    pub positions: bool,
    /// [`Positions::Three`].
    pub three_positions: bool,
    /// [`Pass::first`].
    pub first_layer: bool,
    /// [`Observer::attention`].
    pub attention_observer: bool,
    /// [`Observer::stream`].
    pub stream_observer: bool,
    /// [`Chunk::adapters`].
    pub adapters: bool,
    /// A token's logits have the same bits however many tokens are read with it. Every pass may have as many as it likes; speculative
    /// decoding asks for this promise.
    pub any_rows: bool,
    /// [`Network::guess`](crate::Network::guess).
    pub mtp: bool,
}

/// What a head that guesses further tokens gave for the wanted rows of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Guesses {
    /// `(rows, vocabulary)`.
    pub logits: Rows,
    /// What the guess after each of them gets in place of what the model left, `(rows, hidden)`.
    pub hidden: Rows,
}

impl Abilities {
    /// What a pass asks for beyond these, by name.
    pub fn lacks(&self, pass: &Pass<'_>) -> Option<&'static str> {
        let asks = |of: &dyn Fn(&Chunk<'_>) -> bool| pass.chunks.iter().any(of);
        let checks = [
            (
                self.embeddings,
                asks(&|c| matches!(c.input, Input::Embeddings(_))),
                "rows of embeddings as input",
            ),
            (
                self.positions,
                asks(&|c| matches!(c.positions, Positions::Each(_))),
                "positions of the caller's",
            ),
            (
                self.three_positions,
                asks(&|c| matches!(c.positions, Positions::Three(_))),
                "three positions a token (M-RoPE)",
            ),
            (self.first_layer, pass.first.is_some(), "a pass that begins at a layer"),
            (
                self.attention_observer,
                pass.observer.attention.is_some(),
                "an observer of keys, values and queries",
            ),
            (
                self.stream_observer,
                pass.observer.stream.is_some(),
                "an observer of what the last layer has left",
            ),
            (self.adapters, asks(&|c| c.adapters.is_some()), "LoRA adapters"),
        ];
        checks.into_iter().find(|(can, asked, _)| *asked && !can).map(|(_, _, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_rows_keep_their_numbers_whatever_their_form() {
        let one = Some(TopK { count: 1, temperature: None });
        let top = [one, None];
        let chunks = [
            Chunk::new(&[1, 2, 3], 1..3).form(Form::Top(&top)),
            Chunk::new(&[4, 5], 0..2).form(Form::Hidden),
            Chunk::new(&[6], 0..1),
        ];
        let wanted = Pass::new(&chunks).wanted();
        assert_eq!((&wanted.scored[..], &wanted.numbers[..]), (&[1, 2, 5][..], &[0, 1, 4][..]));
        assert_eq!(wanted.top, [one, None, None]);
        assert_eq!((&wanted.hidden[..], &wanted.hidden_numbers[..]), (&[3, 4][..], &[2, 3][..]));
    }

    #[test]
    fn what_a_backend_cannot_do_is_named() {
        let rows = Rows::from_vec(vec![0.0; 4], 4);
        let none = Abilities::default();
        let ids = [Chunk::new(&[1], 0..1)];
        assert_eq!(none.lacks(&Pass::new(&ids)), None);
        assert_eq!(none.lacks(&Pass::new(&ids).from_layer(1, &rows)), Some("a pass that begins at a layer"));
        let given = [Chunk::of_embeddings(&rows, 0..1)];
        assert_eq!(none.lacks(&Pass::new(&given)), Some("rows of embeddings as input"));
        assert_eq!(Abilities { embeddings: true, ..none }.lacks(&Pass::new(&given)), None);
        let three = [Chunk::new(&[1], 0..1).at(Positions::Three(&[[0, 1, 2]]))];
        assert_eq!(none.lacks(&Pass::new(&three)), Some("three positions a token (M-RoPE)"));
    }
}
