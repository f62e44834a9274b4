//! `kvant inspect`: what a model file holds, and what its context costs.

mod about;
mod memory;

use crate::failure::Failure;
use crate::open;
use crate::options::{RopeFlags, Tokens, kv_choice};
use crate::table::Column::{Left, Right};
use crate::table::Table;
use about::About;
use clap::Args;
use kvant_cache::Slots;
use kvant_codec::{KvSpec, PRESETS};
use kvant_engine::kv;
use kvant_engine::memory::bytes;
use kvant_engine::open::{Plans, default_context};
use kvant_engine::{KvChoice, StateType};
use kvant_model::checkpoint::ConfigSource;
use kvant_model::config::{Dims, ModelConfig};
use kvant_model::description::LayerSummary;
use kvant_model::{Checkpoint, DType, Description, Tensor};
use kvant_server::ModelFacts;
use memory::Memory;
use serde_json::{Value, json};
use std::io::{self, Write};

const EXAMPLES: &str = "\
Examples:
  kvant inspect smollm2-135m
  kvant inspect model.gguf --layers
  kvant inspect model.gguf --ctx 128k --kv int4  the memory such a context takes
  kvant inspect model.gguf --json | jq '.kv[] | {spec, bytes_per_token}'";

/// Specs shown besides the presets.
const EXACT: [&str; 2] = ["f32", "f16"];

/// Arguments of `kvant inspect`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// A model file or folder, or the name of a model in the cache
    model: String,

    /// Estimate the memory of a context of this many tokens, such as 32k [default: the
    /// model's own]
    #[arg(short, long, value_name = "TOKENS", alias = "ctx-size")]
    ctx: Option<Tokens>,

    /// The KV cache [default: the model's plan, or its family's default]
    #[arg(long, value_name = "SPEC", value_parser = kv_choice)]
    kv: Option<KvChoice>,

    /// Type of recurrent state: f32, bf16 or int8; narrower types are smaller and less exact
    /// [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

    #[command(flatten)]
    rope: RopeFlags,

    /// Describe every layer: its blocks, and the state it keeps between tokens
    #[arg(long)]
    layers: bool,

    /// List every tensor
    #[arg(long)]
    tensors: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub fn execute(self) -> Result<(), Failure> {
        let path = open::find(&self.model)?;
        // A configuration alone has layers to show, and no weights.
        let name = path.to_string_lossy();
        let checkpoint = match name.ends_with(".json") && !name.ends_with(".index.json") {
            true => Checkpoint::open_description(&path, DType::F16),
            false => Checkpoint::open(&path),
        };
        let checkpoint = self.rope.on(checkpoint)?;
        let contents = Contents::read(&checkpoint)?;
        let memory = match &contents.description {
            Ok(description) if description.encoder.is_none() => Some(self.memory(&checkpoint, description)?),
            // An encoder keeps nothing.
            Ok(_) | Err(_) => None,
        };
        let mut out = crate::shown::stdout();
        if self.json {
            let mut json = contents.json();
            json["about"] = contents.about().json();
            json["memory"] = memory.map(|memory| memory.json()).into();
            writeln!(out, "{json}")?;
        } else {
            contents.write(&mut out)?;
            memory.map_or(Ok(()), |memory| memory.write(&mut out))?;
            if self.layers {
                contents.write_layers(&mut out)?;
            }
            if self.tensors {
                contents.write_tensors(&mut out)?;
            }
        }
        Ok(())
    }

    fn memory(&self, checkpoint: &Checkpoint, description: &Description) -> Result<Memory, Failure> {
        let context = self.ctx.map_or_else(|| default_context(description), |tokens| tokens.0);
        let mut policy = Plans::new(checkpoint).choose(self.kv.as_ref(), description)?.policy;
        policy.state = self.state.unwrap_or(policy.state);
        Memory::of(checkpoint, description, policy, context)
    }
}

/// What a server tells about a model's files.
pub fn facts(checkpoint: &Checkpoint) -> Result<ModelFacts, Failure> {
    let contents = Contents::read(checkpoint)?;
    let is_gguf = matches!(checkpoint.config(), ConfigSource::Gguf(_));
    Ok(ModelFacts {
        file_bytes: contents.bytes(),
        family: contents.architecture.clone(),
        parameters: contents.values(),
        quantization: contents.about().quantisation.unwrap_or_default(),
        format: if is_gguf { "gguf" } else { "safetensors" }.to_owned(),
    })
}

struct Contents<'c> {
    checkpoint: &'c Checkpoint,
    architecture: String,
    /// Why the sizes are not known, for an architecture that spells them in another way.
    dims: Result<Dims, String>,
    /// Why it cannot run, where it cannot.
    description: Result<Description, String>,
    tensors: Vec<Tensor>,
}

