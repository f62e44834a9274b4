//! Proposals without a draft model: what followed when the text last read like this.
//!
//! The longest end of prompt and answer that stood in them before is looked up after every token, and the tokens that followed it there
//! are the guess. Rewriting, quoting, lists and JSON repeat themselves; an open conversation hardly does. So a guess has to be worth its
//! row in the pass: for every class of match lengths it is counted how often the next token was guessed right lately, *also where
//! nothing was proposed*, which costs nothing. A text that does not repeat itself is left alone after a few tokens, and the counts
//! notice by themselves when it begins to.
//!
//! A text that copies another with small changes leaves it for a token or two and comes back. So a long match is *followed*: after a
//! change the guess is what stands behind the changed place, long before a match is long enough to be trusted again.
//!
//! Answers of before are another text to look in ([`PastAnswers`]). They have counts of their own, and the likelier guess is taken.

use super::answers::{PastAnswers, Recall};
use super::automaton::SuffixAutomaton;
use super::{MakeProposer, ProposalLimits, Proposer};
use std::sync::Arc;

/// Tokens that are looked at, at most; of a longer text the later ones.
const MOST_TOKENS: usize = 32_768;

/// Lengths from which on they are another class, and how often a guess is right at first.
type Classes = [(usize, f64); 7];

/// By the tokens that a match has.
const MATCHED: Classes = [(1, 0.1), (2, 0.25), (3, 0.4), (4, 0.5), (6, 0.65), (9, 0.8), (16, 0.9)];

/// By the tokens that agree since the text last left what it follows.
const ALIGNED: Classes = [(0, 0.4), (1, 0.6), (2, 0.7), (3, 0.8), (4, 0.85), (6, 0.9), (9, 0.9)];

/// The shortest match that a text is taken to follow.
const FOLLOWED: usize = 8;

/// Tokens that may be left out or put in where a text leaves what it follows for a moment.
const NEAR: usize = 8;

/// Guesses that the first belief counts for.
const PRIOR: f64 = 4.0;

/// How much of a count is left after the next guess of its class.
const DECAY: f64 = 0.95;

/// What has come of the guesses of one class.
#[derive(Clone, Copy, Default)]
struct GuessRate {
    right: f64,
    all: f64,
}

/// The same for every class.
#[derive(Clone, Copy)]
struct Rates {
    classes: &'static Classes,
    counts: [GuessRate; 7],
}

impl Rates {
    fn new(classes: &'static Classes) -> Self {
        Self { classes, counts: Default::default() }
    }

    fn class(&self, length: usize) -> usize {
        self.classes.partition_point(|(from, _)| *from <= length).saturating_sub(1)
    }

    fn learn(&mut self, length: usize, was_right: bool) {
        let GuessRate { right, all } = &mut self.counts[self.class(length)];
        *right = DECAY * *right + f64::from(u8::from(was_right));
        *all = DECAY * *all + 1.0;
    }

    /// How likely a guess after so many tokens is right.
    fn chance(&self, length: usize) -> f64 {
        let class = self.class(length);
        let GuessRate { right, all } = self.counts[class];
        (right + PRIOR * self.classes[class].1) / (all + PRIOR)
    }
}

/// An earlier part that a text follows with small changes.
#[derive(Clone, Copy)]
struct Alignment {
    /// Where the next token stands, if it is the same.
    next: usize,
    /// Tokens that agree since the last change.
    agreed: usize,
}

impl Alignment {
    /// Goes on after a token of the text. One that differs is taken to be changed, unless it stands nearby: then tokens were left out, or
    /// the change before was longer or shorter than what it replaced.
    fn follow(&mut self, text: &[u32], token: u32) {
        if text.get(self.next) == Some(&token) {
            (self.next, self.agreed) = (self.next + 1, self.agreed + 1);
            return;
        }
        let ahead = self.next + 1..text.len().min(self.next + 1 + NEAR);
        let behind = (self.next.saturating_sub(NEAR)..self.next).rev().filter(|_| self.agreed == 0);
        let found = ahead.chain(behind).find(|at| text[*at] == token);
        (self.next, self.agreed) = found.map_or((self.next + 1, 0), |at| (at + 1, 1));
    }
}

/// Proposes what followed the longest repetition, in the text or in an answer of before.
pub struct SuffixProposer {
    automaton: SuffixAutomaton,
    /// The position of the automaton's first token.
    first: usize,
    /// Tokens before it was first asked: they teach nothing about answers.
    prompt: Option<usize>,
    rates: Rates,
    /// What the text follows with small changes, and what comes of guesses from there.
    alignment: Option<Alignment>,
    aligned: Rates,
    /// Answers of before, and what comes of guesses from there.
    recall: Option<(Recall, Rates)>,
}

