//! `kvant convert`: a model with other weights, or in another format.

use crate::failure::Failure;
use crate::open;
use crate::options::ThreadOptions;
use crate::{interrupt, progress};
use clap::{Args, ValueEnum};
use kvant_convert::{Conversion, ConvertError, Format, Importance, Weights};
use kvant_engine::KvCache;
use kvant_engine::memory::bytes;
use kvant_engine::{ActivationType, Policy, load_model, load_observed};
use kvant_eval::divergence::{Mode, Models, Request, divergence};
use kvant_eval::{PassLimits, Score, Windows, text};
use kvant_model::{Checkpoint, Chunk, Description, Model, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::borrow::Cow;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  kvant convert ./Qwen2.5-1.5B-Instruct -o qwen.gguf
                       a Hugging Face folder to GGUF, 4-bit weights
  kvant convert model-f16.gguf -o model-q4_k_m.gguf --weights q4_k_m
                       a GGUF file to another type
  kvant convert ./SmolLM2-135M -o smol.gguf --calibrate
                       rounding weighted by the activations on a text
  kvant convert model.gguf -o folder --to safetensors --weights f16
                       a GGUF file to a Hugging Face folder

int4 and int8 are groups of 32 weights with an f16 scale: Q4_0 and Q8_0 in GGUF,
the compressed-tensors layout in safetensors. Embeddings, output, norms, biases
and routers keep more bits. With --calibrate, the KL divergence from the source
is measured for plain and for weighted rounding, on a part of the text that
calibration has not read.";

/// What the weights of a folder are called.
const IN_FOLDER: &str = "model.safetensors";
/// The most tokens in a window, of calibration and of measurement.
const WINDOW: usize = 512;
/// The fewest tokens that anything can be measured on.
const LEAST: usize = 8;
/// Windows that KL is measured on.
const MEASURED: usize = 8;
/// Tokens of a pass: the logits of more would take much memory.
const PASS: usize = 128;

/// Arguments of `kvant convert`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Convert {
    /// Model file, folder or name; a name is downloaded if necessary
    model: String,

    /// File to write; with --to safetensors also a folder, which is made
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Type of the weights: int4, int8, q4_0, q8_0, q2_k to q6_k, q3_k_s to q5_k_m (mixes),
    /// iq4_nl, iq4_xs, mxfp4, f16 or f32; for safetensors also int4g16, int4g64, int8g16 and
    /// int8g64, with groups of 16 and 64
    #[arg(long, value_name = "TYPE", default_value = "int4")]
    weights: Weights,

    /// Output format [default: by the extension of the output file]
    #[arg(long, value_name = "FORMAT")]
    to: Option<To>,

    /// Weight rounding by the size of each channel's activations on this UTF-8 text
    /// [default text: part of a novel that comes with kvant]
    #[arg(long, value_name = "TEXT", num_args = 0..=1)]
    calibrate: Option<Option<PathBuf>>,

    /// Maximum tokens to calibrate on
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "calibrate")]
    tokens: usize,

    /// Weight rounding by an importance matrix, from llama.cpp or from `kvant calibrate
    /// --imatrix`
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    imatrix: Option<PathBuf>,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    threads: ThreadOptions,
}

/// Formats that can be written.
#[derive(Clone, Copy, ValueEnum)]
enum To {
    /// One file with everything in it
    Gguf,
    /// A file of weights, with config.json and the tokenizer's files beside it
    Safetensors,
}

impl Convert {
    /// Writes the file and says what is in it.
    pub fn execute(mut self) -> Result<(), Failure> {
        if self.is_folder() {
            self.output = self.output.join(IN_FOLDER);
        }
        self.threads.pool().install(|| self.convert())
    }

