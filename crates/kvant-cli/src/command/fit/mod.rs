//! `kvant fit`: which context and cache fit in how much memory, for a model that need not be here.

mod outlook;

use crate::failure::Failure;
use crate::open::{self, Place};
use crate::options::{Caches, Size, ThreadOptions, Tokens};
use crate::screen::grouped;
use crate::shapes::{self, Candidate};
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_engine::device;
use kvant_engine::memory::{Memory, bytes};
use kvant_engine::open::Plans;
use kvant_engine::{Policy, StateType};
use kvant_model::{Checkpoint, DType, Description};
use outlook::{Outlook, Question};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant fit                              which models fit on this machine
  kvant fit llama3.1:70b --ram 64G       a model you have not downloaded
  kvant fit model.gguf --ram 8G --ctx 8k,32k,128k
  kvant fit config.json --weights q4_k --ram 64G --kv f16,int8,int4
  kvant fit model.gguf --html memory.html
  head -c 20M big.gguf > start.gguf; kvant fit start.gguf

The model need not be on this machine. A short name is enough, or a config.json
(all weights then count as one type), or the beginning of a GGUF file; for a name
on Hugging Face, only that is downloaded. Some memory is left for the system:
--reserve says how much.";

/// Caches that are compared when none are named; the model's own comes first where it is another.
const USUAL: [&str; 5] = ["f16", "int8", "k8v4", "int4", "tq3"];
/// The shortest context that is shown when none is named.
const SHORTEST: usize = 4096;
/// What a context is taken to end at where the model's file does not say.
const UNSAID: usize = 131_072;

/// What is left to the system: this part of the memory, but no more and no less than these.
const RESERVED_PART: u64 = 8;
const RESERVED_LEAST: u64 = 256 << 20;
const RESERVED_MOST: u64 = 4 << 30;

/// Arguments of `kvant fit`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Fit {
    /// A model file or folder, the beginning of a GGUF file, a config.json, or a name; without
    /// one, lists the models with short names that fit
    model: Option<String>,

    /// Memory to fit in, such as 8G [default: this machine's]
    #[arg(long, value_name = "SIZE")]
    ram: Option<Size>,

    /// Memory to leave for the system and other programs [default: an eighth, from 256M
    /// to 4G]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Size>,

    /// Contexts in tokens, such as 8k,32k [default: doublings of 4096 up to the model's own]
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',')]
    ctx: Vec<Tokens>,

    /// KV caches to compare [default: the model's own and the usual ones]
    #[arg(long, value_name = "SPEC,…")]
    kv: Option<Caches>,

    /// Type of recurrent state: f32, bf16 or int8; narrower types are smaller and less exact
    /// [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

    /// Type of the weights, if they are not on this machine: f16, q8_0, q6_k, q5_k, q4_k …
    /// [default: q4_k]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    weights: Option<DType>,

    #[command(flatten)]
    threads: ThreadOptions,

    /// Also write an HTML page with a chart to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn weight_type(text: &str) -> Result<DType, String> {
    let kinds = || DType::ALL.into_iter().filter(|dtype| !dtype.is_integer());
    kinds().find(|dtype| dtype.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
        let names: Vec<&str> = kinds().map(DType::name).collect();
        format!("`{text}` is not a type of weights; there are {}", names.join(", "))
    })
}

impl Fit {
    pub fn execute(self) -> Result<(), Failure> {
        self.threads.pool().install(|| self.estimate())
    }

    /// What describes the model, what to call it, and the type that weights are taken to be of where nothing says.
    fn describe(&self, model: &str) -> Result<(Checkpoint, String, Option<DType>), Failure> {
        let assumed = self.weights.unwrap_or(DType::Q4_K);
        let path = match open::locate(model)? {
            Place::Here(path) => path,
            Place::Away(hub, name) => {
                if let Some((checkpoint, dtype)) = shapes::described(&name, self.weights)? {
                    return Ok((checkpoint, name.to_string(), Some(dtype)));
                }
                let cannot = |e| {
                    Failure::new(format!(
                        "{name} is not on this machine, and its header cannot be fetched: {e}"
                    ))
                };
                hub.describe(&name).map_err(cannot)?
            }
        };
        let checkpoint = Checkpoint::open_description(path, assumed)?;
        let is_config =
            checkpoint.path().extension().is_some_and(|e| e == "json") && !checkpoint.has_weights();
        if self.weights.is_some() && !is_config {
            return Err(Failure::new(format!(
                "{}: the file already has its weights' types; --weights is for a config.json without weights",
                checkpoint.path().display()
            )));
        }
        let file = checkpoint.path().display().to_string();
        Ok((checkpoint, file, is_config.then_some(assumed)))
    }

    /// What is left to the system of so much memory.
    fn reserved(&self, memory: u64) -> u64 {
        let usual = || (memory / RESERVED_PART).clamp(RESERVED_LEAST, RESERVED_MOST);
        self.reserve.map_or_else(usual, |size| size.0 as u64)
    }

