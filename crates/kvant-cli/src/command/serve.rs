//! `kvant serve`: answers for programs, over HTTP.

use crate::failure::Failure;
use crate::open;
use crate::options::{ModelOptions, Size};
use clap::Args;
use kvant_engine::memory::bytes;
use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
use kvant_engine::{DiskTier, KvCache, Opened, numerics};
use kvant_server::{Keys, Limits, Server, ServerOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const EXAMPLES: &str = "\
Examples:
  kvant serve                              the default model, for this machine, on port 8080
  kvant serve model.gguf --port 9000 --parallel 8 --kv-memory 4G
  kvant serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  kvant serve model.gguf --kv-dir ~/prefixes --kv-dir-size 20G

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

The address is printed to stdout once clients can connect. Ctrl-C lets answers under way end; pressed twice, it ends them.
Files in --kv-dir hold what was said to the model and what it answered, readable by this user alone; they may be deleted while no
server runs. Keys may also be in the environment: KVANT_API_KEY, several with commas between them.";

/// The variable that holds keys.
const KEYS_VARIABLE: &str = "KVANT_API_KEY";

/// Arguments of `kvant serve`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// The model; the same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    served: Option<String>,

    #[command(flatten)]
    model: ModelOptions,

    /// Where to listen; anything but this machine's own address lets others in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Server")]
    host: String,

    /// The port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080, help_heading = "Server")]
    port: u16,

    /// What clients call the model [default: its name, or that of its file]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    alias: Option<String>,

    /// A key that clients must send; may be given several times
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    api_key: Vec<String>,

    /// A file of such keys, one to a line
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,

    /// Lets web pages of this origin use the server, such as `https://chat.example`; * for all
    #[arg(long, value_name = "ORIGIN", help_heading = "Server")]
    cors: Option<String>,

    /// The most answers to work on at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Server")]
    parallel: u16,

    /// The most answers that wait for their turn; more are refused
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Server")]
    queue: u16,

    /// Forget prompts and answers at once, in place of keeping them for prompts that begin alike
    #[arg(long, help_heading = "Server")]
    no_prefix_cache: bool,

    /// Keep prefixes in this folder too, which must exist, so that a server started later finds them
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_cache", help_heading = "Server")]
    kv_dir: Option<PathBuf>,

    /// The most bytes that the files in --kv-dir may have; the least recently used go first
    #[arg(long, value_name = "SIZE", default_value = "4G", requires = "kv_dir", help_heading = "Server")]
    kv_dir_size: Size,

    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "8M", help_heading = "Server")]
    max_body: Size,

    /// The most connections at a time; more wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Server")]
    connections: u16,

    /// The most seconds that an answer may take [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", help_heading = "Server")]
    timeout: Option<u64>,

    /// The most seconds that answers under way get when the server is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Server")]
    grace: u64,
}

impl Serve {
    pub fn execute(mut self) -> Result<(), Failure> {
        if let Some(served) = self.served.take() {
            self.model.model = served;
        }
        if self.model.window().is_some() {
            let message = "--window: a server's sequences have an end; use --ctx";
            return Err(Failure::Usage(message.into()));
        }
        let keys = self.keys()?;
        let ends = signals()?;
        let opened = open::open(&self.model)?;
        let empty = opened.shared_cache()?;
        let (spec, cap) = (empty.policy().to_string(), empty.sequence().store().cap());
        let options = self.server_options(&self.model.model, &keys);
        let work = SchedulerOptions {
            most_running: self.parallel.into(),
            most_waiting: self.queue.into(),
            remember: !self.no_prefix_cache,
        };
        let tier = self.kv_dir.as_deref().map(|folder| self.disk(folder, &opened, &empty)).transpose()?;
        let mut scheduler = Scheduler::new(Arc::clone(opened.engine()), empty, work);
        if let Some(tier) = tier {
            scheduler = scheduler.with_disk(tier, |words| eprintln!("warning: {words}"))?;
        }
        let handle = scheduler.handle();
        let (host, port) = (self.host.as_str(), self.port);
        let name = options.model.clone();
        let server = Server::bind((host, port), handle.clone(), options)
            .map_err(|e| Failure::new(format!("cannot listen on {host}, port {port}: {e}")))?;
        let address = server.address()?;
        if keys.is_empty() && !address.ip().is_loopback() {
            eprintln!("note: whoever reaches {address} can use this server; --api-key asks for a key");
        }
        let room = cap.map_or("without a limit".to_owned(), |cap| format!("up to {}", bytes(cap as u64)));
        eprintln!("{name}: contexts of {} tokens, KV {spec} {room}; Ctrl-C ends", handle.context());
        writeln!(std::io::stdout(), "http://{address}")?;
        let compute = move || scheduler.run();
        let worker = std::thread::Builder::new().name("kvant-scheduler".into()).spawn(compute)?;
        server.run(ends)?;
        worker.join().map_err(|_| Failure::new("the scheduler has failed; this is a bug"))
    }

    /// The prefixes in a folder.
    fn disk(&self, folder: &Path, opened: &Opened, empty: &KvCache) -> Result<DiskTier, Failure> {
        let layout = Arc::clone(empty.sequence().layout());
        let (limit, policy) = (self.kv_dir_size.0 as u64, empty.policy().to_string());
        let tier = DiskTier::open(folder, limit, layout, opened.signature()?, numerics(), &policy);
        let tier = tier.map_err(|e| Failure::new(format!("--kv-dir {e}")))?;
        tier.unusable_files().iter().for_each(|words| eprintln!("warning: {words}"));
        if tier.other_numerics() > 0 {
            let count = tier.other_numerics();
            eprintln!(
                "note: {count} files of --kv-dir were computed with other rounding; answers that go on from them may differ in a last bit"
            );
        }
        Ok(tier)
    }

    fn server_options(&self, model: &str, keys: &[String]) -> ServerOptions {
        // A path says where the file is, which is nobody's business.
        let stem = Path::new(model).file_stem().filter(|_| Path::new(model).exists());
        let name = stem.map_or(model.to_owned(), |stem| stem.to_string_lossy().into_owned());
        let limits = Limits {
            body: self.max_body.0,
            connections: self.connections.into(),
            answer: self.timeout.map(Duration::from_secs),
            grace: Duration::from_secs(self.grace),
            ..Limits::default()
        };
        ServerOptions {
            model: self.alias.clone().unwrap_or(name),
            keys: Keys::new(keys),
            cors: self.cors.clone(),
            limits,
        }
    }

    /// All keys, from flags, file and environment.
    fn keys(&self) -> Result<Vec<String>, Failure> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failure::new(format!("{}: cannot read the keys: {e}", path.display())))?;
            let before = keys.len();
            keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
            if keys.len() == before {
                return Err(Failure::new(format!("{}: there are no keys in it", path.display())));
            }
        }
        if let Ok(text) = std::env::var(KEYS_VARIABLE) {
            keys.extend(text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
        }
        if self.api_key.iter().any(|key| key.trim().is_empty()) {
            return Err(Failure::Usage("--api-key: an empty key opens nothing".into()));
        }
        Ok(keys)
    }
}

/// Something comes from it whenever Ctrl-C is pressed, or the program is asked to end.
fn signals() -> Result<UnboundedReceiver<()>, Failure> {
    let (sender, ends) = unbounded_channel();
    let watch = ctrlc::set_handler(move || {
        // A server that has ended needs no more telling.
        let _ = sender.send(());
    });
    watch.map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
    Ok(ends)
}
