//! A small web site that runs a script with a package in a browser, and hears what came of it.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long a browser may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The site, as long as the test runs.
pub struct Site {
    port: u16,
    results: Receiver<String>,
}

struct Files {
    packages: PathBuf,
    script: PathBuf,
    page: String,
}

impl Site {
    /// A page that imports the script and has it check the server at `base`.
    pub fn start(packages: &Path, script: &Path, base: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = Files { packages: packages.into(), script: script.into(), page: page(packages, base) };
        let (sender, results) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A browser that goes away in the middle is no reason to stop.
                let _ = answer(stream, &files, &sender);
            }
        });
        Self { port, results }
    }

    pub fn address(&self) -> String {
        // Another name than the server's: another origin, whatever the port.
        format!("http://localhost:{}/", self.port)
    }

    /// What the page came to.
    pub fn result(&self) -> String {
        self.results.recv_timeout(TIMEOUT).expect("the page tells what it came to")
    }
}

/// The page: browsers find packages by a map, which node's own names in `package.json` are put into.
fn page(packages: &Path, base: &str) -> String {
    let text = std::fs::read_to_string(packages.join("openai/package.json")).unwrap();
    let package: Value = serde_json::from_str(&text).unwrap();
    let mut imports = json!({"openai": "/node_modules/openai/index.mjs"});
    for (name, places) in package["imports"].as_object().into_iter().flatten() {
        let place = places["browser"]["import"]
            .as_str()
            .or(places["browser"].as_str())
            .or(places["default"].as_str());
        if let Some(place) = place {
            imports[name] = format!("/node_modules/openai/{}", place.trim_start_matches("./")).into();
        }
    }
    let map = json!({"imports": imports});
    format!(
        "<!doctype html><script type=\"importmap\">{map}</script><script type=\"module\">\
         const tell = (words) => fetch('/result', {{method: 'POST', body: words}});\
         try {{ const {{check}} = await import('/openai.mjs');\
         await tell(`${{await check({base:?}, {{dangerouslyAllowBrowser: true}})}} checks passed`); }}\
         catch (error) {{ await tell(`${{error}} ${{error.cause ?? ''}}`); }}</script>"
    )
}

fn answer(stream: TcpStream, files: &Files, results: &Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = first.split(' ').nth(1).unwrap_or("/");
    let (kind, bytes) = match path {
        "/" => ("text/html", files.page.clone().into_bytes()),
        "/openai.mjs" => ("text/javascript", std::fs::read(&files.script)?),
        "/result" => {
            // The test may be over.
            let _ = results.send(String::from_utf8_lossy(&body).into_owned());
            ("text/plain", Vec::new())
        }
        path => {
            let file = path.strip_prefix("/node_modules/").filter(|path| !path.contains(".."));
            let bytes = file.and_then(|file| std::fs::read(files.packages.join(file)).ok());
            match bytes {
                Some(bytes) => ("text/javascript", bytes),
                None => ("text/plain", format!("there is no {path}").into_bytes()),
            }
        }
    };
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        bytes.len()
    )?;
    stream.write_all(&bytes)
}
