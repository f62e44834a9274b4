//! `kvant serve`: answers for programs, over HTTP.

mod loader;
mod several;

use crate::config::{Config, DEFAULT_MODEL};
use crate::failure::Failure;
use crate::options::{ModelOptions, RequestDefaults, Size};
use clap::Args;
use kvant_engine::SamplingOverrides;
use kvant_engine::memory::bytes;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::{Keys, Limits, Server, ServerOptions};
use loader::Loader;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const EXAMPLES: &str = "\
Examples:
  kvant serve                                every pulled model, or the default
                                             one, on port 8080
  kvant serve model.gguf --port 9000 --parallel 8 --kv-memory 4G
  kvant serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  kvant serve small.gguf large.gguf --memory 24G   loaded on demand
  kvant serve ~/models --idle 600                  every model in a folder
  kvant serve model.gguf --kv-dir ~/prefixes --kv-dir-size 20G

  curl http://127.0.0.1:8080/v1/chat/completions -d \\
    '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

The address is printed to stdout once clients can connect. Ctrl-C stops the
server after running requests have finished; a second Ctrl-C stops it at once.
Files in --kv-dir contain prompts and answers. Only this user can read them, and
they may be deleted while no server runs. Keys can also be set in the
environment: KVANT_API_KEY (several separated by commas) and KVANT_ADMIN_KEY.";

/// The variable that holds keys.
const KEYS_VARIABLE: &str = "KVANT_API_KEY";

/// The variable that holds the admin's key.
const ADMIN_VARIABLE: &str = "KVANT_ADMIN_KEY";

/// Arguments of `kvant serve`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// The model, the same as --model; several models, or a folder of models, are loaded on demand
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    served: Vec<String>,

    #[command(flatten)]
    model: ModelOptions,

    /// Address to listen on; any but this machine's own needs a key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Server")]
    host: String,

    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 8080, help_heading = "Server")]
    port: u16,

    /// Maximum memory for several models together, weights and caches; the least recently used model is
    /// unloaded first [default: three quarters of available memory]
    #[arg(long, value_name = "SIZE", help_heading = "Server")]
    memory: Option<Size>,

    /// Unload a model after this many seconds without requests; the next request loads it again
    #[arg(long, value_name = "SECONDS", help_heading = "Server")]
    idle: Option<u64>,

    /// The model's name for clients [default: its short name, or its file's name]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    alias: Option<String>,

    /// API key that clients must send; may be repeated
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    api_key: Vec<String>,

    /// Allow other addresses without a key: anyone who reaches the server can use it
    #[arg(long, help_heading = "Server")]
    insecure: bool,

    /// Key for admin requests: pull, copy and delete models; where there are keys, also unload
    /// models, set keep_alive and read /metrics [default: none; these requests are refused]
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    admin_key: Option<String>,

    /// File with API keys, one per line
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,

    /// Allow web pages of this origin (CORS), such as `https://chat.example`; * for all
    #[arg(long, value_name = "ORIGIN", help_heading = "Server")]
    cors: Option<String>,

    /// Refuse unknown request fields [default: ignore them and list them in the header
    /// x-kvant-ignored-fields]
    #[arg(long, help_heading = "Server")]
    strict: bool,

    /// Refuse requests that name another model [default: the only model answers to every name]
    #[arg(long, help_heading = "Server")]
    strict_model: bool,

    /// Keep prompt lines that agents change with every request, such as the time [default: remove known
    /// ones, so that the prefix cache finds the rest, and list them in the header x-kvant-stripped]
    #[arg(long, help_heading = "Server")]
    keep_volatile: bool,

    #[command(flatten)]
    sampling: RequestDefaults,

    /// Maximum requests processed at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Server")]
    parallel: u16,

    /// Maximum queued requests (429 beyond)
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Server")]
    queue: u16,

    /// Turn the prefix cache off: prompts and answers are forgotten at once
    #[arg(long, help_heading = "Server")]
    no_prefix_cache: bool,

    /// Share the prefix cache among all API keys; cached_tokens then reveals what others have sent
    /// [default: each key has its own]
    #[arg(long, help_heading = "Server")]
    share_prefixes: bool,

    /// Also keep the prefix cache in this folder, so that it survives a restart; the folder is created if
    /// it does not exist, with a subfolder per model if there are several
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_cache", help_heading = "Server")]
    kv_dir: Option<PathBuf>,

    /// Maximum size of --kv-dir, split equally among several models; the least recently used files are
    /// deleted first
    #[arg(long, value_name = "SIZE", default_value = "4G", requires = "kv_dir", help_heading = "Server")]
    kv_dir_size: Size,

    /// Maximum size of a request body
    #[arg(long, value_name = "SIZE", default_value = "8M", help_heading = "Server")]
    max_body: Size,

    /// Maximum connections; beyond that, idle ones are closed, and if none is idle new ones get a 503
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Server")]
    connections: u16,

    /// Maximum seconds for a request, time in the queue included; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 7200, help_heading = "Server")]
    timeout: u64,

    /// Seconds that running requests get to finish when the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Server")]
    grace: u64,
}

impl Serve {
    pub fn execute(mut self) -> Result<(), Failure> {
        let several = self.several()?;
        if let (Some(served), true) = (self.served.first(), several.is_empty()) {
            self.model.model = served.clone();
        }
        self.model.apply(&Config::read()?.preset(self.model.preset.as_deref())?);
        if self.model.has_window() {
            let message = "--window: the server has no streaming attention; use --ctx";
            return Err(Failure::Usage(message.into()));
        }
        if self.model.has_adapters() && !several.is_empty() {
            let message =
                "--lora: an adapter belongs to one model, and several are served; serve that model alone";
            return Err(Failure::Usage(message.into()));
        }
        let keys = self.keys()?;
        self.check_open(&keys)?;
        let ends = signals()?;
        match several.is_empty() {
            true => self.serve_one(&keys, ends),
            false => self.serve_several(several, &keys, ends),
        }
    }

