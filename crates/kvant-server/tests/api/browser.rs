//! A real browser, told what to do over its debugging protocol.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// How long a test waits for what must come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Chromium with one page.
pub struct Browser {
    process: Child,
    socket: WebSocket<TcpStream>,
    calls: u64,
    /// What the page complained about.
    pub complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Whether there is one: `cargo xtask test` installs it, and says so where it could not.
    pub fn is_here() -> bool {
        let is_missing = std::env::var_os("KVANT_WITHOUT_BROWSER").is_some_and(|value| value == "1");
        if is_missing {
            eprintln!("NOT TESTED: there is no browser here, as cargo xtask says");
        }
        !is_missing
    }

    /// Opens an address.
    pub fn open(address: &str, (width, height): (u32, u32)) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let name = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        let mut process = Command::new(&name)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},{height}"))
            .arg("about:blank")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("{name}: {e}; `cargo xtask test` installs Chromium, and CHROMIUM names another")
            });
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("Chromium says where it listens").unwrap();
            if let Some((_, rest)) = line.split_once("DevTools listening on ws://127.0.0.1:") {
                break rest.split('/').next().unwrap().parse::<u16>().unwrap();
            }
        };
        // What it says from now on is read and dropped, or it would stop when nobody does.
        std::thread::spawn(move || lines.for_each(drop));
        let (socket, _) =
            tungstenite::client(page_of(port), TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap();
        socket.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut browser = Self { process, socket, calls: 0, complaints: Vec::new(), _profile: profile };
        browser.call("Runtime.enable", json!({}));
        browser.call("Log.enable", json!({}));
        browser.call("Page.enable", json!({}));
        browser.call("Page.navigate", json!({"url": address}));
        browser.until("document.readyState === 'complete' && location.href !== 'about:blank'");
        browser
    }

    /// Asks the browser for something, and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let request = json!({"id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(request)).unwrap();
        loop {
            let text = self.socket.read().unwrap().into_text().unwrap();
            let Ok(answer) = serde_json::from_str::<Value>(&text) else { continue };
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            match answer["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.complaints.push(answer["params"].to_string()),
                // A refusal that the page shows is no complaint about the page.
                Some("Log.entryAdded") if answer["params"]["entry"]["source"] != "network" => {
                    self.complaints.push(answer["params"]["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression holds.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let start = Instant::now();
        // A page that is being left answers nothing for a moment.
        let guarded =
            format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        while self.value(&guarded) != true {
            if start.elapsed() > TIMEOUT {
                panic!("{expression} does not hold: {}", self.value("document.body.innerText"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address under which the first page can be told what to do.
fn page_of(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("GET /json/list HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut lines = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    let list: Value = serde_json::from_slice(&body).unwrap();
    let page = list.as_array().unwrap().iter().find(|target| target["type"] == "page").unwrap();
    page["webSocketDebuggerUrl"].as_str().unwrap().to_owned()
}
