//! `kvant synth`: a model with random weights.

use crate::failure::Failure;
use crate::options::Tokens;
use crate::progress;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use kvant_engine::memory::bytes;
use kvant_model::LoadError;
use kvant_model::gguf::Writer;
use kvant_model::synth::{self, Described, KNOWN, Known, Shape, WeightType};
use kvant_threads::Pool;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  kvant synth 1b.gguf  the shape of Llama 3.2 1B, 4-bit weights
  kvant synth small.gguf --like smollm2-135m --weights int8
  kvant synth wide.gguf --layers 4 --kv-heads 32
      some sizes changed, the others as in --like
  kvant synth hybrid --like qwen3.5-0.8b
      another architecture, as a folder in half precision
  kvant synth mine --config config.json  the model that a config.json describes

Other architectures: deepseek-v3, gemma-4-31b, glm-4.7-flash, gpt-oss-20b,
lfm2-1.2b, qwen3.5-0.8b and qwen3.6-27b. They are written as a Hugging Face
folder in half precision; quantize them while they load (`kvant bench hybrid
--weights int4`).

Such a model writes nonsense, at the speed of a trained model of the same shape.";

/// Arguments of `kvant synth`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Synth {
    /// GGUF file or folder to write
    out: PathBuf,

    /// Model whose shape to copy
    #[arg(long, value_name = "MODEL", default_value = LLAMAS[0].0, value_parser = PossibleValuesParser::new(names()))]
    like: String,

    /// Write the model that this config.json describes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["like", "weights"])]
    config: Option<PathBuf>,

    /// Number of layers
    #[arg(long, value_name = "N", help_heading = "Shape")]
    layers: Option<usize>,

    /// Hidden size
    #[arg(long, value_name = "N", help_heading = "Shape")]
    hidden: Option<usize>,

    /// Number of attention (query) heads
    #[arg(long, value_name = "N", help_heading = "Shape")]
    heads: Option<usize>,

    /// Number of key-value heads
    #[arg(long, value_name = "N", help_heading = "Shape")]
    kv_heads: Option<usize>,

    /// Channels per head
    #[arg(long, value_name = "N", help_heading = "Shape")]
    head_dim: Option<usize>,

    /// Inner size of the feed-forward block
    #[arg(long, value_name = "N", help_heading = "Shape")]
    ffn: Option<usize>,

    /// Vocabulary size
    #[arg(long, value_name = "N", help_heading = "Shape")]
    vocab: Option<usize>,

    /// Do not share the embedding's weights with the output layer
    #[arg(long, help_heading = "Shape")]
    untied: bool,

    /// Context length to write in the file
    #[arg(short, long, value_name = "TOKENS", help_heading = "Shape", value_parser = Tokens::count)]
    ctx: Option<usize>,

    /// Type of the weights
    #[arg(long, value_name = "TYPE", default_value = "int4")]
    weights: Weights,

    /// Random seed; the same seed gives the same file
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// Llamas whose shapes are known.
const LLAMAS: [(&str, Shape); 2] =
    [("llama-3.2-1b", Shape::LLAMA_3_2_1B), ("smollm2-135m", Shape::SMOLLM2_135M)];

/// What `--like` takes.
fn names() -> impl Iterator<Item = &'static str> {
    LLAMAS.iter().map(|(name, _)| *name).chain(KNOWN.iter().map(|known| known.name))
}

/// Types weights can be written in.
#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    /// 4 bits in groups of 32 (Q4_0)
    Int4,
    /// 8 bits in groups of 32 (Q8_0)
    Int8,
    /// Half precision
    F16,
}

