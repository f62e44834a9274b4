//! Just enough HTTP to ask a server on a plain connection.

use crate::failure::Failure;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A server.
pub struct Site {
    /// Host and port.
    address: String,
    key: Option<String>,
}

impl Site {
    /// The server at `http://host:port`.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, Failure> {
        let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let Some(host) = rest.filter(|host| !host.is_empty() && !host.contains('/')) else {
            let message = format!("--server {url}: give its address as http://HOST:PORT");
            return Err(Failure::Usage(message));
        };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        Ok(Self { address, key })
    }

    /// Sends a request, and returns the answer's body once its head is there.
    fn ask(&self, path: &str, body: Option<&Value>) -> Result<BufReader<TcpStream>, Failure> {
        let failed =
            |e: std::io::Error| Failure::new(format!("{}: {e}; is the server running?", self.address));
        let mut stream = TcpStream::connect(&self.address).map_err(failed)?;
        let key = self.key.iter().map(|key| format!("Authorization: Bearer {key}\r\n")).collect::<String>();
        let (method, body) = body.map_or(("GET", String::new()), |body| ("POST", body.to_string()));
        // In the older version an answer ends with its connection, and is not cut into chunks.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).map_err(failed)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).map_err(failed)?;
        let is_well = line.split(' ').nth(1) == Some("200");
        while reader.read_line(&mut line).map_err(failed)? > 2 {}
        if is_well {
            return Ok(reader);
        }
        let mut said = String::new();
        reader.read_to_string(&mut said).map_err(failed)?;
        let status = line.lines().next().unwrap_or_default();
        Err(Failure::new(format!("{}{path}: {status}: {said}", self.address)))
    }

    /// An answer as a whole.
    pub fn json(&self, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let mut text = String::new();
        self.ask(path, body)?.read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(|e| Failure::new(format!("{}{path}: {e}", self.address)))
    }

    /// When the request was sent, and when each piece of its answer came.
    pub fn stream(&self, path: &str, body: &Value) -> Result<(Instant, Vec<Instant>), Failure> {
        let sent = Instant::now();
        let mut came = Vec::new();
        for line in self.ask(path, Some(body))?.lines() {
            if line?.starts_with("data: {") {
                came.push(Instant::now());
            }
        }
        Ok((sent, came))
    }
}

#[cfg(test)]
mod tests {
    use super::Site;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let address = |url: &str| Site::new(url, None).ok().map(|site| site.address);
        assert_eq!(address("http://localhost:8080").as_deref(), Some("localhost:8080"));
        assert_eq!(address("http://localhost:8080/").as_deref(), Some("localhost:8080"));
        assert_eq!(address("http://example.org").as_deref(), Some("example.org:80"));
        for url in ["localhost:8080", "https://example.org", "http://", "http://a/v1"] {
            assert_eq!(address(url), None, "{url}");
        }
    }
}
