//! A small HTTP server on the loopback interface that answers, cuts and stalls as a test tells it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// N of `Range: bytes=N-`.
    pub fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What to answer.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Fall silent instead of closing it.
    pub stall: bool,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    /// All of `body`, or the part that the request's range asks for.
    pub fn ranged(request: &Request, body: &[u8]) -> Self {
        match request.range() {
            None => Self::ok(body),
            Some(from) if from < body.len() => Self::status(206)
                .with("Content-Range", &format!("bytes {from}-{}/{}", body.len() - 1, body.len()))
                .body(&body[from..]),
            Some(_) => Self::status(416),
        }
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302).with("Location", to)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }

    pub fn stall(mut self, after: usize) -> Self {
        self.stall = true;
        self.cut(after)
    }
}

/// The running server; it ends with this value.
pub struct Double {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Double {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped, answer) = (requests.clone(), stop.clone(), Arc::new(answer));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, stopped, answer) = (seen.clone(), stopped.clone(), answer.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &*answer, &seen, &stopped));
            }
        });
        Self { address, requests, stop, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept loop.
        drop(TcpStream::connect(&self.address));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(
    stream: TcpStream,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
    seen: &Mutex<Vec<Request>>,
    stopped: &AtomicBool,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let Some(path) = line.split(' ').nth(1).map(str::to_owned) else { return };
    let mut headers = Vec::new();
    for line in reader.by_ref().lines() {
        let line = line.unwrap();
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let request = Request { path, headers };
    let reply = answer(&request);
    seen.lock().unwrap().push(request);
    send(stream, &reply, stopped);
}

/// Writes the reply; the client may be gone at any moment, which is its right.
fn send(mut stream: TcpStream, reply: &Reply, stopped: &AtomicBool) {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let sent = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent)).is_err() {
        return;
    }
    while reply.stall && !stopped.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
}