impl Default for SuffixProposer {
    fn default() -> Self {
        Self {
            automaton: SuffixAutomaton::new(),
            first: 0,
            prompt: None,
            rates: Rates::new(&MATCHED),
            alignment: None,
            aligned: Rates::new(&ALIGNED),
            recall: None,
        }
    }
}

impl SuffixProposer {
    /// One for every text.
    pub fn maker() -> MakeProposer {
        Arc::new(|| Box::new(Self::default()))
    }

    /// Takes in what is new of the text.
    fn catch_up(&mut self, tokens: &[u32]) {
        let prompt = *self.prompt.get_or_insert(tokens.len());
        let seen = self.first + self.automaton.text().len();
        if tokens.len() < seen || tokens.len() - self.first > MOST_TOKENS {
            self.first = tokens.len().saturating_sub(MOST_TOKENS / 2);
            self.automaton = SuffixAutomaton::new();
            self.alignment = None;
        }
        let at = self.first + self.automaton.text().len();
        for (position, &token) in (at..).zip(&tokens[at..]) {
            if position >= prompt.max(seen)
                && let Some(found) = self.automaton.longest()
            {
                let was_right = self.automaton.text()[found.end + 1] == token;
                self.rates.learn(found.length, was_right);
            }
            if let Some(alignment) = &mut self.alignment {
                let was_right = self.automaton.text().get(alignment.next) == Some(&token);
                self.aligned.learn(alignment.agreed, was_right);
                alignment.follow(self.automaton.text(), token);
            }
            self.automaton.push(token);
            self.align();
        }
        if let Some((recall, rates)) = &mut self.recall {
            recall.catch_up(tokens, |length, was_right| rates.learn(length, was_right));
        }
    }

    /// Follows a long match, unless what is followed agrees as long.
    fn align(&mut self) {
        let Some(found) = self.automaton.longest().filter(|found| found.length >= FOLLOWED) else { return };
        if self.alignment.is_none_or(|alignment| alignment.agreed < found.length) {
            self.alignment = Some(Alignment { next: found.end + 1, agreed: found.length });
        }
    }

    /// Where to go on in the text: the next token, the tokens that agree before it, and the counts of such guesses.
    fn repeated(&self) -> Option<(usize, usize, &Rates)> {
        let matched = self.automaton.longest().map(|found| (found.end + 1, found.length, &self.rates));
        let is_inside = |alignment: &Alignment| alignment.next < self.automaton.text().len();
        let aligned = self.alignment.filter(is_inside).map(|it| (it.next, it.agreed, &self.aligned));
        let chance = |(_, length, rates): (usize, usize, &Rates)| rates.chance(length);
        // Of two that are as likely the match.
        [aligned, matched].into_iter().flatten().max_by(|a, b| chance(*a).total_cmp(&chance(*b)))
    }

    /// Proposes from an answer of before, where that is likelier to be right than what the text repeats; false where it is not.
    fn propose_recalled(&self, repeats: f64, limits: ProposalLimits, proposal: &mut Vec<u32>) -> bool {
        let Some((recall, rates)) = &self.recall else { return false };
        let Some(length) = recall.length().filter(|length| rates.chance(*length) > repeats) else {
            return false;
        };
        let mut chance = 1.0;
        let wants = |agreed: usize| {
            chance *= rates.chance(agreed);
            chance >= limits.least_chance && agreed < length + limits.most
        };
        recall.propose(wants, proposal);
        true
    }
}