    /// The models, where there are several: those that arguments name, or all that were fetched where nothing names one.
    fn several(&self) -> Result<loader::FoundModels, Failure> {
        let is_bare = self.served.is_empty() && self.alias.is_none() && self.model.model == DEFAULT_MODEL;
        if !is_bare {
            return several::find(&self.served);
        }
        // The default alone is loaded before anybody asks for it.
        let pulled = several::pulled(DEFAULT_MODEL)?;
        Ok(if pulled.iter().all(|(name, _)| name == DEFAULT_MODEL) {
            loader::FoundModels::new()
        } else {
            pulled
        })
    }

    /// Serves a model that is loaded before anybody can ask for it, and again after it was told to go.
    fn serve_one(&self, keys: &[String], ends: UnboundedReceiver<()>) -> Result<(), Failure> {
        let options = self.server_options(&self.model.model, keys, self.sampling.overrides()?);
        let name = options.model.clone();
        let kept = self.kv_dir.as_ref().map(|folder| (folder.clone(), self.kv_dir_size.0 as u64));
        let found = vec![(name.clone(), self.model.model.clone())];
        let loader = Loader::new(found, self.model.clone(), self.scheduler_options(), move |_| kept.clone());
        let opened = loader.open(&name, None)?;
        let room = opened.cap.map_or("without a limit".to_owned(), |cap| format!("up to {}", bytes(cap)));
        let place = if opened.device == "cpu" { String::new() } else { format!("on {}, ", opened.device) };
        let (context, sum) = (opened.context, opened.estimate.sum());
        let about = match &opened.policy {
            Some(policy) => format!("{place}contexts of {context} tokens, KV {policy} {room}; memory: {sum}"),
            None => format!("{place}an encoder of texts of {context} tokens; memory: {sum}"),
        };
        let idle = self.idle.map(Duration::from_secs);
        let address = (self.host.as_str(), self.port);
        let server = Server::bind_on_demand(address, Arc::new(loader), None, idle, options);
        let server = server.map_err(|e| self.cannot_listen(&e))?.with_loaded(&name, opened.start()?);
        let address = server.address()?;
        warn_if_open(keys, address);
        eprintln!("{name}: {about}; press Ctrl-C to stop");
        writeln!(crate::shown::stdout(), "http://{address}")?;
        Ok(server.run(ends)?)
    }

    fn cannot_listen(&self, error: &std::io::Error) -> Failure {
        Failure::new(format!("cannot listen on {}, port {}: {error}", self.host, self.port))
    }

    fn scheduler_options(&self) -> SchedulerOptions {
        SchedulerOptions {
            most_running: self.parallel.into(),
            most_waiting: self.queue.into(),
            remember: !self.no_prefix_cache,
        }
    }

    fn server_options(&self, model: &str, keys: &[String], forced: SamplingOverrides) -> ServerOptions {
        let name = public_name(model);
        let limits = Limits {
            body: self.max_body.0,
            connections: self.connections.into(),
            answer: (self.timeout > 0).then(|| Duration::from_secs(self.timeout)),
            grace: Duration::from_secs(self.grace),
            ..Limits::default()
        };
        ServerOptions {
            keys: match self.admin() {
                Some(admin) => Keys::new(keys).with_admin(&admin),
                None => Keys::new(keys),
            },
            insecure: self.insecure,
            share_prefixes: self.share_prefixes,
            cors: self.cors.clone(),
            limits,
            strict: self.strict,
            strict_model: self.strict_model,
            strip_volatile: !self.keep_volatile,
            forced_sampling: forced,
            ..ServerOptions::new(self.alias.clone().unwrap_or(name))
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
                return Err(Failure::new(format!("{}: contains no keys", path.display())));
            }
        }
        if let Ok(text) = std::env::var(KEYS_VARIABLE) {
            keys.extend(text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
        }
        if self.api_key.iter().any(|key| key.trim().is_empty()) {
            return Err(Failure::Usage("--api-key: the key is empty".into()));
        }
        if self.admin_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
            return Err(Failure::Usage("--admin-key: the key is empty".into()));
        }
        Ok(keys)
    }

    /// The admin's key, from its flag or the environment.
    fn admin(&self) -> Option<String> {
        let variable = || std::env::var(ADMIN_VARIABLE).ok().filter(|key| !key.trim().is_empty());
        self.admin_key.clone().or_else(variable)
    }

    /// Refuses to let everybody in by mistake, before a model is loaded.
    fn check_open(&self, keys: &[String]) -> Result<(), Failure> {
        let addresses =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(|e| self.cannot_listen(&e))?;
        let is_local = addresses.into_iter().all(|address| address.ip().is_loopback());
        if is_local || !keys.is_empty() || self.insecure {
            return Ok(());
        }
        let message = format!(
            "--host {}: other machines can reach this address without a key; set one with --api-key, or allow it with --insecure",
            self.host
        );
        Err(Failure::Usage(message))
    }
}

/// What clients call a model. A path says where the file is, which is nobody's business.
fn public_name(model: &str) -> String {
    let stem = Path::new(model).file_stem().filter(|_| Path::new(model).exists());
    stem.map_or(model.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn warn_if_open(keys: &[String], address: SocketAddr) {
    if keys.is_empty() && !address.ip().is_loopback() {
        eprintln!("note: anyone who can reach {address} can use this server; --api-key sets a key");
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