impl Synth {
    /// Writes the file and says what is in it.
    pub fn execute(self) -> Result<(), Failure> {
        if self.out.exists() && !self.force {
            return Err(Failure::new(format!(
                "{}: already exists; name another file, or replace it with --force",
                self.out.display()
            )));
        }
        let described = match &self.config {
            Some(path) => Some(read_config(path)?),
            None => Known::named(&self.like).map(Known::config),
        };
        if let Some(config) = described {
            return self.write_folder(config);
        }
        let shape = self.shape();
        let weights = match self.weights {
            Weights::Int4 => WeightType::Int4,
            Weights::Int8 => WeightType::Int8,
            Weights::F16 => WeightType::F16,
        };
        let model = synth::model(&shape, weights, self.seed)?;
        Pool::default().install(|| write(&model, &self.out))?;
        let size = fs::metadata(&self.out).map_or(model.tensor_bytes(), |file| file.len());
        let millions = shape.parameters() as f64 / 1e6;
        writeln!(
            crate::shown::stdout(),
            "{}: {millions:.1} million random weights, {}",
            self.out.display(),
            bytes(size)
        )?;
        Ok(())
    }

    /// The shape asked for: a known one with the sizes that were named in place of its own.
    fn shape(&self) -> Shape {
        let (_, base) = LLAMAS.iter().find(|(name, _)| *name == self.like).unwrap_or(&LLAMAS[0]);
        Shape {
            layers: self.layers.unwrap_or(base.layers),
            hidden: self.hidden.unwrap_or(base.hidden),
            heads: self.heads.unwrap_or(base.heads),
            kv_heads: self.kv_heads.unwrap_or(base.kv_heads),
            head_dim: self.head_dim.unwrap_or(base.head_dim),
            ffn: self.ffn.unwrap_or(base.ffn),
            vocabulary: self.vocab.unwrap_or(base.vocabulary),
            tied: base.tied && !self.untied,
            context: self.ctx.unwrap_or(base.context),
            ..*base
        }
    }

    /// Writes a model of another structure than Llama's.
    fn write_folder(&self, config: Value) -> Result<(), Failure> {
        let sizes = [
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.ffn,
            self.vocab,
            self.ctx,
        ];
        if sizes.iter().any(Option::is_some) || self.untied {
            return Err(Failure::new(
                "sizes can be changed only for Llama shapes; for others write a config.json and pass it with --config",
            ));
        }
        let model = Described::new(config, self.seed)?;
        let bar = progress::bar("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        bar.set_length(model.tensor_bytes());
        // Written beside and renamed at the end, as files are.
        let unfinished = self.out.with_added_extension("part");
        let written =
            Pool::default().install(|| model.write(&unfinished, &mut |done| bar.set_position(done)));
        bar.finish_and_clear();
        let written = written.and_then(|()| {
            if self.out.is_dir() {
                fs::remove_dir_all(&self.out)
                    .map_err(|e| LoadError::io("replace the folder", &self.out, e))?;
            }
            fs::rename(&unfinished, &self.out)
                .map_err(|e| LoadError::io("give the folder its name", &self.out, e))
        });
        if written.is_err() {
            // Best effort: the error that counts is the one above.
            let _ = fs::remove_dir_all(&unfinished);
        }
        written?;
        let millions = model.parameters() as f64 / 1e6;
        let (folder, size) = (self.out.display(), bytes(model.tensor_bytes()));
        writeln!(crate::shown::stdout(), "{folder}: {millions:.1} million random weights, {size}")?;
        Ok(())
    }
}

/// The configuration in a file.
fn read_config(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(|e| LoadError::io("read the configuration", path, e))?;
    let config = kvant_model::config::parse_json(&text);
    config.map_err(|e| Failure::new(format!("{}: is not a model configuration: {e}", path.display())))
}

/// Writes beside `path` and renames at the end: there is never half a model under its name.
fn write(model: &Writer, path: &Path) -> Result<(), LoadError> {
    let unfinished = path.with_added_extension("part");
    let file = File::create(&unfinished).map_err(|e| LoadError::io("create the file", &unfinished, e))?;
    let bar = progress::bar("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    bar.set_length(model.tensor_bytes());
    let written = model.write_with(&mut BufWriter::new(file), &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let written = written.map_err(|e| e.in_file(&unfinished)).and_then(|()| {
        fs::rename(&unfinished, path).map_err(|e| LoadError::io("give the file its name", path, e))
    });
    if written.is_err() {
        // Best effort: the error that counts is the one above.
        let _ = fs::remove_file(&unfinished);
    }
    written
}