    fn convert(&self) -> Result<(), Failure> {
        let format = self.format()?;
        if self.output.exists() && !self.force {
            return Err(Failure::new(format!(
                "{}: already exists; name another file, or replace it with --force",
                self.output.display()
            )));
        }
        interrupt::catch()?;
        let path = open::find_or_fetch(&self.model)?;
        let checkpoint = Checkpoint::open(&path)?;
        if let Some(folder) = self.output.parent().filter(|_| self.output.ends_with(IN_FOLDER)) {
            fs::create_dir_all(folder)
                .map_err(|e| Failure::new(format!("{}: cannot make this folder: {e}", folder.display())))?;
        }
        if let Some(dtype) = kvant_convert::quantised(&checkpoint) {
            eprintln!(
                "warning: {} is already quantized ({dtype}); quantizing it again adds error. Convert the original if you can",
                self.model
            );
        }
        if let Some(path) = &self.imatrix {
            let importance = Importance::read(path)?;
            let conversion = self.write(&checkpoint, format, Some(&importance), &self.output)?;
            if importance.used() == 0 {
                eprintln!(
                    "warning: {}: no matrix in it belongs to this model, so it has no effect",
                    path.display()
                );
            }
            return self.report(&conversion);
        }
        let Some(text) = &self.calibrate else {
            return self.report(&self.write(&checkpoint, format, None, &self.output)?);
        };
        let text = match text {
            Some(path) => Cow::Owned(text::read(path)?),
            None => Cow::Borrowed(text::calibration()),
        };
        let (seen, measured) = Texts::cut(&checkpoint, &text, self.tokens)?;
        let importance = observe(&checkpoint, &seen)?;
        let source = load(&checkpoint)?;
        let plain = {
            let folder = Scratch::beside(&self.output)?;
            let name = if format == Format::Gguf { "plain.gguf" } else { "model.safetensors" };
            let path = folder.0.join(name);
            self.write(&checkpoint, format, None, &path)?;
            measure(&source, &path, &measured)?
        };
        let conversion = self.write(&checkpoint, format, Some(&importance), &self.output)?;
        let weighed = measure(&source, &self.output, &measured)?;
        self.report(&conversion)?;
        let mut out = crate::shown::stdout();
        writeln!(out, "KL divergence from the source, {} tokens:", measured.tokens())?;
        writeln!(out, "  plain rounding  {:.5}   same top token {:.1} %", plain.kl, 100.0 * plain.top1)?;
        let ratio = if plain.kl > 0.0 { format!("   {:.2}×", weighed.kl / plain.kl) } else { String::new() };
        writeln!(
            out,
            "  weighted        {:.5}   same top token {:.1} %{ratio}",
            weighed.kl,
            100.0 * weighed.top1
        )?;
        Ok(())
    }

    /// Whether a folder is named: safetensors files are found by their extension, so another name is the folder's.
    fn is_folder(&self) -> bool {
        matches!(self.to, Some(To::Safetensors))
            && self.output.extension().is_none_or(|extension| extension != "safetensors")
    }

    fn format(&self) -> Result<Format, Failure> {
        let extension = self.output.extension().and_then(|extension| extension.to_str());
        match (self.to, extension) {
            (Some(To::Gguf), _) | (None, Some("gguf")) => Ok(Format::Gguf),
            (Some(To::Safetensors), _) | (None, Some("safetensors")) => Ok(Format::Safetensors),
            (None, _) => Err(Failure::Usage(format!(
                "{}: unknown format: use a name that ends in .gguf or .safetensors, or give --to",
                self.output.display()
            ))),
        }
    }

    fn write(
        &self,
        checkpoint: &Checkpoint,
        format: Format,
        importance: Option<&Importance>,
        path: &Path,
    ) -> Result<Conversion, Failure> {
        let conversion = Conversion::new(checkpoint, self.weights, format, importance)?;
        let bar = progress::bar("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        let written = conversion.write(path, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        match written {
            Err(ConvertError::Interrupted) => Err(Failure::Interrupted),
            written => Ok(written.map(|()| conversion)?),
        }
    }

    fn report(&self, conversion: &Conversion) -> Result<(), Failure> {
        conversion.notes().iter().for_each(|note| eprintln!("note: {note}"));
        let tensors = conversion.tensors();
        let values: usize = tensors.iter().map(|(_, _, shape)| shape.iter().product::<usize>()).sum();
        let size = conversion.tensor_bytes();
        writeln!(
            crate::shown::stdout(),
            "{}: {} tensors, {:.1} million weights, {}, {:.2} bits per weight",
            self.output.display(),
            tensors.len(),
            values as f64 / 1e6,
            bytes(size),
            8.0 * size as f64 / values.max(1) as f64
        )?;
        Ok(())
    }
}

