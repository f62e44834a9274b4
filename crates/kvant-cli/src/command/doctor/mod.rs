//! `kvant doctor`: what this machine can do, and what would make kvant slow on it.

mod devices;
mod machine;

use crate::failure::Failure;
use crate::open;
use crate::options::{RopeFlags, kv_choice};
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_cache::{SlotKind, Slots};
use kvant_codec::{AMX_VARIABLE, Amx};
use kvant_codec::{TIER_VARIABLE, Tier};
use kvant_engine::estimate::{MemoryEstimate, RunConfig};
use kvant_engine::kv::{self, SlotKernels};
use kvant_engine::memory::{Memory, bytes};
use kvant_engine::open::{ChosenPolicy, Plans, default_context};
use kvant_engine::{DeviceChoice, FamilyDefault, KvChoice, WeightKernel};
use kvant_eval::Machine;
use kvant_hub::Hub;
use kvant_model::{Checkpoint, DType, Description, Tensor};
use kvant_threads::Pool;
use std::io::Write;

/// Arguments of `kvant doctor`.
#[derive(Args)]
pub struct Doctor {
    /// Check this model too: a file, a folder or the name of a model in the cache
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    named: Option<String>,

    /// The same as MODEL
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,

    /// The KV cache to check [default: the model's plan, or its family's default]
    #[arg(long, value_name = "SPEC", value_parser = kv_choice)]
    kv: Option<KvChoice>,

    /// Compute device: cpu, gpu, cuda, cuda:N, or auto
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,

    #[command(flatten)]
    rope: RopeFlags,
}

impl Doctor {
    pub fn execute(self) -> Result<(), Failure> {
        // A mistyped model is said before anything else.
        let model = self.named.or(self.model);
        let checkpoint = model.map(|model| self.rope.open(open::find(&model)?)).transpose()?;
        let mut out = crate::shown::stdout();
        let mut complaints = Vec::new();
        let tier = machine(&mut out, &mut complaints)?;
        devices::list(&mut out)?;
        models(&mut out)?;
        if let Some(checkpoint) = &checkpoint {
            devices::write(&mut out, checkpoint, self.device, self.kv.as_ref())?;
            layers(&mut out, checkpoint, self.kv, tier, &mut complaints)?;
        }
        if complaints.is_empty() {
            writeln!(out, "\nAll is well: nothing here would make kvant slow.")?;
        } else {
            writeln!(out, "\nThis would make kvant slow:")?;
            for Complaint { what, advice } in complaints {
                writeln!(out, "  - {what}\n    {advice}")?;
            }
        }
        Ok(())
    }
}

/// Something that would make kvant slow, and what to do about it.
struct Complaint {
    what: String,
    advice: &'static str,
}

fn complaint(what: impl Into<String>, advice: &'static str) -> Complaint {
    Complaint { what: what.into(), advice }
}

