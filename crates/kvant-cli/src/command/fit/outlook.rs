//! The answer: memory by context and cache.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::{Column, Table};
use kvant_engine::estimate::{MemoryEstimate, RunConfig};
use kvant_engine::memory::bytes;
use kvant_engine::{Policy, kv};
use kvant_eval::html::{MemoryNeed, MemoryPage, MemoryPoint};
use kvant_model::{Checkpoint, DType, Description};
use serde_json::{Value, json};
use std::io::{self, Write};

/// What is asked.
pub struct Question {
    /// Bytes there are.
    pub memory: u64,
    /// Bytes of these that are left to the system.
    pub reserved: u64,
    /// Tokens, in order.
    pub contexts: Vec<usize>,
    pub caches: Vec<Policy>,
    /// The type that weights are taken to be of, where they are not here.
    pub assumed: Option<DType>,
}

impl Question {
    /// Bytes that a run may take.
    fn usable(&self) -> u64 {
        self.memory.saturating_sub(self.reserved)
    }
}

/// What comes out.
pub struct Outlook {
    question: Question,
    architecture: &'static str,
    file: String,
    has_weights: bool,
    parameters: u64,
    /// The context that the model was made for.
    own: Option<usize>,
    prospects: Vec<Prospect>,
}

/// One cache.
struct Prospect {
    spec: String,
    /// What is known of it, or why the model cannot have it.
    found: Result<Fitting, String>,
}

struct Fitting {
    bytes_per_token: f64,
    /// One for each context asked about.
    estimates: Vec<MemoryEstimate>,
    /// The longest context that fits, and its estimate.
    longest: Option<(usize, MemoryEstimate)>,
}

impl Outlook {
    pub fn new(
        checkpoint: &Checkpoint,
        file: String,
        description: &Description,
        question: Question,
    ) -> Result<Self, Failure> {
        let mut parameters = 0;
        for name in checkpoint.names() {
            parameters += checkpoint.tensor(name)?.len() as u64;
        }
        let own = description.position_limit().or(description.context);
        // Nobody is told of a context that the model was not made for, unless it is asked about.
        let bound = question.contexts.iter().copied().chain(own).max().unwrap_or(1);
        let prospect = |policy: &Policy| Prospect {
            spec: policy.to_string(),
            found: Fitting::of(checkpoint, description, policy, &question, bound),
        };
        let prospects = question.caches.iter().map(prospect).collect();
        Ok(Self {
            architecture: description.architecture,
            file,
            has_weights: checkpoint.has_weights(),
            parameters,
            own,
            prospects,
            question,
        })
    }

