//! The program, and a folder for it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A folder of its own for cache, models and configuration.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// With a configuration that says which seed samplers get where no flag does: no test is to pass by chance.
    pub fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        home.write("config.toml", b"seed = 1\n");
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name).display().to_string()
    }

    /// The program with these arguments, away from the network, the user's own models and the machine's GPUs.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvant"));
        command.args(arguments).stdin(Stdio::null());
        command.env("KVANT_CACHE", self.path("cache")).env("HF_ENDPOINT", "http://127.0.0.1:9");
        command.env("KVANT_CONFIG", self.path("config.toml")).env_remove("KVANT_MODEL");
        command.env("KVANT_DEVICE", "cpu");
        command.env_remove("HF_TOKEN").env_remove("KVANT_SIMD").current_dir(self.folder.path());
        command
    }
}
