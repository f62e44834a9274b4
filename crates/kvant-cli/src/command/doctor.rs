//! `kvant doctor`: what this machine can do, and what would make kvant slow on it.

mod machine;

use crate::failure::Failure;
use crate::open;
use crate::table::Table;
use clap::Args;
use kvant_codec::{TIER_VARIABLE, Tier};
use kvant_engine::memory::{Memory, bytes};
use kvant_model::cache::LayerState;
use kvant_model::{Checkpoint, Hub, LoadOptions, Model, Tensor};
use std::io::{self, Write};

/// Arguments of `kvant doctor`.
#[derive(Args)]
pub struct Doctor {
    /// Look at this model too: a file, a folder or the name of a model in the cache
    #[arg(short, long)]
    model: Option<String>,
}

impl Doctor {
    pub fn execute(self) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let mut complaints = Vec::new();
        let tier = machine(&mut out, &mut complaints)?;
        models(&mut out)?;
        if let Some(model) = &self.model {
            let checkpoint = Checkpoint::open(open::find(model)?)?;
            layers(&mut out, &checkpoint, tier, &mut complaints)?;
        }
        if complaints.is_empty() {
            writeln!(out, "\nNothing here would make kvant slow.")?;
        } else {
            writeln!(out, "\nThis would make kvant slow:")?;
            for complaint in complaints {
                writeln!(out, "  - {complaint}")?;
            }
        }
        Ok(())
    }
}

/// Processor, threads and memory; returns the instruction set in use.
fn machine(out: &mut dyn Write, complaints: &mut Vec<String>) -> Result<Tier, Failure> {
    let tier = Tier::select()?;
    let best = Tier::available().last().unwrap_or(Tier::Scalar);
    let forced = if tier == best { String::new() } else { format!(", forced by {TIER_VARIABLE}") };
    let mut table = Table::plain();
    table.row([
        "version".into(),
        format!("kvant {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH),
    ]);
    if let Some(name) = machine::processor_name() {
        table.row(["processor".into(), name]);
    }
    table.row(["features".into(), machine::features().join(" ")]);
    table.row(["kernels".into(), format!("{}{forced}", tier.name())]);
    if tier < best {
        complaints.push(format!(
            "{TIER_VARIABLE}={} is set, but this processor runs {}",
            tier.name(),
            best.name()
        ));
    } else if tier == Tier::Scalar {
        complaints.push("this processor has none of AVX2, AVX-512 or NEON: plain code runs".to_owned());
    }
    if cfg!(debug_assertions) {
        complaints.push("this is a debug build: build with --release".to_owned());
    }
    let threads = kvant_threads::threads();
    table.row(["threads".into(), machine::threads_line(threads)]);
    if let Some(online) = machine::processors_online().filter(|&online| online > threads) {
        complaints
            .push(format!("only {threads} of {online} processors may be used (a container or taskset)"));
    }
    if let Some(load) = machine::load().filter(|&load| load > threads as f64) {
        complaints.push(format!("other programs keep the processors busy (load {load:.1} on {threads})"));
    }
    match Memory::read() {
        Some(memory) => {
            let limit = memory.limit.map(|n| format!(", limited to {}", bytes(n))).unwrap_or_default();
            let text = format!("{} available of {}{limit}", bytes(memory.available), bytes(memory.total));
            table.row(["memory".into(), text]);
        }
        None => table.row(["memory".into(), "this system does not say; contexts are not checked".into()]),
    }
    table.write(out, 0)?;
    Ok(tier)
}

fn models(out: &mut dyn Write) -> Result<(), Failure> {
    let hub = Hub::from_env()?;
    let models = hub.models()?;
    writeln!(out, "\nModels in {}", hub.folder().display())?;
    let mut table = Table::plain();
    for model in &models {
        table.row([model.name.clone(), bytes(model.bytes)]);
    }
    if models.is_empty() {
        table.row(["none yet; the default is fetched on first use".to_owned()]);
    }
    table.write(out, 2)?;
    Ok(())
}

/// What runs for each kind of layer of a model.
fn layers(
    out: &mut dyn Write,
    checkpoint: &Checkpoint,
    tier: Tier,
    complaints: &mut Vec<String>,
) -> Result<(), Failure> {
    let model = Model::load(checkpoint, LoadOptions::default())?;
    writeln!(out, "\nModel {} ({})", checkpoint.path().display(), model.architecture().config_name)?;
    let tensors = checkpoint.names().map(|name| checkpoint.tensor(name)).collect::<Result<Vec<_>, _>>()?;
    let mut table = Table::new(&["weights", "type", "tensors", "size", "kernel"]);
    for (kind, dtype, count, size) in by_kind(&tensors) {
        let kernel = if kind.ends_with("norm") || kind.ends_with("bias") {
            "f32".to_owned()
        } else {
            format!("unpacked to f32 and multiplied, {}", tier.name())
        };
        table.row([kind, dtype, count.to_string(), bytes(size), kernel]);
    }
    table.write(out, 2)?;

    let mut table = Table::new(&["cache entries", "heads", "channels", "window", "kernel"]);
    for (shape, count) in by_shape(model.states()) {
        table.row([vec![count.to_string()], shape, vec!["exact attention".into()]].concat());
    }
    table.write(out, 2)?;

    let size: u64 = tensors.iter().map(|tensor| tensor.bytes().len() as u64).sum();
    if let Some(memory) = Memory::read()
        && size > memory.available
    {
        let (size, available) = (bytes(size), bytes(memory.available));
        complaints.push(format!("the weights take {size}, but {available} are available: they will be read from disk again and again"));
    }
    complaints.push("weights are unpacked to f32 before every product in this version".to_owned());
    Ok(())
}

/// Tensors of the same role and type: role, type, how many, bytes. The role is the name without the layer's number.
fn by_kind(tensors: &[Tensor]) -> Vec<(String, String, usize, u64)> {
    let mut kinds: Vec<(String, String, usize, u64)> = Vec::new();
    for tensor in tensors {
        let parts = tensor.name().split('.').filter(|part| part.parse::<u32>().is_err());
        let parts: Vec<&str> =
            parts.filter(|part| !["blk", "model", "layers", "weight"].contains(part)).collect();
        let (kind, dtype) = (parts.join("."), tensor.dtype().to_string());
        let size = tensor.bytes().len() as u64;
        match kinds.iter_mut().find(|(k, t, ..)| *k == kind && *t == dtype) {
            Some((_, _, count, bytes)) => {
                *count += 1;
                *bytes += size;
            }
            None => kinds.push((kind, dtype, 1, size)),
        }
    }
    kinds
}

/// Cache entries of the same shape, as cells, and how many there are.
fn by_shape(states: &[LayerState]) -> Vec<(Vec<String>, usize)> {
    let mut shapes: Vec<(Vec<String>, usize)> = Vec::new();
    for state in states {
        let cells = match state {
            LayerState::KeysValues(shape) => vec![
                shape.heads.to_string(),
                format!("{} + {}", shape.key_dim, shape.value_dim),
                shape.window.map_or("all".into(), |window| window.to_string()),
            ],
            other => vec![format!("{other:?}"), String::new(), String::new()],
        };
        match shapes.iter_mut().find(|(known, _)| *known == cells) {
            Some((_, count)) => *count += 1,
            None => shapes.push((cells, 1)),
        }
    }
    shapes
}
