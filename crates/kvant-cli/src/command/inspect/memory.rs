//! How much memory a context takes.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::Policy;
use kvant_engine::estimate::{MemoryEstimate, RunConfig};
use kvant_engine::memory::bytes;
use kvant_eval::speed::FILL_FROM;
use kvant_model::{Checkpoint, Description};
use kvant_threads::Pool;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The memory of a context, when it is read and when it is filled.
pub struct Memory {
    context: usize,
    policy: Policy,
    run: MemoryEstimate,
    fill: MemoryEstimate,
}

impl Memory {
    pub fn of(
        checkpoint: &Checkpoint,
        description: &Description,
        policy: Policy,
        context: usize,
    ) -> Result<Self, Failure> {
        let threads = Pool::default().threads();
        let run = RunConfig::answer(&policy, context, threads);
        let fill = RunConfig { read: FILL_FROM, text: false, ..run.clone() };
        let of = |run| MemoryEstimate::new(checkpoint, description, run);
        let (run, fill) = (of(&run)?, of(&fill)?);
        Ok(Self { context, policy, run, fill })
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { context, policy, run, fill } = self;
        writeln!(out, "\nMemory of {context} tokens, KV cache in {policy}")?;
        let mut table = Table::new(&[Left("part"), Right("kvant run"), Right("kvant bench --fill")]);
        let mut row = |name: &str, of: fn(&MemoryEstimate) -> u64| {
            table.row([name.to_owned(), bytes(of(run)), bytes(of(fill))]);
        };
        row("program", |f| f.program);
        row("weights", |f| f.weights);
        row("token table, in the file", |f| f.table);
        row("tokenizer", |f| f.tokenizer);
        row("KV cache", |f| f.cache);
        if run.plan > 0 {
            row("plan", |f| f.plan);
        }
        row("activations", |f| f.working);
        row("while loading", |f| f.loading);
        row("at most", MemoryEstimate::peak);
        table.write(out, 2)
    }

    pub fn json(&self) -> Value {
        let parts = |f: &MemoryEstimate| {
            json!({"program": f.program, "weights": f.weights, "token_table": f.table, "tokenizer": f.tokenizer,
                   "kv": f.cache, "plan": f.plan, "activations": f.working, "loading": f.loading, "peak": f.peak()})
        };
        json!({"context": self.context, "kv": self.policy.to_string(), "run": parts(&self.run),
               "bench_fill": parts(&self.fill)})
    }
}
