//! Answers of before, in which proposals for later texts are looked up.
//!
//! Every [`Tenant`] has its own, as with prefixes: nobody's proposals come from what others were told. They are bounded: of a tenant
//! the later ones, and of tenants those who asked lately. Where prefixes are kept in files, so are they.

use super::automaton::{Cursor, Match, SuffixAutomaton};
use kvant_cache::Tenant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tokens of a tenant's answers, at most: 5 MB with their automaton.
const MOST_TOKENS: usize = 32_768;

/// Tenants whose answers are kept, at most.
const MOST_TENANTS: usize = 16;

/// Tokens of the prompt that are kept before an answer: the same question is recognised by its end.
const PROMPT_END: usize = 16;

/// Stands between two answers. No text has this token.
const BETWEEN: u32 = u32::MAX;

/// Tokens of a text that a new [`Recall`] looks at.
const LOOK_BACK: usize = 64;

/// Bytes of all answers in a file, at most.
pub(crate) const MOST_ANSWER_BYTES: usize = MOST_TENANTS * (TENANT_BYTES + 4 + 4 * MOST_TOKENS);

/// Bytes of a tenant's name.
const TENANT_BYTES: usize = 33;

/// The answers of all tenants.
#[derive(Default)]
pub(crate) struct Answers {
    /// Those who asked last come last.
    tenants: Mutex<Vec<(Tenant, Arc<PastAnswers>)>>,
}

impl Answers {
    /// Those of one tenant.
    pub fn of(&self, tenant: Tenant) -> Arc<PastAnswers> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tenants.iter().position(|(other, _)| *other == tenant);
        let entry = match known {
            Some(index) => tenants.remove(index),
            None => (tenant, Arc::new(PastAnswers::default())),
        };
        if tenants.len() == MOST_TENANTS {
            tenants.remove(0);
        }
        let past = Arc::clone(&entry.1);
        tenants.push(entry);
        past
    }

    /// All of them for a file: for each tenant its name, how many tokens there are, and the tokens.
    pub fn to_bytes(&self) -> Vec<u8> {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        for (tenant, past) in tenants.iter() {
            let past = past.lock();
            let text = past.automaton.text();
            bytes.extend(tenant.to_bytes());
            bytes.extend((text.len() as u32).to_le_bytes());
            text.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        }
        bytes
    }

    /// Takes up what was in a file, as far as it makes sense for a vocabulary of this size.
    pub fn restore(&self, bytes: &[u8], vocabulary: usize) {
        let mut rest = bytes;
        while let Some((tenant, after)) = rest.split_first_chunk::<TENANT_BYTES>()
            && let Some((count, after)) = after.split_first_chunk::<4>()
            && let Some((text, after)) = after.split_at_checked(4 * u32::from_le_bytes(*count) as usize)
        {
            let text: Vec<u32> = text.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect();
            let is_known = |token: &u32| *token == BETWEEN || (*token as usize) < vocabulary;
            if text.len() > MOST_TOKENS || !text.iter().all(is_known) {
                return;
            }
            let past = self.of(Tenant::from_bytes(tenant));
            let mut past = past.lock();
            if past.automaton.text().is_empty() {
                text.into_iter().for_each(|token| past.automaton.push(token));
            }
            rest = after;
        }
    }
}

/// The answers of one tenant.
pub struct PastAnswers {
    text: Mutex<PastText>,
}

struct PastText {
    automaton: SuffixAutomaton,
    /// How often it was made anew.
    generation: u64,
}

impl Default for PastAnswers {
    fn default() -> Self {
        Self { text: Mutex::new(PastText { automaton: SuffixAutomaton::new(), generation: 0 }) }
    }
}

impl PastAnswers {
    /// Keeps the answer to a prompt.
    pub fn keep(&self, prompt: &[u32], answer: &[u32]) {
        let prompt = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let answer = &answer[..answer.len().min(MOST_TOKENS / 4)];
        if answer.is_empty() {
            return;
        }
        let mut past = self.lock();
        let held = past.automaton.text();
        if held.len() + prompt.len() + answer.len() >= MOST_TOKENS {
            let later = held[held.len() - MOST_TOKENS / 2..].to_vec();
            past.automaton.clear();
            past.generation += 1;
            later.into_iter().for_each(|token| past.automaton.push(token));
        }
        prompt.iter().chain(answer).chain([&BETWEEN]).for_each(|&token| past.automaton.push(token));
    }

    fn lock(&self) -> MutexGuard<'_, PastText> {
        // A text that is half pushed is a text.
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a text agrees with an answer of before.
pub(super) struct Recall {
    past: Arc<PastAnswers>,
    cursor: Cursor,
    generation: u64,
    /// Tokens of the text that it has followed.
    seen: usize,
}

impl Recall {
    pub fn new(past: Arc<PastAnswers>) -> Self {
        Self { past, cursor: Cursor::default(), generation: 0, seen: 0 }
    }

    /// Follows what is new of a text, and tells `learn` of every guess on the way: the tokens that agreed, and whether the next one did.
    pub fn catch_up(&mut self, tokens: &[u32], mut learn: impl FnMut(usize, bool)) {
        let past = self.past.lock();
        if past.generation != self.generation || tokens.len() < self.seen {
            (self.cursor, self.generation, self.seen) = (Cursor::default(), past.generation, 0);
        }
        let is_new = self.seen == 0;
        if is_new {
            self.seen = tokens.len().saturating_sub(LOOK_BACK);
        }
        for &token in &tokens[self.seen..] {
            if !is_new && let Some((found, guess)) = guess(&past.automaton, self.cursor) {
                learn(found.length, guess == token);
            }
            past.automaton.follow(&mut self.cursor, token);
        }
        self.seen = tokens.len();
    }