impl Proposer for SuffixProposer {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        self.catch_up(tokens);
        let found = self.repeated();
        let repeats = found.map_or(0.0, |(_, length, rates)| rates.chance(length));
        if self.propose_recalled(repeats, limits, proposal) {
            return;
        }
        let Some((next, length, rates)) = found else { return };
        let text = self.automaton.text();
        let (begin, mut chance) = (proposal.len(), 1.0);
        for count in 0..limits.most {
            chance *= rates.chance(length + count);
            if chance < limits.least_chance {
                break;
            }
            // What repeats itself goes on into its own guess.
            let at = next + count;
            let token = text.get(at).copied().unwrap_or_else(|| proposal[begin + at - text.len()]);
            proposal.push(token);
        }
    }

    fn recall(&mut self, answers: Arc<PastAnswers>) {
        self.recall = Some((Recall::new(answers), Rates::new(&MATCHED)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(proposer: &mut SuffixProposer, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut proposal = Vec::new();
        proposer.propose(
            tokens,
            ProposalLimits { most, least_chance: 0.2, seconds_per_token: None },
            &mut proposal,
        );
        proposal
    }

    #[test]
    fn what_followed_before_is_proposed_and_loops_go_on() {
        let text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6];
        assert_eq!(proposed(&mut SuffixProposer::default(), &text, 3), [7, 8, 9]);
        assert_eq!(
            proposed(&mut SuffixProposer::default(), &[5, 6, 5, 6, 5, 6, 5, 6, 5, 6], 4),
            [5, 6, 5, 6]
        );
        assert!(proposed(&mut SuffixProposer::default(), &[1, 2, 3, 4], 4).is_empty());
    }

    #[test]
    fn wrong_guesses_end_soon_and_right_ones_bring_them_back() {
        let mut proposer = SuffixProposer::default();
        let mut text: Vec<u32> = (0..400).collect();
        proposed(&mut proposer, &text, 8);
        // Three tokens of the beginning, and then always something else.
        let mut wrong = 0;
        for round in 0..40 {
            let from = round * 9;
            for token in (from..from + 3).chain([1000 + round]) {
                let guess = proposed(&mut proposer, &text, 8);
                wrong += usize::from(guess.first().is_some_and(|first| *first != token));
                text.push(token);
            }
        }
        assert!(wrong <= 8, "{wrong} wrong guesses");
        let mut right = 0;
        for token in 100..200 {
            right += usize::from(proposed(&mut proposer, &text, 8).first() == Some(&token));
            text.push(token);
        }
        assert!(right > 80, "{right}");
    }

    #[test]
    fn a_copy_with_small_changes_is_followed_behind_each_change() {
        let original: Vec<u32> = (0..300).map(|n| 1000 + n * n % 97).collect();
        let changed = |(at, &token): (usize, &u32)| match at % 30 {
            11 => vec![5],
            21 => vec![6, 7],
            29 => vec![],
            _ => vec![token],
        };
        let copy: Vec<u32> = original.iter().enumerate().flat_map(changed).collect();
        let (mut proposer, mut text, mut passes, mut at) = (SuffixProposer::default(), original, 0, 0);
        while at < copy.len() {
            let guess = proposed(&mut proposer, &text, 16);
            let right = guess.iter().zip(&copy[at..]).take_while(|(a, b)| a == b).count();
            let end = copy.len().min(at + right + 1);
            text.extend(&copy[at..end]);
            (at, passes) = (end, passes + 1);
        }
        // Thirty changes, each of which ends a guess at least once.
        assert!(passes < 90, "{passes} passes for {} tokens", copy.len());
    }

    #[test]
    fn an_answer_of_before_is_proposed_where_it_agrees_longer_than_the_text_with_itself() {
        let past = Arc::new(PastAnswers::default());
        past.keep(&[1, 2, 3, 4, 5], &[6, 7, 8, 9]);
        let mut proposer = SuffixProposer::default();
        proposer.recall(Arc::clone(&past));
        assert_eq!(proposed(&mut proposer, &[5, 30, 31, 1, 2, 3, 4, 5], 3), [6, 7, 8]);
        assert_eq!(proposed(&mut proposer, &[5, 30, 31, 1, 2, 3, 4, 5, 6], 9), [7, 8, 9]);
        // The text itself agrees as long.
        let text = [1, 2, 3, 4, 5, 6, 70, 71, 1, 2, 3, 4, 5, 6];
        let mut proposer = SuffixProposer::default();
        proposer.recall(past);
        assert_eq!(proposed(&mut proposer, &text, 2), [70, 71]);
    }

    #[test]
    fn a_long_text_is_forgotten_from_its_beginning_on() {
        let mut proposer = SuffixProposer::default();
        let mut text: Vec<u32> = (0..MOST_TOKENS as u32 + 10).collect();
        proposed(&mut proposer, &text, 8);
        assert_eq!(proposer.automaton.text().len(), MOST_TOKENS / 2);
        text.extend(MOST_TOKENS as u32 - 40..MOST_TOKENS as u32 - 30);
        assert_eq!(proposed(&mut proposer, &text, 2), [MOST_TOKENS as u32 - 30, MOST_TOKENS as u32 - 29]);
        // Going back begins anew.
        text.truncate(100);
        assert!(proposed(&mut proposer, &text, 2).is_empty());
        assert_eq!(proposer.automaton.text().len(), 100);
    }
}
