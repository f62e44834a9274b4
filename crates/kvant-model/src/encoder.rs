//! Encoders at work: whole texts in, a row of every token or scores out. Nothing is kept between two calls.

use crate::description::Encoder;
use crate::model::{ForwardError, Model};
use crate::rows::Rows;

/// A text, or a pair of them, as an encoder reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderText<'a> {
    /// All tokens, those around the text included.
    pub ids: &'a [u32],
    /// Where the second text of a pair begins; the number of tokens where there is none.
    pub second: usize,
}

impl<'a> EncoderText<'a> {
    /// A text alone.
    pub fn alone(ids: &'a [u32]) -> Self {
        Self { ids, second: ids.len() }
    }
}

impl Model {
    /// What it has in place of a decoder's layers; `None` for decoders.
    pub fn encoder(&self) -> Option<&Encoder> {
        self.description.encoder.as_deref()
    }

    /// Whether it gives vectors or scores, and no text.
    pub fn is_encoder(&self) -> bool {
        self.encoder().is_some()
    }

    /// What an encoder makes of the tokens of these texts, text after text: `(tokens, hidden)`.
    ///
    /// **Invariant:** what comes of a text depends on that text alone: not on the others, and not on how many threads ran.
    ///
    /// # Errors
    /// If this is no encoder, a text is empty or too long, or a token is out of range.
    pub fn encode(&self, texts: &[EncoderText<'_>]) -> Result<Rows, ForwardError> {
        texts.iter().try_for_each(|text| self.check_text(text))?;
        self.check_files()?;
        let rows =
            self.network.encode(texts).ok_or(ForwardError::NotEncoder("is a decoder, not an encoder"))?;
        self.check_files()?;
        Ok(rows)
    }

    /// What a cross-encoder's classifier makes of these texts or pairs, `(texts, classes)`.
    ///
    /// # Errors
    /// As [`Model::encode`], and if it has no classifier.
    pub fn classify(&self, texts: &[EncoderText<'_>]) -> Result<Rows, ForwardError> {
        const MISSING: ForwardError =
            ForwardError::NotEncoder("has no classifier that could score pairs of texts");
        if self.encoder().is_none_or(|encoder| encoder.classifier.is_none()) {
            return Err(MISSING);
        }
        let rows = self.encode(texts)?;
        self.network.classify(texts, &rows).ok_or(MISSING)
    }

    fn check_text(&self, text: &EncoderText<'_>) -> Result<(), ForwardError> {
        let (tokens, vocabulary) = (text.ids.len(), self.vocabulary());
        if tokens == 0 || text.second > tokens {
            return Err(ForwardError::BadChunk { tokens, wanted: text.second..tokens });
        }
        if let Some(&id) = text.ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(ForwardError::UnknownToken { id, vocabulary });
        }
        match self.position_limit().filter(|&limit| tokens > limit) {
            Some(limit) => Err(ForwardError::BeyondPositions { position: tokens - 1, limit }),
            None => Ok(()),
        }
    }
}
