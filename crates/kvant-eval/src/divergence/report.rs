//! A finished comparison, for machines.

use super::{Divergence, Mode};
use crate::report::Setting;
use crate::windows::Windows;
use serde::Serialize;

/// One cache with all its figures. Its JSON is a line of `kvant eval --kv … --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DivergenceRow {
    /// The cache.
    pub spec: String,
    /// `strict` or `deployed`.
    pub mode: &'static str,
    /// What it was compared with, where that is not the exact cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<&'static str>,
    /// Bits per value of encoded pages, with all their scales; none where a window is too short for a page.
    pub bits_per_value: Option<f64>,
    /// Bits per value of everything held at the end of a window, sinks and tail included.
    pub bits_total: f64,
    /// Bytes of keys and values at the end of a window.
    pub kv_bytes: usize,
    /// Perplexity.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_stderr: f64,
    /// Perplexity with the exact cache.
    pub ppl_reference: f64,
    /// Growth of perplexity in percent.
    pub dppl_percent: f64,
    /// Its standard error, by pairs.
    pub dppl_stderr_percent: f64,
    /// Mean KL divergence in nats.
    pub kl_mean: f64,
    /// Its standard error.
    pub kl_stderr: f64,
    /// The KL divergence that half of the positions do not exceed.
    pub kl_median: f64,
    /// The KL divergence that 99.9 % of the positions do not exceed.
    pub kl_p999: f64,
    /// The largest KL divergence of a position.
    pub kl_max: f64,
    /// Mean KL divergence by position: every band's end, and its mean.
    pub kl_by_position: Vec<(usize, f64)>,
    /// Share of positions where the most likely token is the same.
    pub top1: f64,
    /// Positions compared.
    pub tokens: usize,
    /// Length of a window.
    pub ctx: usize,
    /// Windows.
    pub chunks: usize,
    /// Which positions were compared.
    pub score: String,
    /// [`Windows::digest`].
    pub ids_sha256: String,
    /// The same with int8 activations, if asked for.
    #[serde(flatten)]
    pub fast: Option<FastPath>,
    /// How fast it generates, if asked for.
    #[serde(flatten)]
    pub decode: Option<DecodeSpeed>,
    /// What was measured.
    #[serde(flatten)]
    pub setting: Setting,
}

/// What the fast path, with its int8 activations, shows against the same reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FastPath {
    /// Mean KL divergence in nats.
    pub fast_kl_mean: f64,
    /// Its standard error.
    pub fast_kl_stderr: f64,
    /// Share of positions where the most likely token is the same.
    pub fast_top1: f64,
    /// Growth of perplexity in percent.
    pub fast_dppl_percent: f64,
    /// Mean KL divergence of the fast path with an exact cache: what no cache can go below.
    pub fast_floor_kl_mean: f64,
}

impl FastPath {
    /// From what was found for a cache, and for the exact one.
    pub fn new(found: &Divergence, floor: &Divergence) -> Self {
        let (fast_kl_mean, fast_kl_stderr) = found.kl();
        Self {
            fast_kl_mean,
            fast_kl_stderr,
            fast_top1: found.top1(),
            fast_dppl_percent: found.ppl_growth_percent().0,
            fast_floor_kl_mean: floor.kl().0,
        }
    }
}

/// How fast tokens are generated at the end of a window, with int8 activations as in use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DecodeSpeed {
    /// Milliseconds per token, the best of the runs.
    pub decode_ms: f64,
    /// The speed over that of the f16 cache in the same run.
    pub decode_vs_f16: f64,
    /// Tokens of context.
    pub decode_depth: usize,
}

/// As reports call a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Strict => "strict",
        Mode::Deployed => "deployed",
    }
}

impl DivergenceRow {
    /// The row of one cache.
    pub fn new(spec: String, mode: Mode, found: &Divergence, windows: &Windows, setting: Setting) -> Self {
        let (kl_mean, kl_stderr) = found.kl();
        let (dppl_percent, dppl_stderr_percent) = found.ppl_growth_percent();
        Self {
            spec,
            mode: mode_name(mode),
            against: None,
            bits_per_value: found.bits_per_value(),
            bits_total: found.bits_total(),
            kv_bytes: found.kv_bytes(),
            ppl: found.estimate().ppl(),
            ppl_stderr: found.estimate().ppl_stderr(),
            ppl_reference: found.reference().ppl(),
            dppl_percent,
            dppl_stderr_percent,
            kl_mean,
            kl_stderr,
            kl_median: found.kl_quantile(0.5),
            kl_p999: found.kl_quantile(0.999),
            kl_max: found.kl_quantile(1.0),
            kl_by_position: found.kl_by_position(windows.targets().start, windows.targets().len()),
            top1: found.top1(),
            tokens: found.tokens(),
            ctx: windows.ctx(),
            chunks: windows.chunks(),
            score: windows.score().to_string(),
            ids_sha256: windows.digest(),
            fast: None,
            decode: None,
            setting,
        }
    }
}
