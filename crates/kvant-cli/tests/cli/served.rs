//! `kvant serve` in a process of its own.

use crate::support::Home;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

/// A server that is ended with the test.
pub struct Served {
    child: Child,
    pub address: String,
}

impl Served {
    pub fn start(home: &Home, arguments: &[&str]) -> Self {
        let model = home.model();
        let mut command = home.command(&[&["serve", &model, "--port", "0"], arguments].concat());
        command.env_remove("KVANT_API_KEY").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_default().to_owned();
        Self { child, address }
    }

    pub fn post(&self, path: &str, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{head}\r\n{body}",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks it to end, waits until it has, and returns what it said.
    #[cfg(unix)]
    pub fn end(&mut self) -> String {
        let id = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.said()
    }

    /// Ends it at once, as `kill -9` does, and returns what it said.
    pub fn kill(&mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said()
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