    fn estimate(&self) -> Result<(), Failure> {
        let Some(model) = &self.model else { return self.list() };
        let (checkpoint, file, assumed) = self.describe(model)?;
        let description = Description::of(&checkpoint)?;
        let memory = self.memory()?;
        let reserved = self.reserved(memory);
        let question = Question {
            memory,
            reserved,
            contexts: self.contexts(&description),
            caches: self.caches(&checkpoint, &description)?,
            assumed,
        };
        let outlook = Outlook::new(&checkpoint, file, &description, question)?;
        if let Some(path) = &self.html {
            std::fs::write(path, outlook.html())
                .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        }
        let mut out = crate::shown::stdout();
        if self.json {
            writeln!(out, "{}", outlook.json())?;
        } else {
            outlook.write(&mut out)?;
        }
        Ok(())
    }

    /// Models with short names that fit, the largest first, on this machine and on its card.
    fn list(&self) -> Result<(), Failure> {
        let memory = self.memory()?;
        let usable = memory.saturating_sub(self.reserved(memory));
        let card = match self.ram {
            Some(_) => None,
            None => device::devices()
                .into_iter()
                .filter(|of| of.unfit.is_none())
                .filter_map(|of| Some((of.name, of.memory?)))
                .max_by_key(|of| of.1),
        };
        let threads = kvant_threads::threads();
        let here = shapes::that_fit(usable, threads, false)?;
        let there = card.as_ref().map(|(_, memory)| shapes::that_fit(*memory, threads, true)).transpose()?;
        let on_card = |name: &str| there.iter().flatten().find(|candidate| candidate.name == name);
        let all = here
            .iter()
            .chain(there.iter().flatten().filter(|one| !here.iter().any(|other| other.name == one.name)));
        let mut all: Vec<&Candidate> = all.collect();
        all.sort_by_key(|candidate| std::cmp::Reverse(candidate.parameters));
        let mut out = crate::shown::stdout();
        if self.json {
            let row = |candidate: &&Candidate| {
                let context = |found: Option<&Candidate>| found.map(|candidate| candidate.context);
                json!({"name": candidate.name, "parameters": candidate.parameters, "weights": candidate.weights,
                       "context": context(here.iter().find(|one| one.name == candidate.name)),
                       "card_context": context(on_card(&candidate.name))})
            };
            writeln!(out, "{}", serde_json::Value::Array(all.iter().map(row).collect()))?;
            return Ok(());
        }
        writeln!(
            out,
            "Models that fit in {} of memory{}, the largest first",
            bytes(usable),
            card.as_ref()
                .map(|(name, memory)| format!(", or in {} on {name}", bytes(*memory)))
                .unwrap_or_default()
        )?;
        let mut columns = vec![Left("name"), Right("parameters"), Right("weights"), Right("context")];
        if card.is_some() {
            columns.push(Right("on the card"));
        }
        let mut table = Table::new(&columns);
        let tokens =
            |found: Option<&Candidate>| found.map_or_else(|| "-".to_owned(), |one| grouped(one.context));
        for candidate in &all {
            let mut cells = vec![
                candidate.name.clone(),
                format!("{:.1} billion", candidate.parameters as f64 / 1e9),
                bytes(candidate.weights),
                tokens(here.iter().find(|one| one.name == candidate.name)),
            ];
            if card.is_some() {
                cells.push(tokens(on_card(&candidate.name)));
            }
            table.row(cells);
        }
        table.write(&mut out, 2)?;
        writeln!(
            out,
            "\ncontext: the longest that fits beside the weights, up to the model's own; `kvant fit NAME` shows details"
        )?;
        Ok(())
    }

    fn memory(&self) -> Result<u64, Failure> {
        if let Some(size) = self.ram {
            return Ok(size.0 as u64);
        }
        let memory = Memory::read().ok_or_else(|| {
            Failure::new("the memory of this system is unknown; give it, for example --ram 8G")
        })?;
        Ok(memory.limit.unwrap_or(memory.total))
    }

    fn contexts(&self, description: &Description) -> Vec<usize> {
        let mut contexts: Vec<usize> = self.ctx.iter().map(|tokens| tokens.0).collect();
        if contexts.is_empty() {
            let own = description.position_limit().or(description.context).unwrap_or(UNSAID);
            let doublings = std::iter::successors(Some(SHORTEST), |tokens| tokens.checked_mul(2));
            contexts.extend(doublings.take_while(|&tokens| tokens < own));
            contexts.push(own);
        }
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }

    fn caches(&self, checkpoint: &Checkpoint, description: &Description) -> Result<Vec<Policy>, Failure> {
        if let Some(caches) = &self.kv {
            return caches.policies(None, self.state, &Plans::new(checkpoint), description);
        }
        let stored = |policy: Policy| Policy { state: self.state.unwrap_or(policy.state), ..policy };
        let own = stored(Plans::new(checkpoint).choose(None, description)?.policy);
        let usual = USUAL.iter().filter_map(|spec| spec.parse().ok());
        let mut caches: Vec<Policy> = usual.map(stored).collect();
        if !caches.contains(&own) {
            caches.insert(0, own);
        }
        Ok(caches)
    }
}
