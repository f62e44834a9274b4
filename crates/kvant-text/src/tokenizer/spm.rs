//! SentencePiece BPE: pieces are joined by score.
//!
//! The text is cut into characters, then the two neighbours whose joined text is the best-scoring piece are
//! joined, the leftmost of equals first, until no neighbours form a piece. What is still no piece is spelled in
//! bytes. The `tokenizers` crate has no model that does this from scores alone (its BPE ranks *pairs*, so two
//! ways to make one piece never tie as they must here), hence our own.
//!
//! For example, with the pieces `ab` (score −2), `bc` (−1) and `bcd` (−9), `abcd` becomes `a bc d` by the better of
//! the two first joins, then `a bcd`; `ab` is never made.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};

use super::pieces::byte_token;
use super::{GgufVocab, TokenKind, TokenizerError};

/// The character SentencePiece writes a space as.
const SPACE: &str = "▁";

/// An encoder for `llama` vocabularies.
pub(super) struct SpmEncoder {
    /// Text of a piece to its id and score.
    pieces: AHashMap<Box<str>, (u32, f32)>,
    /// (256): the id of each byte token.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    add_space_prefix: bool,
    /// Tokens cut out of any text first.
    always: Whole,
    /// The same and the tokens of structure.
    with_special: Whole,
}

/// Tokens that are found as they stand, leftmost and longest first.
struct Whole {
    finder: AhoCorasick,
    ids: Vec<u32>,
    /// Whether white space after each is dropped.
    strips: Vec<bool>,
}

/// Tokens of Phi 3's vocabulary that leave the white space after them alone, unlike its other ones.
const KEEP_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

impl Whole {
    fn new(vocab: &GgufVocab, kinds: &[TokenKind], wanted: &[TokenKind]) -> Result<Self, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = (0u32..)
            .zip(vocab.tokens.iter().zip(kinds))
            .filter(|(_, (text, kind))| wanted.contains(kind) && !text.is_empty())
            .map(|(id, (text, _))| (id, text.as_str()))
            .unzip();
        let strips = texts.iter().map(|text| vocab.strips_after_structure && !KEEP_SPACE.contains(text));
        let strips = strips.collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|e| TokenizerError::BadVocabulary(e.to_string()))?;
        Ok(Self { finder, ids, strips })
    }
}

impl SpmEncoder {
    pub(super) fn new(
        vocab: &GgufVocab,
        kinds: &[TokenKind],
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        if vocab.scores.is_empty() {
            return Err(TokenizerError::BadVocabulary(
                "tokenizer.ggml.scores is missing, which a llama vocabulary cannot do without".into(),
            ));
        }
        let mut pieces = AHashMap::with_capacity(vocab.tokens.len());
        let mut bytes = vec![None; 256];
        for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(kinds)) {
            match kind {
                TokenKind::Byte => {
                    if let Some(byte) = byte_token(text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                // Plain text must never become structure, so these are no pieces.
                TokenKind::Control | TokenKind::Unknown => {}
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
                    let entry = (id, vocab.scores[id as usize]);
                    if let Some((first, _)) = pieces.insert(text.as_str().into(), entry) {
                        return Err(TokenizerError::BadVocabulary(format!(
                            "tokens {first} and {id} are both `{text}`"
                        )));
                    }
                }
            }
        }
        let always = Whole::new(vocab, kinds, &[TokenKind::UserDefined])?;
        let structure = [TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown];
        let with_special = Whole::new(vocab, kinds, &structure)?;
        Ok(Self { pieces, bytes, unknown, add_space_prefix, always, with_special })
    }

    pub(super) fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let whole = if parse_special { &self.with_special } else { &self.always };
        let mut ids = Vec::new();
        let mut from = 0;
        for found in whole.finder.find_iter(text) {
            // Empty where a token begins within white space that the one before it dropped.
            self.encode_fragment(text.get(from..found.start()).unwrap_or_default(), &mut ids)?;
            let token = found.pattern().as_usize();
            ids.push(whole.ids[token]);
            let rest = &text[found.end()..];
            let kept = if whole.strips[token] { rest.trim_start() } else { rest };
            from = text.len() - kept.len();
        }
        self.encode_fragment(&text[from..], &mut ids)?;
        Ok(ids)
    }

    /// Encodes text between whole tokens. Each such stretch counts as the start of a sentence.
    fn encode_fragment(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut spelled = text.replace(' ', SPACE);
        if self.add_space_prefix {
            spelled.insert_str(0, SPACE);
        }
        for piece in Joining::new(self, &spelled).run() {
            match self.pieces.get(piece) {
                Some((id, _)) => ids.push(*id),
                None => self.spell_in_bytes(piece, ids)?,
            }
        }
        Ok(())
    }

    fn spell_in_bytes(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        for byte in piece.bytes() {
            let id = self.bytes[usize::from(byte)].or(self.unknown);
            ids.push(id.ok_or_else(|| {
                TokenizerError::Encode(format!(
                    "`{piece}` is not in the vocabulary, which has neither a token for byte {byte:#04x} nor an \
                     unknown token"
                ))
            })?);
        }
        Ok(())
    }
}

/// A stretch of the text in the making; joined stretches become empty on the right-hand side.
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that form a piece, as they were when they were found.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of the joined text: tells a stale candidate.
    len: usize,
}

impl Ord for Candidate {
    /// The best score is greatest, and the leftmost of equal scores. Scores are never NaN.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

struct Joining<'a> {
    encoder: &'a SpmEncoder,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl<'a> Joining<'a> {
    fn new(encoder: &'a SpmEncoder, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                prev: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Self { encoder, text, symbols, queue: BinaryHeap::new() }
    }

    /// Joins until nothing more can be joined, and returns the stretches in order.
    fn run(mut self) -> Vec<&'a str> {
        for right in 1..self.symbols.len() {
            self.consider(right - 1, right);
        }
        while let Some(best) = self.queue.pop() {
            if !self.is_current(&best) {
                continue;
            }
            let after = self.symbols[best.right].next;
            self.symbols[best.left].end = self.symbols[best.right].end;
            self.symbols[best.left].next = after;
            self.symbols[best.right].start = self.symbols[best.right].end;
            if let Some(after) = after {
                self.symbols[after].prev = Some(best.left);
                self.consider(best.left, after);
            }
            if let Some(before) = self.symbols[best.left].prev {
                self.consider(before, best.left);
            }
        }
        let text = self.text;
        self.symbols.iter().filter(|s| s.start < s.end).map(|s| &text[s.start..s.end]).collect()
    }

    fn consider(&mut self, left: usize, right: usize) {
        let joined = &self.text[self.symbols[left].start..self.symbols[right].end];
        if let Some((_, score)) = self.encoder.pieces.get(joined) {
            self.queue.push(Candidate { score: *score, left, right, len: joined.len() });
        }
    }

    /// False if either side has been joined to something else since.
    fn is_current(&self, candidate: &Candidate) -> bool {
        let (left, right) = (&self.symbols[candidate.left], &self.symbols[candidate.right]);
        left.start < left.end && right.start < right.end && right.end - left.start == candidate.len
    }
}