impl<'c> Contents<'c> {
    fn read(checkpoint: &'c Checkpoint) -> Result<Self, Failure> {
        let config = ModelConfig::new(checkpoint.config())?;
        let tensors: Result<Vec<_>, _> = checkpoint.names().map(|name| checkpoint.tensor(name)).collect();
        Ok(Self {
            checkpoint,
            architecture: config.architecture()?.to_owned(),
            dims: Dims::read(&config).map_err(|e| e.to_string()),
            description: Description::of(checkpoint).map_err(|e| e.to_string()),
            tensors: tensors?,
        })
    }

    fn about(&self) -> About {
        About::of(self.checkpoint, self.types().first().map(|(dtype, ..)| *dtype))
    }

    fn values(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len() as u64).sum()
    }

    fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Tensors, values and bytes of each type, the largest first.
    fn types(&self) -> Vec<(DType, usize, u64, u64)> {
        let mut types: Vec<(DType, usize, u64, u64)> = Vec::new();
        for tensor in &self.tensors {
            let at = types.iter().position(|(dtype, ..)| *dtype == tensor.dtype()).unwrap_or_else(|| {
                types.push((tensor.dtype(), 0, 0, 0));
                types.len() - 1
            });
            let (_, count, values, bytes) = &mut types[at];
            *count += 1;
            *values += tensor.len() as u64;
            *bytes += tensor.bytes().len() as u64;
        }
        types.sort_by_key(|(.., bytes)| std::cmp::Reverse(*bytes));
        types
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let about = self.about();
        let mut facts = Table::plain();
        let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
        fact("file", self.checkpoint.path().display().to_string());
        about.name.iter().for_each(|name| fact("name", name.clone()));
        fact("architecture", self.architecture.clone());
        about.quantisation.iter().for_each(|kind| fact("quantisation", kind.clone()));
        fact("licence", about.licence.clone().unwrap_or_else(|| "not said".into()));
        let (values, size) = (self.values(), self.bytes());
        let bits = 8.0 * size as f64 / values.max(1) as f64;
        fact(
            "parameters",
            format!("{:.1} million, {}, {bits:.2} bits each", values as f64 / 1e6, bytes(size)),
        );
        if !self.checkpoint.has_weights() {
            fact("weights", "not downloaded; matrices are assumed to be F16".to_owned());
        }
        match &self.dims {
            Ok(d) => {
                fact("layers", format!("{} of width {}", d.layers, d.hidden));
                let Dims { heads, kv_heads, head_dim, .. } = d;
                fact("heads", format!("{heads} of {head_dim} channels, {kv_heads} with keys and values"));
            }
            Err(why) => fact("sizes", format!("not known: {why}")),
        }
        match &self.description {
            Ok(description) => {
                description.encoder.iter().for_each(|encoder| fact("gives", encoder.gives()));
                fact("vocabulary", format!("{} tokens", description.vocabulary));
                fact("context", description.context.map_or("not said".into(), |n| format!("{n} tokens")));
                let rope = self.checkpoint.rope_override();
                if !rope.is_empty() {
                    fact("rope", format!("{rope}; not the file's own"));
                }
                if !description.left_out.is_empty() {
                    fact("left out", format!("{}; the text side runs", description.left_out.join(", ")));
                }
            }
            Err(why) => fact("cannot run", why.clone()),
        }
        if !self.description.as_ref().is_ok_and(|of| of.encoder.is_some()) {
            about.chat().into_iter().for_each(|(name, words)| fact(name, words));
        }
        for (name, kind) in &about.beside {
            fact("beside it", format!("{name}, {kind}; left out"));
        }
        facts.write(out, 0)?;

        writeln!(out, "\nTensor types")?;
        let mut types = Table::new(&[
            Left("type"),
            Right("tensors"),
            Right("values"),
            Right("size"),
            Right("bits/value"),
        ]);
        for (dtype, count, values, size) in self.types() {
            let bits = format!("{:.2}", dtype.bits_per_value());
            types.row([dtype.to_string(), count.to_string(), values.to_string(), bytes(size), bits]);
        }
        types.write(out, 2)?;

        if let Ok(Description { slots, encoder: None, .. }) = &self.description {
            writeln!(out, "\nKeys and values per token of context")?;
            let mut table = Table::new(&[
                Left("spec"),
                Right("bits/value"),
                Right("bytes/token"),
                Right("at 32k"),
                Left("what it is"),
            ]);
            for cost in costs(slots) {
                table.row(match &cost.bytes {
                    Ok(each) => [
                        cost.spec,
                        format!("{:.2}", bits_per_value(*each, slots)),
                        format!("{each:.0}"),
                        cost.resident.map_or_else(|| "-".into(), bytes),
                        cost.about.to_owned(),
                    ],
                    Err(why) => [cost.spec, "-".into(), "-".into(), "-".into(), why.clone()],
                });
            }
            table.write(out, 2)?;
        }
        Ok(())
    }

    fn write_layers(&self, out: &mut dyn Write) -> io::Result<()> {
        let Ok(description) = &self.description else { return Ok(()) };
        writeln!(out, "\nLayers")?;
        for layers in description.layer_summaries() {
            writeln!(out, "  {layers}")?;
        }
        if description.encoder.is_some() {
            return Ok(());
        }
        writeln!(out, "\nKept between tokens")?;
        for (count, words) in description.slot_summaries() {
            writeln!(out, "  {count} × {words}")?;
        }
        Ok(())
    }

    fn write_tensors(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nTensors")?;
        let mut table = Table::new(&[Left("name"), Left("type"), Left("shape"), Right("size")]);
        for tensor in &self.tensors {
            let shape = tensor.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            let name = tensor.name().to_owned();
            table.row([name, tensor.dtype().to_string(), shape, bytes(tensor.bytes().len() as u64)]);
        }
        table.write(out, 2)
    }

    fn json(&self) -> Value {
        let dims = self.dims.as_ref().ok();
        let description = self.description.as_ref().ok();
        let types = self.types().into_iter().map(|(dtype, tensors, values, bytes)| {
            json!({"type": dtype.name(), "tensors": tensors, "values": values, "bytes": bytes})
        });
        let tensors = self.tensors.iter().map(|tensor| {
            json!({"name": tensor.name(), "type": tensor.dtype().name(), "shape": tensor.shape(),
                   "bytes": tensor.bytes().len()})
        });
        let kv = description.filter(|of| of.encoder.is_none()).map(|Description { slots, .. }| {
            let cost = |cost: Cost| {
                json!({"spec": cost.spec, "bytes_per_token": cost.bytes.as_ref().ok(),
                       "bits_per_value": cost.bytes.as_ref().ok().map(|b| bits_per_value(*b, slots)),
                       "refused": cost.bytes.as_ref().err()})
            };
            costs(slots).into_iter().map(cost).collect::<Vec<_>>()
        });
        json!({
            "file": self.checkpoint.path(),
            "architecture": self.architecture,
            "gives": description.and_then(|d| d.encoder.as_ref()).map(|encoder| encoder.gives()),
            "cannot_run": self.description.as_ref().err(),
            "rope_override": Some(self.checkpoint.rope_override()).filter(|rope| !rope.is_empty()).map(ToString::to_string),
            "parameters": self.values(),
            "bytes": self.bytes(),
            "layers": dims.map(|d| d.layers),
            "hidden": dims.map(|d| d.hidden),
            "heads": dims.map(|d| d.heads),
            "kv_heads": dims.map(|d| d.kv_heads),
            "head_dim": dims.map(|d| d.head_dim),
            "vocabulary": description.map(|d| d.vocabulary),
            "context": description.and_then(|d| d.context),
            "types": types.collect::<Vec<_>>(),
            "kv": kv,
            "layer_blocks": description.map(layer_blocks),
            "left_out": description.map(|d| d.left_out.clone()),
            "tensors": tensors.collect::<Vec<_>>(),
        })
    }
}

