//! Answers of before, in which proposals for later texts are looked up.
//!
//! Every [`Tenant`] has its own, as with prefixes: nobody's proposals come from what others were told. They are in memory alone and
//! bounded: of a tenant the later ones, and of tenants those who asked lately.

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
            past.automaton = SuffixAutomaton::new();
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
