//! From a text to windows of token ids, cut as llama.cpp's perplexity tool cuts them.
//!
//! The text is tokenised once, with the tokens the model wants before a whole text (usually a beginning-of-text
//! token, for some models none). Windows of `ctx` tokens follow each other without overlap; what is left at the
//! end is not used. Every window is a sequence of its own and begins as a whole text does, so its first token
//! is *replaced* by the beginning-of-text token where the model wants one.
//!
//! ```text
//! text     B a b c d e f g h i j k …        B: beginning of text
//! windows  B a b c d e | B g h i j k | …    ctx = 6
//! scored           * *         * *          second half: the targets from ctx/2 + 1 on
//! ```

use crate::error::EvalError;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Range;
use std::slice::ChunksExact;
use std::str::FromStr;

/// Two scored tokens in the second half, so that even one window has a standard error.
const LEAST_CTX: usize = 6;

/// Which tokens of a window count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Score {
    /// Those that at least half a window precedes: what llama.cpp reports.
    #[default]
    SecondHalf,
    /// All that anything precedes.
    All,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SecondHalf => "second-half",
            Self::All => "all",
        })
    }
}

impl FromStr for Score {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::SecondHalf, Self::All]
            .into_iter()
            .find(|score| score.to_string() == name)
            .ok_or_else(|| format!("{name:?} is not a way to score; use second-half or all"))
    }
}

/// Windows of a text, ready to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    ids: Vec<u32>, // (chunks, ctx)
    ctx: usize,
    score: Score,
    first_target: usize,
}

impl Windows {
    /// The first `chunks` windows of `ctx` tokens of `text`.
    ///
    /// # Errors
    /// If the text is too short or cannot be tokenised, or the windows have nothing to score.
    pub fn of_text(
        tokenizer: &Tokenizer,
        text: &str,
        ctx: usize,
        chunks: usize,
        score: Score,
    ) -> Result<Self, EvalError> {
        let ids = tokenizer.encode(text, EncodeOptions::default())?;
        Self::of_ids(tokenizer.prefix(), &ids, ctx, chunks, score)
    }

    /// The same for ids; `prefix` begins the text and every window.
    ///
    /// # Errors
    /// If there are too few ids, or the windows have nothing to score.
    pub fn of_ids(
        prefix: &[u32],
        ids: &[u32],
        ctx: usize,
        chunks: usize,
        score: Score,
    ) -> Result<Self, EvalError> {
        let least = LEAST_CTX.max(prefix.len() + 2);
        if chunks == 0 || ctx < least {
            return Err(EvalError::NothingToScore { chunks, ctx, least });
        }
        let (tokens, needed) = (prefix.len() + ids.len(), ctx.saturating_mul(chunks));
        if tokens < needed {
            return Err(EvalError::TextTooShort { tokens, needed, ctx, chunks });
        }
        let mut windows: Vec<u32> = prefix.iter().chain(ids).copied().take(needed).collect();
        for window in windows.chunks_exact_mut(ctx) {
            window[..prefix.len()].copy_from_slice(prefix);
        }
        let first_target = match score {
            Score::SecondHalf => ctx / 2 + 1,
            Score::All => 1,
        };
        // What was put there by us is no prediction of the model's.
        let first_target = first_target.max(prefix.len());
        Ok(Self { ids: windows, ctx, score, first_target })
    }

    /// Length of a window.
    pub fn ctx(&self) -> usize {
        self.ctx
    }

    /// Number of windows.
    pub fn chunks(&self) -> usize {
        self.ids.len() / self.ctx
    }

    /// What is scored.
    pub fn score(&self) -> Score {
        self.score
    }

    /// The places in a window whose tokens are scored.
    pub fn targets(&self) -> Range<usize> {
        self.first_target..self.ctx
    }

    /// Scored tokens of all windows.
    pub fn scored(&self) -> usize {
        self.chunks() * self.targets().len()
    }

    /// The windows, `ctx` ids each.
    pub fn iter(&self) -> ChunksExact<'_, u32> {
        self.ids.chunks_exact(self.ctx)
    }

    /// SHA-256 of all ids as little-endian 32-bit numbers, in hexadecimal: two engines that print the same
    /// digest were asked the same question.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for id in &self.ids {
            hash.update(id.to_le_bytes());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<'a> IntoIterator for &'a Windows {
    type Item = &'a [u32];
    type IntoIter = ChunksExact<'a, u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_begins_as_a_text_does() {
        let windows = Windows::of_ids(&[99], &(1..=20).collect::<Vec<_>>(), 8, 2, Score::SecondHalf).unwrap();
        let cut: Vec<&[u32]> = windows.iter().collect();
        assert_eq!(cut, [[99, 1, 2, 3, 4, 5, 6, 7], [99, 9, 10, 11, 12, 13, 14, 15]]);
        assert_eq!((windows.targets(), windows.scored()), (5..8, 6));
    }

    #[test]
    fn without_a_prefix_windows_are_the_text() {
        let ids: Vec<u32> = (0..16).collect();
        let windows = Windows::of_ids(&[], &ids, 8, 2, Score::All).unwrap();
        assert_eq!(windows.iter().collect::<Vec<_>>().concat(), ids);
        assert_eq!((windows.targets(), windows.chunks()), (1..8, 2));
    }

    #[test]
    fn a_prefix_is_never_scored() {
        let windows = Windows::of_ids(&[7, 8, 9], &[1; 8], 8, 1, Score::All).unwrap();
        assert_eq!(windows.targets(), 3..8);
        assert!(matches!(
            Windows::of_ids(&[7; 7], &[1; 8], 8, 1, Score::All),
            Err(EvalError::NothingToScore { least: 9, .. })
        ));
    }

    #[test]
    fn a_short_text_is_refused_with_its_sums() {
        let refusal = |tokens: usize, ctx, chunks| {
            Windows::of_ids(&[1], &vec![2; tokens - 1], ctx, chunks, Score::All).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(700, 512, 8),
            "the text has 700 tokens, and 8 × 512 need 4096; give a longer text or --chunks 1"
        );
        assert!(refusal(100, 512, 1).ends_with("give a longer text or lower --ctx"));
        assert!(refusal(100, 64, usize::MAX).contains("need 18446744073709551615"));
    }

    #[test]
    fn nothing_to_score_is_refused() {
        for (ctx, chunks) in [(0, 1), (5, 1), (8, 0)] {
            let refused = Windows::of_ids(&[], &[1; 64], ctx, chunks, Score::SecondHalf);
            assert!(matches!(refused, Err(EvalError::NothingToScore { .. })), "{ctx} × {chunks}");
        }
        assert_eq!(Windows::of_ids(&[], &[1; 6], 6, 1, Score::SecondHalf).unwrap().scored(), 2);
    }

    #[test]
    fn the_digest_is_of_little_endian_words() {
        let windows = Windows::of_ids(&[], &[0x0102_0304, 1, 1, 1, 1, 1], 6, 1, Score::All).unwrap();
        let mut bytes = vec![4, 3, 2, 1];
        bytes.extend([1, 0, 0, 0].repeat(5));
        let expected: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(windows.digest(), expected);
    }

    #[test]
    fn scores_are_read_as_they_are_printed() {
        for score in [Score::SecondHalf, Score::All] {
            assert_eq!(score.to_string().parse(), Ok(score));
        }
        assert!("first-half".parse::<Score>().is_err());
    }
}
