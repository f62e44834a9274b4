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
  kvant synth oss.gguf --like gpt-oss-20b --weights mxfp4
      another architecture
  kvant synth mine.gguf --config config.json
      the model that a config.json describes
  kvant synth mine --config config.json
      the same as a Hugging Face folder in half precision

Other architectures: deepseek-v3, gemma-4-31b, glm-4.7-flash, gpt-oss-20b,
lfm2-1.2b, qwen3-30b-a3b, qwen3.5-0.8b and qwen3.6-27b.

Such a model writes nonsense, at the speed of a trained model of the same shape.";

/// Arguments of `kvant synth`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Synth {
    /// GGUF file to write; with --config, a folder unless the name ends in .gguf
    out: PathBuf,

    /// Model whose shape to copy
    #[arg(long, value_name = "MODEL", default_value = LLAMAS[0].0, value_parser = PossibleValuesParser::new(names()))]
    like: String,

    /// Write the model that this config.json describes
    #[arg(long, value_name = "FILE", conflicts_with = "like")]
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

    /// Type of the weights [default: int4; f16 in a folder]
    #[arg(long, value_name = "TYPE")]
    weights: Option<Weights>,

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
    /// 4-bit floats in groups of 32 (MXFP4)
    Mxfp4,
    /// Half precision
    F16,
}

impl Weights {
    /// What a conversion to this type is asked for.
    fn converted(self) -> kvant_convert::Weights {
        match self {
            Self::Int4 => kvant_convert::Weights::Int4,
            Self::Int8 => kvant_convert::Weights::Int8,
            Self::Mxfp4 => kvant_convert::Weights::Mxfp4,
            Self::F16 => kvant_convert::Weights::F16,
        }
    }
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
            return self.write_described(config);
        }
        let shape = self.shape();
        let weights = match self.weights.unwrap_or(Weights::Int4) {
            Weights::Int4 => WeightType::Int4,
            Weights::Int8 => WeightType::Int8,
            Weights::F16 => WeightType::F16,
            Weights::Mxfp4 => {
                return Err(Failure::new(
                    "Llamas are written in int4, int8 or f16: leave --weights mxfp4 to other architectures",
                ));
            }
        };
        let model = synth::model(&shape, weights, self.seed)?;
        self.write_file(&model, shape.parameters())
    }

    /// Writes a GGUF file and says what is in it.
    fn write_file(&self, model: &Writer, parameters: u64) -> Result<(), Failure> {
        Pool::default().install(|| write(model, &self.out))?;
        let size = fs::metadata(&self.out).map_or(model.tensor_bytes(), |file| file.len());
        let (out, millions) = (self.out.display(), parameters as f64 / 1e6);
        writeln!(crate::shown::stdout(), "{out}: {millions:.1} million random weights, {}", bytes(size))?;
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
    fn write_described(&self, config: Value) -> Result<(), Failure> {
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
        let is_file = self.config.is_none() || self.out.extension().is_some_and(|end| end == "gguf");
        match (is_file, self.weights) {
            (true, weights) => self.write_described_file(config, weights.unwrap_or(Weights::Int4)),
            (false, None | Some(Weights::F16)) => self.write_folder(config),
            (false, Some(_)) => Err(Failure::Usage(format!(
                "--weights: folders are in half precision; name a file, {}.gguf",
                self.out.display()
            ))),
        }
    }

    /// As a GGUF file. Beside it lies an outline while it is written.
    fn write_described_file(&self, config: Value, weights: Weights) -> Result<(), Failure> {
        let parameters = Described::new(config.clone(), self.seed)?.parameters();
        let outline = self.out.with_added_extension("outline");
        let made = Pool::default()
            .install(|| kvant_convert::noise(config, weights.converted(), self.seed, &outline))
            .map_err(|e| Failure::new(e.to_string()));
        let written = made.and_then(|model| self.write_file(&model, parameters));
        // Best effort: the error that counts is the one above.
        let _ = fs::remove_dir_all(&outline);
        written
    }

    /// As a Hugging Face folder in half precision.
    fn write_folder(&self, config: Value) -> Result<(), Failure> {
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
