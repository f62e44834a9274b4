//! `kvant bench`: how fast a model reads prompts and generates, at chosen depths of context.

mod server;
mod speculation;
mod summary;
pub mod wire;

use crate::failure::Failure;
use crate::open;
use crate::options::{Caches, Layers, RopeFlags, Tokens, Weights};
use crate::progress;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use clap::builder::PossibleValuesParser;
use kvant_codec::Tier;
use kvant_engine::device::DeviceModel;
use kvant_engine::open::Plans;
use kvant_engine::{DeviceChoice, LoadOptions, OpenOptions, SparseV, Speculate, StateType};
use kvant_eval::Machine;
use kvant_eval::speed::{self, Plan, SpeedRow, Stage, Step};
use kvant_threads::{MAX_THREADS, Pool};
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant bench model.gguf
  kvant bench model.gguf -p 0 -d 0,32768 --fill
      generation only, at a depth filled with copies
  kvant bench --server http://127.0.0.1:8080
      a running server, with many clients at once
  kvant bench model.gguf --speculate
      with and without speculative decoding
  kvant bench model.gguf --summary
      a row for each precision of the weights, to compare machines by
  kvant bench model.gguf --threads 1,2 --json | jq '[.test, .kv, .tok_s_best]'

pp reads a prompt of -p tokens. tg generates -n tokens one by one. Both run at
every depth: after that many tokens of context. Configurations take turns; best
and median are over the repetitions.";

/// Caches compared when none are named.
const DEFAULT_KV: &str = "f16,int4";

/// Arguments of `kvant bench`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// A model file or folder, or the name of a model in the cache
    #[arg(required_unless_present = "server")]
    model: Option<String>,

    /// Measure a running `kvant serve` at http://HOST:PORT instead: many clients at once,
    /// cached prompts, and other answers while a long prompt is read
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "prompt", "generate", "depth", "kv", "sparse_v", "state",
          "weights", "device", "threads", "repetitions", "fill", "paced"])]
    server: Option<String>,

    /// The server's API key
    #[arg(long, value_name = "KEY", requires = "server")]
    api_key: Option<String>,

    /// Tokens in the prompt; 0 to skip prompts [default: 512; with --summary 1024]
    #[arg(short, long, value_name = "N")]
    prompt: Option<usize>,

    /// Tokens to generate; 0 to skip generation [default: 64; with --summary 100]
    #[arg(short = 'n', long, value_name = "N")]
    generate: Option<usize>,

    /// Tokens of context before the prompt or generation
    #[arg(short, long, value_name = "TOKENS,…", value_delimiter = ',', default_values = ["0", "2048", "7000"],
          value_parser = Tokens::or_none)]
    depth: Vec<usize>,

    /// KV caches to compare: specs, auto, or plans (FILE.kvplan) [default: f16,int4; with
    /// --summary int4]
    #[arg(long, value_name = "SPEC,…")]
    kv: Option<Caches>,

    /// Compute device: cpu, gpu (Metal, Vulkan or DirectX 12), cuda or cuda:N (NVIDIA), or
    /// auto: a GPU that can run the model
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,

    /// Layers on the GPU, from the first on (-ngl); the rest run on the CPU
    #[arg(long, value_name = "N", alias = "n-gpu-layers", allow_hyphen_values = true)]
    gpu_layers: Option<Layers>,

    /// Skip the values of pages whose attention weights are all below TAU times the largest,
    /// above 0 and below 1, in every cache
    #[arg(long, value_name = "TAU")]
    sparse_v: Option<SparseV>,

    /// Quantize weights that the file stores as plain numbers
    #[arg(long, value_name = "TYPE")]
    weights: Option<Weights>,

    /// Type of recurrent state: f32, bf16 or int8; narrower types are smaller and less exact
    /// [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

    /// Number of threads [default: one for each processor]
    #[arg(short, long, value_name = "N,…", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS as i64))]
    threads: Vec<u16>,

    /// Runs of each configuration
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    repetitions: usize,

    /// Measure speculative decoding: the same texts with and without it, in turns. rewrite is a
    /// file with a small change, json a list of tool calls in a schema, chat an open answer,
    /// batch eight texts at once [default: all]
    #[arg(long, value_name = "TEXT,…", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = speculation::ALL, value_parser = PossibleValuesParser::new(speculation::NAMES),
          conflicts_with_all = ["server", "prompt", "generate", "depth", "kv", "fill", "paced"])]
    speculate: Option<Vec<String>>,

    /// Draft model for --speculate
    #[arg(long, value_name = "FILE", requires = "speculate")]
    draft: Option<PathBuf>,

    /// What phones and small computers are compared by, a row for each precision of the weights
    /// (as stored, int8 and int4; files of quantized weights have one): tokens a second of the
    /// prompt and of the answer after it, the time to its first token, and memory
    #[arg(long, conflicts_with_all = ["server", "depth", "fill", "paced", "speculate"])]
    summary: bool,

    /// Fill the context with copies of a short text instead of reading a long one; measures
    /// generation only
    #[arg(long)]
    fill: bool,

    /// Before every step, print it as a JSON object and wait for a line on stdin, so that
    /// another program can take turns
    #[arg(long, requires = "json")]
    paced: bool,

    #[command(flatten)]
    rope: RopeFlags,

    /// Print one JSON object per row
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Measures and prints a table.
    pub fn execute(self) -> Result<(), Failure> {
        if let Some(url) = &self.server {
            return server::run(&wire::Site::new(url, self.api_key)?, self.json);
        }
        Tier::select()?;
        let path = self.model.unwrap_or_default();
        let checkpoint = self.rope.open(open::find(&path)?)?;
        if let Some(texts) = &self.speculate {
            let options = OpenOptions {
                device: self.device,
                gpu_layers: self.gpu_layers.and_then(|layers| layers.0),
                weights: self.weights.map(Weights::dtype),
                threads: self.threads.first().map(|&threads| threads.into()),
                sparse_v: self.sparse_v,
                state: self.state,
                speculate: self.draft.map(Speculate::Draft),
                ..OpenOptions::default()
            };
            let opened = options.open_checkpoint(checkpoint).map_err(|error| open::failure(&error))?;
            return speculation::run(&opened, &path, texts, self.repetitions, self.json);
        }
        if self.summary {
            let asked = summary::Asked {
                path: &path,
                prompt: self.prompt.unwrap_or(summary::PROMPT),
                generate: self.generate.unwrap_or(summary::GENERATE),
                kv: self.kv.map_or_else(|| caches(summary::KV), Ok)?,
                weights: self.weights,
                device: self.device,
                sparse_v: self.sparse_v,
                state: self.state,
                threads: self.threads.first().map(|&threads| threads.into()),
                repetitions: self.repetitions,
                is_json: self.json,
            };
            return summary::run(&checkpoint, &asked);
        }
        let all = Pool::default();
        let options = LoadOptions { weights: self.weights.map(Weights::dtype), ..LoadOptions::default() };
        let placed = all
            .install(|| {
                DeviceModel::load_layers(
                    self.device,
                    self.gpu_layers.and_then(|layers| layers.0),
                    &checkpoint,
                    options,
                )
            })
            .map_err(|error| open::failure(&error))?;
        let model = &placed.model;
        let threads = match self.threads.as_slice() {
            [] => vec![all.threads()],
            asked => asked.iter().map(|&threads| threads.into()).collect(),
        };
        let plan = Plan {
            prefill: self.prompt.unwrap_or(512),
            decode: self.generate.unwrap_or(64),
            depths: self.depth,
            kv: self.kv.map_or_else(|| caches(DEFAULT_KV), Ok)?.policies(
                self.sparse_v,
                self.state,
                &Plans::new(&checkpoint),
                model.description(),
            )?,
            threads,
            repetitions: self.repetitions,
            fill: self.fill,
        };
        for policy in &plan.kv {
            placed.check(policy).map_err(|error| open::failure(&error))?;
        }
        let bar = progress::bar("{bar:30} {pos}/{len}  {msg}");
        let timings = speed::measure(model, &plan, &mut |stage| {
            bar.set_length(stage.total as u64);
            bar.set_position(stage.done as u64);
            bar.set_message(stage.now.to_string());
            if self.paced {
                wait_for_turn(&stage);
            }
        });
        bar.finish_and_clear();

        let (machine, version) = (Machine::this(), env!("CARGO_PKG_VERSION"));
        let name = (path.as_str(), model.description().architecture);
        let timings = timings?;
        let row = |timing| SpeedRow {
            device: placed.name().to_owned(),
            ..SpeedRow::new(timing, plan.fill, name, version, &machine)
        };
        let rows: Vec<SpeedRow> = timings.iter().map(row).collect();
        let mut out = crate::shown::stdout();
        if self.json {
            for row in &rows {
                serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
                writeln!(out)?;
            }
        } else {
            write_table(&mut out, &rows)?;
            writeln!(out, "\n{} ({}), {}, best and median", name.0, name.1, runs_each(plan.repetitions))?;
            let place = placed.device.as_ref().map_or(String::new(), |device| format!("{}; ", device.name()));
            writeln!(out, "{place}{} with {} cores, kvant {version}", machine.cpu, machine.cores)?;
        }
        Ok(())
    }
}