/// Processor, threads and memory; returns the instruction set in use.
fn machine(out: &mut dyn Write, complaints: &mut Vec<Complaint>) -> Result<Tier, Failure> {
    let tier = Tier::select()?;
    let best = Tier::available().last().unwrap_or(Tier::Scalar);
    let forced = if tier == best { String::new() } else { format!(", forced by {TIER_VARIABLE}") };
    let mut table = Table::plain();
    table.row([
        "version".into(),
        format!("kvant {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH),
    ]);
    let this = Machine::this();
    table.row(["processor".into(), this.cpu]);
    table.row(["features".into(), machine::features().join(" ")]);
    table.row(["kernels".into(), format!("{}{forced}", product_kernels(tier))]);
    if tier < best {
        let what = format!("{TIER_VARIABLE}={} is set, but this processor runs {}", tier.name(), best.name());
        complaints.push(complaint(what, "unset it"));
    } else if tier == Tier::Scalar {
        let what = "this processor has none of AVX2, AVX-512 or NEON: plain code runs";
        complaints.push(complaint(what, "use small models, or another machine"));
    }
    match Amx::status() {
        Amx::Refused(reason) => {
            let what = format!("the system does not let kvant use AMX tiles: {reason}");
            complaints
                .push(complaint(what, "allow it (a newer kernel, another container), or live with AVX-512"));
        }
        Amx::TurnedOff => {
            complaints
                .push(complaint(format!("{AMX_VARIABLE}=off is set: AMX tiles are not used"), "unset it"));
        }
        Amx::Used | Amx::Absent => {}
    }
    if cfg!(debug_assertions) {
        complaints.push(complaint("this is a debug build", "build with --release"));
    }
    let threads = Pool::default().threads();
    table.row(["threads".into(), machine::threads_line(threads)]);
    if let Some(online) = machine::processors_online().filter(|&online| online > threads) {
        let what = format!("only {threads} of {online} processors may be used (a container or taskset)");
        complaints.push(complaint(what, "give the container more, or run without taskset"));
    }
    if let Some(load) = machine::load().filter(|&load| load > threads as f64) {
        let what = format!("other programs keep the processors busy (load {load:.1} on {threads})");
        complaints.push(complaint(what, "wait until they finish, or use fewer threads (--threads)"));
    }
    match Memory::read() {
        Some(memory) => {
            let limit = memory.limit.map(|n| format!(", limited to {}", bytes(n))).unwrap_or_default();
            let text = format!("{} available of {}{limit}", bytes(memory.available), bytes(memory.total));
            table.row(["memory".into(), text]);
        }
        None => {
            table.row(["memory".into(), "unknown on this system; contexts are not checked against it".into()])
        }
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
        table.row(["none yet; the default model is downloaded on first use".to_owned()]);
    }
    table.write(out, 2)?;
    Ok(())
}

/// What runs for each kind of layer of a model.
fn layers(
    out: &mut dyn Write,
    checkpoint: &Checkpoint,
    asked: Option<KvChoice>,
    tier: Tier,
    complaints: &mut Vec<Complaint>,
) -> Result<(), Failure> {
    let description = Description::of(checkpoint)?;
    writeln!(out, "\nModel {} ({})", checkpoint.path().display(), description.architecture)?;
    let rope = checkpoint.rope_override();
    if !rope.is_empty() {
        writeln!(out, "rotary embedding (RoPE): {rope}; not the file's own")?;
    }
    let tensors = checkpoint.names().map(|name| checkpoint.tensor(name)).collect::<Result<Vec<_>, _>>()?;
    let mut table =
        Table::new(&[Left("weights"), Left("type"), Right("tensors"), Right("size"), Left("kernel")]);
    let mut unpacked = Vec::new();
    for (kind, dtype, count, size) in by_kind(&tensors) {
        let kernel = if kind.ends_with("norm") || kind.ends_with("bias") {
            "f32".to_owned()
        } else if ["weight_scale_inv", "weight_scale", "_scales"].iter().any(|end| kind.ends_with(end)) {
            "with the weights beside it".to_owned()
        } else if kind == "token_embd" || kind.ends_with("embed_tokens") {
            let is_output =
                !checkpoint.names().any(|name| name.starts_with("output.") || name.starts_with("lm_head."));
            format!(
                "rows as they are asked for{}",
                if is_output { "; packed once more as the output" } else { "" }
            )
        } else {
            match WeightKernel::of(dtype) {
                WeightKernel::Packed => format!("packed × int8, {}", product_kernels(tier)),
                WeightKernel::Dense => format!("as stored × f32, {}", tier.name()),
                WeightKernel::Unpacked => {
                    unpacked.push(dtype.to_string());
                    "unpacked to f32 each time".to_owned()
                }
            }
        };
        table.row([kind, dtype.to_string(), count.to_string(), bytes(size), kernel]);
    }
    table.write(out, 2)?;

    if let Some(encoder) = &description.encoder {
        writeln!(out, "\n  It gives {}; it runs on CPUs.", encoder.gives())?;
        return Ok(());
    }
    let family = FamilyDefault::of(&description);
    let ChosenPolicy { policy, reason, .. } = Plans::new(checkpoint).choose(asked.as_ref(), &description)?;
    let mut table = Table::plain();
    table.row(["family".to_owned(), family.about.to_owned()]);
    table.row(["cache".to_owned(), format!("{policy}, {reason}")]);
    writeln!(out)?;
    table.write(out, 2)?;
    writeln!(out)?;

    let mut table = Table::new(&[
        Right("layers"),
        Right("heads"),
        Right("channels"),
        Right("window"),
        Right("bits"),
        Left("kernels"),
    ]);
    let kernels = kv::kernels(&policy, &description.slots)?;
    for (cells, count) in by_slot(&description.slots, &kernels) {
        table.row([vec![count.to_string()], cells].concat());
    }
    if kernels.iter().any(|slot| slot.kernels.contains(&"decode")) {
        let what = format!("{policy} has no kernels that read encoded pages: pages are decoded first");
        complaints.push(complaint(what, "choose another cache: `--kv list` lists them"));
    }
    table.write(out, 2)?;

    let context = default_context(&description);
    let run = RunConfig::answer(&policy, context, Pool::default().threads());
    let estimate = MemoryEstimate::new(checkpoint, &description, &run)?;
    writeln!(out, "\n  memory of {context} tokens: {}", estimate.sum())?;
    if let Some(memory) = Memory::read()
        && estimate.weights > memory.available
    {
        let (size, available) = (bytes(estimate.weights), bytes(memory.available));
        let what = format!(
            "the weights take {size}, but only {available} is available: they will be read from disk over and over"
        );
        complaints.push(complaint(what, "close other programs, or use a smaller model or quantization"));
    }
    unpacked.sort();
    unpacked.dedup();
    if !unpacked.is_empty() {
        let types = unpacked.join(", ");
        let what =
            format!("there are no fast kernels for weights in {types}: they are decoded for every product");
        complaints.push(complaint(what, "`kvant convert` can write the model in a faster type"));
    }
    Ok(())
}

/// The instructions that multiply.
fn product_kernels(tier: Tier) -> String {
    match tier.matrix_unit() {
        Some(unit) => format!("{tier} and {unit}"),
        None => tier.to_string(),
    }
}

/// Tensors of the same role and type: role, type, how many, bytes. The role is the name without the layer's number.
fn by_kind(tensors: &[Tensor]) -> Vec<(String, DType, usize, u64)> {
    let mut kinds: Vec<(String, DType, usize, u64)> = Vec::new();
    for tensor in tensors {
        let parts = tensor.name().split('.').filter(|part| part.parse::<u32>().is_err());
        let parts: Vec<&str> =
            parts.filter(|part| !["blk", "model", "layers", "weight"].contains(part)).collect();
        let (kind, dtype) = (parts.join("."), tensor.dtype());
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

/// Slots of the same shape and kind, as cells, and how many layers have one.
fn by_slot(slots: &Slots, kernels: &[SlotKernels]) -> Vec<(Vec<String>, usize)> {
    let mut kinds: Vec<(Vec<String>, usize)> = Vec::new();
    for (index, slot) in slots.iter() {
        let window = |window: Option<usize>| window.map_or("all".into(), |window| window.to_string());
        let mut cells = match slot.kind {
            SlotKind::KeysValues(shape) => {
                let channels = format!("{} + {}", shape.key_dim, shape.value_dim);
                vec![shape.kv_heads.to_string(), channels, window(shape.window)]
            }
            SlotKind::Latent(shape) => {
                let channels = format!("{} + {} latent", shape.rope_dim, shape.latent_dim);
                vec![shape.kv_heads.to_string(), channels, window(shape.window)]
            }
            SlotKind::View(_) => vec!["-".into(), "those of an earlier layer".into(), "-".into()],
            SlotKind::Recurrent(shape) => vec!["-".into(), format!("state of {}", shape.state), "-".into()],
        };
        match kernels.iter().find(|kernels| kernels.slot == index) {
            Some(SlotKernels { bits, kernels, .. }) => {
                cells.push(format!("{} + {}", bits[0], bits[1]));
                cells.push(format!("scores {}, sums {}", kernels[0], kernels[1]));
            }
            None => cells.extend(["-".to_owned(), "-".to_owned()]),
        }
        match kinds.iter_mut().find(|(known, _)| *known == cells) {
            Some((_, count)) => *count += 1,
            None => kinds.push((cells, 1)),
        }
    }
    kinds
}