/// A text in two parts: one to calibrate on, one to measure on.
pub(super) struct Texts {
    prefix: Vec<u32>,
    window: usize,
    windows: Vec<Vec<u32>>,
}

impl Texts {
    /// As many windows as `tokens` allows, and those that follow; a short text gives a quarter to measurement.
    pub(super) fn cut(checkpoint: &Checkpoint, text: &str, tokens: usize) -> Result<(Self, Self), Failure> {
        let tokenizer = Tokenizer::of(checkpoint)?;
        let prefix = tokenizer.prefix().to_vec();
        let ids = tokenizer.encode(text, EncodeOptions::default())?;
        let context = Description::of(checkpoint)?.context.unwrap_or(WINDOW);
        let window = context.clamp(prefix.len() + LEAST, WINDOW);
        let body = window - prefix.len();
        let mut windows: Vec<Vec<u32>> =
            ids.chunks_exact(body).map(|chunk| [&prefix, chunk].concat()).collect();
        let seen = (tokens / window).min(windows.len().saturating_sub(windows.len().div_ceil(4)));
        if seen == 0 {
            return Err(Failure::new(format!(
                "the text has {} tokens; calibration needs {} at least, and --tokens {window} or more",
                ids.len(),
                2 * body
            )));
        }
        let mut measured = windows.split_off(seen);
        measured.truncate(MEASURED);
        let of = |windows| Self { prefix: prefix.clone(), window, windows };
        Ok((of(windows), of(measured)))
    }

    /// Positions that are compared.
    fn tokens(&self) -> usize {
        self.windows.len() * (self.window - self.prefix.len().max(1))
    }
}

fn load(checkpoint: &Checkpoint) -> Result<Model, Failure> {
    Ok(load_model(checkpoint, ActivationType::F32)?)
}

/// Reads the text with somebody watching.
pub(super) fn observe(checkpoint: &Checkpoint, texts: &Texts) -> Result<Arc<Importance>, Failure> {
    let importance = Arc::new(Importance::default());
    let model = load_observed(checkpoint, Arc::clone(&importance) as _)?;
    let bar = progress::bar("{bar:30} {pos}/{len} windows read  {eta} left");
    bar.set_length(texts.windows.len() as u64);
    for window in &texts.windows {
        let mut cache = KvCache::reference(model.slots(), window.len())?;
        for tokens in window.chunks(PASS) {
            model.forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [cache.sequence_mut()])?;
        }
        stop_if_asked()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(importance)
}

/// How far a converted model is from its source.
struct Distance {
    kl: f64,
    top1: f64,
}

fn measure(source: &Model, converted: &Path, texts: &Texts) -> Result<Distance, Failure> {
    let converted = load(&Checkpoint::open(converted)?)?;
    let models = Models { reference: source, subject: &converted, arithmetic: "f32" };
    let exact: Policy = "f32".parse().expect("a spec of the grammar");
    let bar = progress::bar("{bar:30} {pos}/{len} windows compared  {eta} left");
    bar.set_length(texts.windows.len() as u64);
    let (mut kl, mut top1) = (0.0, 0.0);
    for window in &texts.windows {
        let ids = &window[texts.prefix.len()..];
        let windows = Windows::of_ids(&texts.prefix, ids, texts.window, 1, Score::All)?;
        let request = Request {
            models,
            windows: &windows,
            caches: std::slice::from_ref(&exact),
            mode: Mode::Deployed,
            limits: PassLimits::default(),
        };
        let found = divergence(&request, None, &mut |_| {})?;
        kl += found[0].kl().0;
        top1 += found[0].top1();
        stop_if_asked()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let count = texts.windows.len() as f64;
    Ok(Distance { kl: kl / count, top1: top1 / count })
}

fn stop_if_asked() -> Result<(), Failure> {
    if interrupt::requested() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// A folder that goes away with what is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(path: &Path) -> Result<Self, Failure> {
        let folder = path.with_added_extension("plain");
        fs::create_dir(&folder).map_err(|e| {
            Failure::new(format!("{}: cannot make a folder for the plain model: {e}", folder.display()))
        })?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: whatever went wrong is told elsewhere.
        let _ = fs::remove_dir_all(&self.0);
    }
}
