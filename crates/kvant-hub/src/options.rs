//! Where to look for models, how long to keep trying, and who is told.

use crate::error::Result;
use crate::place::cache_folder;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// What is going on, for a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Bytes of a file that are here, and of how many when that is known.
    File {
        /// File name.
        name: &'a str,
        /// Bytes here.
        done: u64,
        /// Bytes in all.
        total: Option<u64>,
    },
    /// Something worth a line: another source, a connection picked up again.
    Note(&'a str),
}

/// Receives progress.
pub type Report<'r> = dyn FnMut(Progress<'_>) + 'r;

/// How long to keep trying.
#[derive(Debug, Clone)]
pub struct Patience {
    /// Attempts in a row that bring nothing before giving up.
    pub attempts: u32,
    /// Pause before the next attempt, times the number of failures so far.
    pub pause: Duration,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest silence on an open connection.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 5,
            pause: Duration::from_secs(1),
            connect: Duration::from_secs(15),
            silence: Duration::from_secs(60),
        }
    }
}

/// Where to look and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Cache folder; models go into `models` below it.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token, sent to the hub's own host only.
    pub token: Option<String>,
    /// The Python interpreter that has pip.
    pub python: OsString,
    /// PEM file of trusted roots, in place of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Time limits.
    pub timeout: Patience,
}

impl Options {
    /// The defaults, with `KVANT_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `SSL_CERT_FILE` from the environment.
    pub fn from_env() -> Result<Self> {
        let set =
            |name: &str| std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        Ok(Self {
            cache: cache_folder()?,
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: set("HF_TOKEN"),
            python: "python3".into(),
            certificates: set("SSL_CERT_FILE").map(PathBuf::from),
            timeout: Patience::default(),
        })
    }
}
