//! How many tokens a text has at least, without encoding it.
//!
//! Encoding a text of megabytes takes seconds and gigabytes, only to find that it fits into no context. A bound from below is found by
//! looking at each byte once: a byte can only be covered by tokens that contain it, so where the longest of these has L bytes, it is
//! worth at least 1/L of a token. For example, a digit is covered by tokens of at most three bytes in many vocabularies, and a
//! text of 900 digits has at least 300 tokens, however long the longest token of all is.
//!
//! **Invariant:** never more than the text has. White space counts nothing: some vocabularies drop it beside tokens of structure. A letter
//! counts as its other case does, one before a character outside of ASCII counts nothing, and the bytes of such characters count a quarter
//! of what the longest token is worth, because a normaliser may fold, compose or shorten them.

use kvant_text::tokenizer::Tokenizer;

/// What every byte of a text is worth at least.
pub(crate) struct LeastTokens {
    /// (256): parts of a token.
    shares: [f64; 256],
}

impl LeastTokens {
    /// For texts of this vocabulary.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        if tokenizer.loses_words() {
            return Self { shares: [0.0; 256] };
        }
        // (256): the longest token with this byte in it, and whether the byte is a token by itself.
        let (mut longest, mut is_token) = ([0_usize; 256], [false; 256]);
        let count = u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
        for bytes in (0..count).filter_map(|id| tokenizer.token_bytes(id).ok()) {
            for &byte in bytes {
                longest[usize::from(byte)] = longest[usize::from(byte)].max(bytes.len());
            }
            if let [byte] = bytes {
                is_token[usize::from(*byte)] = true;
            }
        }
        let longest_of_all = longest.iter().copied().max().unwrap_or(0).max(1);
        // Otherwise any number of characters may become one token for what is unknown. These are all bytes that UTF-8 has.
        let spells_all = is_token[0x80..0xc0].iter().chain(&is_token[0xc2..0xf5]).all(|&is| is);
        let share = |byte: usize| {
            let byte = byte as u8;
            let cases = [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()];
            match byte.is_ascii_graphic() && is_token[usize::from(byte)] {
                true => {
                    1.0 / cases.map(|case| longest[usize::from(case)]).into_iter().fold(1, usize::max) as f64
                }
                false if !byte.is_ascii() && spells_all => 0.25 / longest_of_all as f64,
                false => 0.0,
            }
        };
        Self { shares: std::array::from_fn(share) }
    }

    /// At least so many tokens does this text have.
    pub fn of(&self, text: &str) -> usize {
        let bytes = text.as_bytes();
        let mut sum = 0.0;
        for (at, &byte) in bytes.iter().enumerate() {
            let may_join = byte.is_ascii() && bytes.get(at + 1).is_some_and(|next| !next.is_ascii());
            if !may_join {
                sum += self.shares[usize::from(byte)];
            }
        }
        // What rounding may have added is much less than this.
        (sum * (1.0 - 1e-6)).floor() as usize
    }
}
