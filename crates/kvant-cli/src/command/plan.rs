//! `kvant plan`: which context and cache fit in how much memory, for a model that need not be here; and which layers are worth how
//! many bits, for one that is.

mod outlook;
mod spending;

use crate::failure::Failure;
use crate::open;
use crate::options::{Caches, Size, ThreadOptions, Tokens};
use clap::Args;
use kvant_engine::memory::Memory;
use kvant_engine::open::Plans;
use kvant_engine::{Policy, StateType};
use kvant_model::{Checkpoint, DType, Description};
use outlook::{Outlook, Question};
use spending::Spending;
use std::io::{self, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant plan smollm2-135m
  kvant plan model.gguf --ram 8G --ctx 8k,32k,128k
  kvant plan config.json --weights q4_k --ram 64G --kv f16,int8,int4 --html memory.html
  kvant plan model.gguf --kl 0.02                              bits where they gain most, after `kvant calibrate`
  kvant plan model.gguf --bits 3.6 -o small.kvplan
  head -c 20M big.gguf > start.gguf; kvant plan start.gguf     the beginning of a GGUF file says it all

A model that is larger than this machine can be asked about: its config.json suffices (its weights are then taken to be of
one type), and so does the beginning of its GGUF file.

With --kl or --bits the plan that `kvant calibrate` has made gets another policy: every side of every layer is rounded alone and
its divergence measured (strictly: pages are encoded before their own tokens attend), then bits go where they gain most. Policies
that tell layers apart, and one that does not, are measured on another part of the text; the best is taken and all are shown. With
--kl a margin is kept for texts that are harder than this one.";

/// Caches that are compared when none are named; the model's own comes first where it is another.
const USUAL: [&str; 5] = ["f16", "int8", "k8v4", "int4", "tq3"];
/// The shortest context that is shown when none is named.
const SHORTEST: usize = 4096;
/// What a context is taken to end at where the model's file does not say.
const UNSAID: usize = 131_072;

/// Arguments of `kvant plan`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Plan {
    /// A model file or folder, the beginning of a GGUF file, a config.json, or the name of a model in the cache
    model: String,

    /// The memory there is, such as 8G [default: that of this machine]
    #[arg(long, value_name = "SIZE")]
    ram: Option<Size>,

    /// Contexts in tokens, such as 8k,32k [default: doublings of 4096 up to the model's own]
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',')]
    ctx: Vec<Tokens>,

    /// Ways to keep keys and values [default: the model's own and the usual ones]
    #[arg(long, value_name = "SPEC,…")]
    kv: Option<Caches>,

    /// The numbers that recurrent state is stored in: f32, bf16 or int8; the narrower, the smaller and the less exact
    /// [default: f32]
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["kl", "bits"])]
    state: Option<StateType>,

    /// The type of weights that are not here: f16, q8_0, q6_k, q5_k, q4_k … [default: q4_k]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    weights: Option<DType>,

    #[command(flatten)]
    spending: Spending,

    #[command(flatten)]
    threads: ThreadOptions,

    /// Write a page with the same as a picture to this file as well
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kl", "bits"])]
    html: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn weight_type(text: &str) -> Result<DType, String> {
    let kinds = || DType::ALL.into_iter().filter(|dtype| !dtype.is_integer());
    kinds().find(|dtype| dtype.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
        let names: Vec<&str> = kinds().map(DType::name).collect();
        format!("`{text}` is no type of weights; there are {}", names.join(", "))
    })
}

impl Plan {
    pub fn execute(self) -> Result<(), Failure> {
        self.threads.pool().install(|| self.plan())
    }

    fn plan(&self) -> Result<(), Failure> {
        if let Some(goal) = self.spending.goal() {
            return self.spending.spend(goal, &self.model, self.json);
        }
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
        let question = Question {
            memory: self.memory()?,
            contexts: self.contexts(&description),
            caches: self.caches(&checkpoint, &description)?,
            assumed: is_config.then_some(assumed),
        };
        let outlook = Outlook::new(&checkpoint, &description, question)?;
        if let Some(path) = &self.html {
            std::fs::write(path, outlook.html())
                .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        }
        let mut out = io::stdout().lock();
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