    /// Tokens of the text's end that stand in an answer, where that goes on.
    pub fn length(&self) -> Option<usize> {
        guess(&self.past.lock().automaton, self.cursor).map(|(found, _)| found.length)
    }

    /// Adds what followed there: while `wants` says so, of the tokens that agree or are added already.
    pub fn propose(&self, mut wants: impl FnMut(usize) -> bool, proposal: &mut Vec<u32>) {
        let past = self.past.lock();
        let Some(found) = past.automaton.at(self.cursor) else { return };
        let following = past.automaton.text()[found.end + 1..].iter().take_while(|token| **token != BETWEEN);
        for (length, &token) in (found.length..).zip(following) {
            if !wants(length) {
                return;
            }
            proposal.push(token);
        }
    }
}

/// What followed where a cursor stands.
fn guess(automaton: &SuffixAutomaton, cursor: Cursor) -> Option<(Match, u32)> {
    let found = automaton.at(cursor)?;
    let next = automaton.text().get(found.end + 1).copied().filter(|next| *next != BETWEEN)?;
    Some((found, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recalled(past: &Arc<PastAnswers>, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut recall = Recall::new(Arc::clone(past));
        recall.catch_up(tokens, |_, _| panic!("a prompt teaches nothing"));
        let mut proposal = Vec::new();
        let longest = recall.length().unwrap_or(0) + most;
        recall.propose(|length| length < longest, &mut proposal);
        proposal
    }

    #[test]
    fn the_same_question_is_answered_as_before_and_by_the_same_tenant_alone() {
        let answers = Answers::default();
        let [ann, bob] = [b"ann", b"bob"].map(|key| Tenant::of(key));
        answers.of(ann).keep(&[1, 2, 3], &[10, 11, 12]);
        answers.of(ann).keep(&[1, 2, 4], &[20, 21, 22]);
        assert_eq!(recalled(&answers.of(ann), &[7, 1, 2, 3], 9), [10, 11, 12]);
        assert_eq!(recalled(&answers.of(ann), &[1, 2, 4, 20], 1), [21]);
        // An answer is not gone on with by the next.
        assert!(recalled(&answers.of(ann), &[11, 12], 9).is_empty());
        for other in [bob, Tenant::SHARED] {
            assert!(recalled(&answers.of(other), &[1, 2, 3], 9).is_empty());
        }
    }

    #[test]
    fn answers_survive_in_a_file_and_nothing_of_it_is_believed() {
        let answers = Answers::default();
        let ann = Tenant::of(b"ann");
        answers.of(ann).keep(&[1, 2, 3], &[10, 11, 12]);
        answers.of(Tenant::SHARED).keep(&[4, 5], &[20, 21]);
        let bytes = answers.to_bytes();
        assert!(bytes.len() <= MOST_ANSWER_BYTES);
        let again = Answers::default();
        again.restore(&bytes, 22);
        assert_eq!(recalled(&again.of(ann), &[1, 2, 3], 9), [10, 11, 12]);
        assert_eq!(recalled(&again.of(Tenant::SHARED), &[4, 5], 9), [20, 21]);
        assert_eq!(again.to_bytes(), bytes);
        // Tokens that the model does not have, and every cut.
        let small = Answers::default();
        small.restore(&bytes, 12);
        assert!(small.to_bytes().is_empty());
        for cut in 0..bytes.len() {
            let cut_off = Answers::default();
            cut_off.restore(&bytes[..cut], 22);
            assert!(cut_off.to_bytes().len() <= cut);
        }
        let mut huge = ann.to_bytes().to_vec();
        huge.extend([0xff; 4]);
        again.restore(&huge, 22);
        assert_eq!(again.to_bytes(), bytes);
    }

    #[test]
    fn guesses_are_counted_while_a_text_grows() {
        let past = Arc::new(PastAnswers::default());
        past.keep(&[1, 2], &[3, 4, 5, 6]);
        let (mut recall, mut text, mut counted) = (Recall::new(Arc::clone(&past)), vec![9, 1, 2], Vec::new());
        for token in [3, 4, 8, 5] {
            recall.catch_up(&text, |length, was_right| counted.push((length, was_right)));
            text.push(token);
        }
        recall.catch_up(&text, |length, was_right| counted.push((length, was_right)));
        assert_eq!(counted, [(2, true), (3, true), (4, false)]);
        assert_eq!(recall.length(), Some(1));
    }

    #[test]
    fn earlier_answers_and_tenants_are_forgotten_and_texts_go_on() {
        let answers = Answers::default();
        let past = answers.of(Tenant::SHARED);
        let mut recall = Recall::new(Arc::clone(&past));
        for round in 0..40 {
            let first = round * 2000;
            past.keep(&[], &(first..first + 2000).collect::<Vec<u32>>());
            assert!(past.lock().automaton.text().len() <= MOST_TOKENS);
            recall.catch_up(&[first + 7, first + 8, first + 9], |_, _| {});
            assert_eq!(recall.length(), Some(3));
            recall.catch_up(&[], |_, _| {});
        }
        assert!(past.lock().generation > 0 && recalled(&past, &[5, 6, 7], 1).is_empty());
        let keys: Vec<Tenant> = (0..MOST_TENANTS as u8).map(|key| Tenant::of(&[key])).collect();
        keys.iter().for_each(|key| answers.of(*key).keep(&[1], &[2]));
        assert!(!Arc::ptr_eq(&answers.of(Tenant::SHARED), &past));
        assert_eq!(recalled(&answers.of(keys[5]), &[1], 1), [2]);
    }
}
