//! A finished measurement, for machines and for people.

use crate::estimate::Estimate;
use crate::machine::Machine;
use crate::windows::Windows;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What was measured: everything that is not in the windows or the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The model, as it was named.
    pub model: String,
    /// Its architecture.
    pub architecture: String,
    /// The text file, as it was named.
    pub text: String,
    /// Number type of activations.
    pub activations: String,
    /// Threads that computed.
    pub threads: usize,
    /// Version of kvant.
    pub version: String,
    /// Where.
    pub machine: Machine,
}

/// A setting with its result. Its JSON is what `kvant eval --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What was measured.
    #[serde(flatten)]
    pub setting: Setting,
    /// The cache.
    pub kv: String,
    /// Length of a window.
    pub ctx: usize,
    /// Windows.
    pub chunks: usize,
    /// Which tokens were scored.
    pub score: String,
    /// [`Windows::digest`].
    pub ids_sha256: String,
    /// Tokens scored.
    pub tokens: usize,
    /// Perplexity.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_stderr: f64,
    /// Mean nll in nats per token.
    pub nll_mean: f64,
    /// Its standard error.
    pub nll_stderr: f64,
    /// Time for all windows.
    pub seconds: f64,
}

impl Report {
    /// The report of a run over `windows` with the cache `kv` that took `time`.
    pub fn new(setting: Setting, kv: String, windows: &Windows, estimate: &Estimate, time: Duration) -> Self {
        Self {
            setting,
            kv,
            ctx: windows.ctx(),
            chunks: windows.chunks(),
            score: windows.score().to_string(),
            ids_sha256: windows.digest(),
            tokens: estimate.tokens(),
            ppl: estimate.ppl(),
            ppl_stderr: estimate.ppl_stderr(),
            nll_mean: estimate.nll_mean(),
            nll_stderr: estimate.nll_stderr(),
            seconds: time.as_secs_f64(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            kv,
            ctx,
            chunks,
            score,
            tokens,
            ppl,
            ppl_stderr,
            nll_mean,
            nll_stderr,
            seconds,
            ..
        } = self;
        let Setting { model, architecture, text, activations, threads, version, machine } = setting;
        let rate = (chunks * ctx) as f64 / seconds.max(f64::MIN_POSITIVE);
        writeln!(f, "model       {model} ({architecture})")?;
        writeln!(f, "text        {text}")?;
        writeln!(f, "windows     {chunks} × {ctx} tokens, {tokens} scored ({score})")?;
        writeln!(f, "cache       {kv}, activations {activations}")?;
        writeln!(f, "perplexity  {ppl:.4} ± {ppl_stderr:.4}")?;
        writeln!(f, "nats/token  {nll_mean:.5} ± {nll_stderr:.5}")?;
        writeln!(f, "time        {seconds:.1} s, {rate:.0} tokens/s, threads: {threads}")?;
        write!(f, "on          {} with {} cores, kvant {version}", machine.cpu, machine.cores)
    }
}