    /// Bytes of the weights; the same for every cache.
    fn weights(&self) -> Option<u64> {
        let (_, found) = self.possible().next()?;
        found.estimates.first().map(|estimate| estimate.weights)
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_facts(out)?;
        self.write_contexts(out)?;
        self.write_longest(out)?;
        for Prospect { spec, found } in &self.prospects {
            if let Err(why) = found {
                writeln!(out, "\n{spec}: {why}")?;
            }
        }
        Ok(())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("architecture", self.architecture.to_owned()),
            ("parameters", format!("{:.2} billion", self.parameters as f64 / 1e9)),
            ("context", self.own.map_or("not said".to_owned(), |own| format!("{own} tokens"))),
        ];
        if let Some(weights) = self.weights() {
            let origin = match (self.question.assumed, self.has_weights) {
                (Some(dtype), _) => {
                    format!(
                        ", estimated: the weights are not downloaded, and every matrix is assumed to be {dtype}"
                    )
                }
                (None, false) => ", from the file's tensor list; the weights are not downloaded".to_owned(),
                (None, true) => String::new(),
            };
            facts.push(("weights", format!("{}{origin}", bytes(weights))));
        }
        let Question { memory, reserved, .. } = self.question;
        let usable = self.question.usable();
        let [memory, reserved, usable] = [memory, reserved, usable].map(bytes);
        facts.push(("memory", format!("{memory}, {reserved} of it left to the system: {usable} to use")));
        facts
    }

    fn write_facts(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::plain();
        table.row(["model".to_owned(), self.file.clone()]);
        self.facts().into_iter().for_each(|(name, value)| table.row([name.to_owned(), value]));
        table.write(out, 0)
    }

    /// The same as a page with a picture.
    pub fn html(&self) -> String {
        let point = |(&tokens, estimate): (&usize, &MemoryEstimate)| MemoryPoint {
            tokens,
            weights: estimate.weights,
            cache: estimate.cache,
            peak: estimate.peak(),
        };
        let need = |(spec, found): (&str, &Fitting)| MemoryNeed {
            spec: spec.to_owned(),
            points: self.question.contexts.iter().zip(&found.estimates).map(point).collect(),
            longest: found.longest.as_ref().map(|(tokens, _)| *tokens),
        };
        let needs: Vec<MemoryNeed> = self.possible().map(need).collect();
        let (facts, memory) = (self.facts(), self.question.usable());
        MemoryPage { model: &self.file, facts: &facts, memory, needs: &needs }.to_html()
    }

    fn write_contexts(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nMemory at most, by tokens of context and KV cache")?;
        let caches = self.possible().map(|(spec, _)| Right(spec));
        let columns: Vec<Column<'_>> = [Right("tokens")].into_iter().chain(caches).collect();
        let mut table = Table::new(&columns);
        for (row, tokens) in self.question.contexts.iter().enumerate() {
            let cell = |(_, found): (&str, &Fitting)| {
                let peak = found.estimates[row].peak();
                if peak <= self.question.usable() {
                    bytes(peak)
                } else {
                    format!("{}, too much", bytes(peak))
                }
            };
            table.row([tokens.to_string()].into_iter().chain(self.possible().map(cell)));
        }
        table.write(out, 2)
    }

    fn write_longest(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nThe longest context in {}, and what it takes", bytes(self.question.usable()))?;
        let mut table = Table::new(&[
            Left("cache"),
            Right("a token"),
            Right("tokens"),
            Right("weights"),
            Right("KV cache"),
            Right("the rest"),
            Right("at most"),
        ]);
        for (spec, found) in self.possible() {
            let token = bytes(found.bytes_per_token as u64);
            let Some((tokens, estimate)) = &found.longest else {
                table.row([spec.to_owned(), token, "none fits".to_owned()]);
                continue;
            };
            let sizes = [estimate.weights, estimate.cache, estimate.rest(), estimate.peak()].map(bytes);
            table.row([spec.to_owned(), token, tokens.to_string()].into_iter().chain(sizes));
        }
        table.write(out, 2)
    }

    fn possible<'a>(&'a self) -> impl Iterator<Item = (&'a str, &'a Fitting)> {
        let found = |Prospect { spec, found }: &'a Prospect| Some((spec.as_str(), found.as_ref().ok()?));
        self.prospects.iter().filter_map(found)
    }

    pub fn json(&self) -> Value {
        let Question { memory, reserved, contexts, assumed, .. } = &self.question;
        let usable = self.question.usable();
        let row = |tokens: usize, estimate: &MemoryEstimate| {
            json!({"tokens": tokens, "weights": estimate.weights, "kv": estimate.cache, "rest": estimate.rest(),
                   "peak": estimate.peak(), "fits": estimate.peak() <= usable})
        };
        let prospect = |Prospect { spec, found }: &Prospect| match found {
            Err(why) => json!({"kv": spec, "refused": why}),
            Ok(found) => {
                let each = contexts.iter().zip(&found.estimates).map(|(&tokens, of)| row(tokens, of));
                json!({"kv": spec, "bytes_per_token": found.bytes_per_token, "contexts": each.collect::<Vec<_>>(),
                       "longest": found.longest.as_ref().map(|(tokens, of)| row(*tokens, of))})
            }
        };
        json!({
            "file": self.file,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "context": self.own,
            "weights_here": self.has_weights,
            "weights_taken_as": assumed.map(DType::name),
            "memory": memory,
            "reserved": reserved,
            "caches": self.prospects.iter().map(prospect).collect::<Vec<_>>(),
        })
    }
}

impl Fitting {
    fn of(
        checkpoint: &Checkpoint,
        description: &Description,
        policy: &Policy,
        question: &Question,
        bound: usize,
    ) -> Result<Self, String> {
        let threads = kvant_threads::threads();
        let estimate = |context: usize| {
            let run = RunConfig::answer(policy, context, threads);
            MemoryEstimate::new(checkpoint, description, &run).map_err(|e| e.to_string())
        };
        let estimates: Result<Vec<_>, _> = question.contexts.iter().map(|&tokens| estimate(tokens)).collect();
        let all = RunConfig::answer(policy, bound, threads);
        let longest = MemoryEstimate::longest_within(question.usable(), checkpoint, description, &all)
            .map_err(|e| e.to_string())?;
        Ok(Self {
            bytes_per_token: kv::bytes_per_token(policy.clone(), &description.slots)
                .map_err(|e| e.to_string())?,
            estimates: estimates?,
            longest: longest.map(|tokens| Ok::<_, String>((tokens, estimate(tokens)?))).transpose()?,
        })
    }
}
