//! Proposals without a draft model: what followed when the text last read like this.
//!
//! The longest end of prompt and answer that stood in them before is looked up after every token, and the tokens that followed it there
//! are the guess. Rewriting, quoting, lists and JSON repeat themselves; an open conversation hardly does. So a guess has to be worth its
//! row in the pass: for every class of match lengths it is counted how often the next token was guessed right lately, *also where
//! nothing was proposed*, which costs nothing. A text that does not repeat itself is left alone after a few tokens, and the counts
//! notice by themselves when it begins to.

use super::automaton::SuffixAutomaton;
use super::{ProposalLimits, Proposer};

/// Tokens that are looked at, at most; of a longer text the later ones.
const MOST_TOKENS: usize = 32_768;

/// Match lengths from which on they are another class, and how often a guess is right at first.
const MATCH_LENGTHS: [(usize, f64); 7] =
    [(1, 0.1), (2, 0.25), (3, 0.4), (4, 0.5), (6, 0.65), (9, 0.8), (16, 0.9)];

/// Guesses that the first belief counts for.
const PRIOR: f64 = 4.0;

/// How much of a count is left after the next guess of its class.
const DECAY: f64 = 0.95;

/// What has come of the guesses of one class.
#[derive(Clone, Copy, Default)]
struct Rate {
    right: f64,
    all: f64,
}

/// Proposes what followed the longest repetition.
pub struct SuffixProposer {
    automaton: SuffixAutomaton,
    /// The position of the automaton's first token.
    first: usize,
    /// Tokens before it was first asked: they teach nothing about answers.
    prompt: Option<usize>,
    rates: [Rate; MATCH_LENGTHS.len()],
}

impl Default for SuffixProposer {
    fn default() -> Self {
        Self { automaton: SuffixAutomaton::new(), first: 0, prompt: None, rates: Default::default() }
    }
}

impl SuffixProposer {
    /// Takes in what is new of the text.
    fn catch_up(&mut self, tokens: &[u32]) {
        let prompt = *self.prompt.get_or_insert(tokens.len());
        let seen = self.first + self.automaton.text().len();
        if tokens.len() < seen || tokens.len() - self.first > MOST_TOKENS {
            self.first = tokens.len().saturating_sub(MOST_TOKENS / 2);
            self.automaton = SuffixAutomaton::new();
        }
        let at = self.first + self.automaton.text().len();
        for (position, &token) in (at..).zip(&tokens[at..]) {
            if position >= prompt.max(seen)
                && let Some(found) = self.automaton.longest()
            {
                let was_right = self.automaton.text()[found.end + 1] == token;
                self.rates[class(found.length)].learn(was_right);
            }
            self.automaton.push(token);
        }
    }

    /// How likely a guess after so many tokens is right.
    fn chance(&self, length: usize) -> f64 {
        let class = class(length);
        let Rate { right, all } = self.rates[class];
        (right + PRIOR * MATCH_LENGTHS[class].1) / (all + PRIOR)
    }
}

impl Rate {
    fn learn(&mut self, was_right: bool) {
        self.right = DECAY * self.right + f64::from(u8::from(was_right));
        self.all = DECAY * self.all + 1.0;
    }
}

fn class(length: usize) -> usize {
    MATCH_LENGTHS.partition_point(|(from, _)| *from <= length).saturating_sub(1)
}

impl Proposer for SuffixProposer {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        self.catch_up(tokens);
        let Some(found) = self.automaton.longest() else { return };
        let text = self.automaton.text();
        let (begin, mut chance) = (proposal.len(), 1.0);
        for count in 0..limits.most {
            chance *= self.chance(found.length + count);
            if chance < limits.least_chance {
                break;
            }
            // What repeats itself goes on into its own guess.
            let at = found.end + 1 + count;
            let token = text.get(at).copied().unwrap_or_else(|| proposal[begin + at - text.len()]);
            proposal.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(proposer: &mut SuffixProposer, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut proposal = Vec::new();
        proposer.propose(tokens, ProposalLimits { most, least_chance: 0.2 }, &mut proposal);
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