/// Caches by a name of our own.
fn caches(text: &str) -> Result<Caches, Failure> {
    text.parse().map_err(|error: String| Failure::new(error))
}

/// How often each configuration ran, in words.
fn runs_each(repetitions: usize) -> String {
    if repetitions == 1 { "1 run each".to_owned() } else { format!("{repetitions} runs each") }
}

/// Says what comes next and waits for a line. Whoever closes the pipes no longer takes turns, and that is fine.
fn wait_for_turn(Stage { done, total, now }: &Stage) {
    let timed = matches!(now, Step::Run(_));
    let announced = json!({"next": now.to_string(), "timed": timed, "done": done, "total": total});
    let mut out = crate::shown::stdout();
    if writeln!(out, "{announced}").and_then(|()| out.flush()).is_ok() {
        let _ = io::stdin().read_line(&mut String::new());
    }
}

fn write_table(out: &mut dyn Write, rows: &[SpeedRow]) -> io::Result<()> {
    let mut table = Table::new(&[
        Left("test"),
        Right("depth"),
        Right("threads"),
        Left("kv"),
        Right("tok/s"),
        Right("median"),
        Right("ms/token"),
        Right("median"),
    ]);
    for row in rows {
        table.row([
            format!("{}{}", row.test, row.tokens),
            row.depth.to_string(),
            row.threads.to_string(),
            row.kv.clone(),
            format!("{:.1}", row.tok_s_best),
            format!("{:.1}", row.tok_s_median),
            format!("{:.3}", row.ms_best),
            format!("{:.3}", row.ms_median),
        ]);
    }
    table.write(out, 0)
}
