//! What answers took.

use kvant_engine::SpeculationCounts;
use kvant_engine::reply::ReplyPart;
use kvant_engine::scheduler::JobUsage;
use std::time::Duration;

/// Counts and times of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that were in the cache.
    pub cached: usize,
    /// Tokens of the answer, its reasoning included.
    pub generated: usize,
    /// Tokens of its reasoning, with the marks around it.
    pub reasoning: usize,
    /// Tokens read on trial, and those accepted of them.
    pub speculation: SpeculationCounts,
    /// From its arrival until it left the queue.
    pub waited: Duration,
    /// From its arrival until its first token; until its end where there was none.
    pub first_token: Duration,
    /// From its arrival to its end.
    pub total: Duration,
}

impl TurnUsage {
    /// Of an answer with so many tokens of reasoning.
    pub fn of(usage: JobUsage, reasoning: usize) -> Self {
        let JobUsage { prompt, cached, generated, speculation, waited, first_token, total } = usage;
        Self { prompt, cached, generated, reasoning, speculation, waited, first_token, total }
    }
}

/// Counts tokens of reasoning as parts of a reply come. A token that says nothing yet belongs to reasoning if what comes before it or
/// after it is reasoning: it is a mark around it, or a part of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReasoningCount {
    tokens: usize,
    /// Tokens that said nothing yet.
    silent: usize,
    /// The last part was reasoning.
    within: bool,
}

impl ReasoningCount {
    /// Takes in a token, and the parts that it completes.
    pub fn token(&mut self, parts: &[ReplyPart]) {
        let is_reasoning = |part: &ReplyPart| matches!(part, ReplyPart::Reasoning(_));
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            self.silent += 1;
            return;
        };
        if self.within || is_reasoning(first) {
            self.tokens += self.silent;
        }
        self.tokens += usize::from(is_reasoning(first));
        (self.silent, self.within) = (0, is_reasoning(last));
    }

    /// The sum, when the reply is over with these parts.
    pub fn end(self, parts: &[ReplyPart]) -> usize {
        let ends_within = match parts.first() {
            Some(first) => self.within || matches!(first, ReplyPart::Reasoning(_)),
            None => self.within,
        };
        self.tokens + if ends_within { self.silent } else { 0 }
    }
}

/// What several answers took together. A prompt counts once, however many answers it gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageSum {
    /// Tokens of all prompts.
    pub prompt: usize,
    /// Those of them that were in the cache.
    pub cached: usize,
    /// Tokens of all answers.
    pub generated: usize,
    /// Those of them that were reasoning.
    pub reasoning: usize,
    /// Tokens of answers that were proposed and accepted.
    pub accepted: usize,
    /// Tokens that were proposed and not accepted.
    pub rejected: usize,
}

impl UsageSum {
    /// Of answers of which `n` follow each other for every prompt.
    pub fn of(usages: &[Option<TurnUsage>], n: usize) -> Self {
        let first = || usages.iter().step_by(n.max(1)).flatten();
        Self {
            prompt: first().map(|usage| usage.prompt).sum(),
            cached: first().map(|usage| usage.cached).sum(),
            generated: usages.iter().flatten().map(|usage| usage.generated).sum(),
            reasoning: usages.iter().flatten().map(|usage| usage.reasoning).sum(),
            accepted: usages.iter().flatten().map(|usage| usage.speculation.accepted).sum(),
            rejected: usages.iter().flatten().map(|usage| usage.speculation.rejected()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_reasoning_are_counted_with_their_marks() {
        let (thought, said) =
            (|| vec![ReplyPart::Reasoning("x".into())], || vec![ReplyPart::Text("y".into())]);
        let count = |tokens: Vec<Vec<ReplyPart>>, end: Vec<ReplyPart>| {
            let mut count = ReasoningCount::default();
            tokens.iter().for_each(|parts| count.token(parts));
            count.end(&end)
        };
        // <think> x x </think> y y
        assert_eq!(count(vec![vec![], thought(), thought(), vec![], said(), said()], vec![]), 4);
        // The prompt has opened it, and the answer was cut.
        assert_eq!(count(vec![thought(), thought(), vec![]], thought()), 3);
        assert_eq!(count(vec![vec![], said(), vec![], said()], vec![]), 0);
        assert_eq!(count(vec![], vec![]), 0);
        // One token that ends the reasoning and says something.
        assert_eq!(count(vec![thought(), [thought(), said()].concat(), said()], vec![]), 2);
    }
}
