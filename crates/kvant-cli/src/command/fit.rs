//! `kvant fit`: which context and cache fit in how much memory, for a model that need not be here.

mod outlook;

use crate::failure::Failure;
use crate::open;
use crate::options::{Caches, Size, ThreadOptions, Tokens};
use clap::Args;
use kvant_engine::memory::Memory;
use kvant_engine::open::Plans;
use kvant_engine::{Policy, StateType};
use kvant_model::{Checkpoint, DType, Description};
use outlook::{Outlook, Question};
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant fit smollm2-135m
  kvant fit model.gguf --ram 8G --ctx 8k,32k,128k
  kvant fit config.json --weights q4_k --ram 64G --kv f16,int8,int4
  kvant fit model.gguf --html memory.html
  head -c 20M big.gguf > start.gguf; kvant fit start.gguf

A model that is larger than this machine can be asked about: its config.json
suffices (its weights are then taken to be of one type), and so does the
beginning of its GGUF file. Part of the memory is left to the system; --reserve
says how much.";

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
    /// A model file or folder, the beginning of a GGUF file, a config.json, or the name
    /// of a model in the cache
    model: String,

    /// The memory there is, such as 8G [default: that of this machine]
    #[arg(long, value_name = "SIZE")]
    ram: Option<Size>,

    /// The memory that is left to the system and other programs [default: an eighth,
    /// from 256M to 4G]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Size>,

    /// Contexts in tokens, such as 8k,32k [default: doublings of 4096 up to the model's own]
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',')]
    ctx: Vec<Tokens>,

    /// Ways to keep keys and values [default: the model's own and the usual ones]
    #[arg(long, value_name = "SPEC,…")]
    kv: Option<Caches>,

    /// The numbers that recurrent state is stored in: f32, bf16 or int8; the narrower,
    /// the smaller and the less exact [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

    /// The type of weights that are not here: f16, q8_0, q6_k, q5_k, q4_k … [default: q4_k]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    weights: Option<DType>,

    #[command(flatten)]
    threads: ThreadOptions,

    /// Write a page with the same as a picture to this file as well
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

    fn estimate(&self) -> Result<(), Failure> {
        let assumed = self.weights.unwrap_or(DType::Q4_K);
        let checkpoint = Checkpoint::open_description(open::find(&self.model)?, assumed)?;
        let is_config =
            checkpoint.path().extension().is_some_and(|e| e == "json") && !checkpoint.has_weights();
        if self.weights.is_some() && !is_config {
            return Err(Failure::new(format!(
                "{}: says what types its weights are of; --weights is for a config.json without weights",
                checkpoint.path().display()
            )));
        }
        let description = Description::of(&checkpoint)?;
        let memory = self.memory()?;
        let reserved = self.reserve.map_or_else(
            || (memory / RESERVED_PART).clamp(RESERVED_LEAST, RESERVED_MOST),
            |size| size.0 as u64,
        );
        let question = Question {
            memory,
            reserved,
            contexts: self.contexts(&description),
            caches: self.caches(&checkpoint, &description)?,
            assumed: is_config.then_some(assumed),
        };
        let outlook = Outlook::new(&checkpoint, &description, question)?;
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

    fn memory(&self) -> Result<u64, Failure> {
        if let Some(size) = self.ram {
            return Ok(size.0 as u64);
        }
        let memory = Memory::read().ok_or_else(|| {
            Failure::new("this system does not tell its memory; name it with --ram, as in --ram 8G")
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