/// The layers in words, runs of equal ones together.
fn layer_blocks(description: &Description) -> Vec<Value> {
    let run = |run: LayerSummary| json!({"first": run.layers.0, "last": run.layers.1, "blocks": run.blocks});
    description.layer_summaries().into_iter().map(run).collect()
}

/// What a spec costs on a model.
struct Cost {
    spec: String,
    about: &'static str,
    /// Bytes per token, or why the spec does not fit the model.
    bytes: Result<f64, String>,
    /// What 32k tokens take in memory, as every estimate has it.
    resident: Option<u64>,
}

/// Bits per key or value when all of a token take `bytes`.
fn bits_per_value(bytes: f64, slots: &Slots) -> f64 {
    8.0 * bytes / (kv::f16_bytes_per_token(slots) / 2).max(1) as f64
}

fn costs(slots: &Slots) -> Vec<Cost> {
    let cost = |spec: Result<KvSpec, String>, name: &str, about| Cost {
        spec: name.to_owned(),
        about,
        resident: spec.as_ref().ok().and_then(|spec| Some(kv::resident(spec, slots, 32768).ok()? as u64)),
        bytes: spec.and_then(|spec| kv::bytes_per_token(&spec, slots).map_err(|e| e.to_string())),
    };
    let exact = EXACT.map(|name| cost(name.parse().map_err(|e| format!("{e}")), name, "exact"));
    let presets = PRESETS.iter().map(|preset| cost(Ok(preset.spec()), preset.name, preset.about));
    exact.into_iter().chain(presets).collect()
}
