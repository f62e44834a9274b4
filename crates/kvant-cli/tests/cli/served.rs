//! `kvant serve`, running.

use crate::home::Home;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A server that is ended with the test.
pub struct Served {
    pub child: Child,
    pub address: String,
}

impl Served {
    /// Serves a model with these arguments, on any port, with a seed for requests that name none.
    pub fn start(home: &Home, model: &str, arguments: &[&str]) -> Self {
        let mut command =
            home.command(&[&["serve", model, "--port", "0", "--seed", "1"], arguments].concat());
        command.env_remove("KVANT_API_KEY").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_default().to_owned();
        Self { child, address }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
