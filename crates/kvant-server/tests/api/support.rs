//! A server of its own for each test, and a client that sends what it is told.

use kvant_engine::LoadOptions;
use kvant_engine::scheduler::{Handle, Scheduler, SchedulerOptions};
use kvant_engine::{Arena, DiskTier, Engine, KvCache, Policy};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_server::{Server, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tracing_subscriber::filter::LevelFilter;

pub const MODEL: &str = "tiny";

/// How long a test waits for what must come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running server. It ends with the test.
pub struct Running {
    pub address: SocketAddr,
    pub handle: OwnHandle,
    end: Option<UnboundedSender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// The usual ones, with a seed for requests that name none: no test is to pass by chance.
pub fn options() -> ServerOptions {
    let mut forced_sampling = kvant_engine::SamplingOverrides::default();
    forced_sampling.set("seed", "1").unwrap();
    ServerOptions { forced_sampling, ..ServerOptions::new(MODEL) }
}

pub fn usual() -> Running {
    start(options(), SchedulerOptions::default())
}

/// A server that refuses what it does not know.
pub fn strict() -> Running {
    start(ServerOptions { strict: true, strict_model: true, ..options() }, SchedulerOptions::default())
}

/// A model whose context is long enough for conversations.
pub fn long_model(template: Option<&str>) -> Vec<u8> {
    const KEY: &[u8] = b"qwen2.context_length";
    let mut model = crate::tiny::model_with(template);
    let key = model.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap();
    // After the key comes the type of its value, in four bytes.
    let value = key + KEY.len() + 4;
    model[value..value + 4].copy_from_slice(&16_384u32.to_le_bytes());
    model
}

pub fn start(options: ServerOptions, work: SchedulerOptions) -> Running {
    serve(crate::tiny::model_bytes(true), options, work)
}

/// A server for a model of one's own.
pub fn serve(model: Vec<u8>, options: ServerOptions, work: SchedulerOptions) -> Running {
    serve_within(model, options, work, Arena::new(), None)
}

/// The same with pages from this arena, and with prefixes in a folder. Nothing may go wrong with its files.
pub fn serve_within(
    model: Vec<u8>,
    options: ServerOptions,
    work: SchedulerOptions,
    arena: Arena,
    folder: Option<&Path>,
) -> Running {
    let file = Gguf::from_bytes(model).unwrap();
    let engine = Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap();
    serve_engine(engine, options, work, arena, folder)
}

/// The same for an engine of one's own.
pub fn serve_engine(
    engine: Engine,
    options: ServerOptions,
    work: SchedulerOptions,
    arena: Arena,
    folder: Option<&Path>,
) -> Running {
    let engine = Arc::new(engine);
    let policy: Policy = "int4".parse().unwrap();
    let context = engine.model().context().unwrap() - 32;
    let empty = KvCache::in_arena(policy, engine.model().slots(), context, arena).unwrap();
    let layout = Arc::clone(empty.sequence().layout());
    let mut scheduler = Scheduler::new(engine, empty, work);
    if let Some(folder) = folder {
        let tier = DiskTier::open(folder, 64 << 20, layout, [7; 32], [1; 32], "int4").unwrap();
        let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN);
        let log = log.with_writer(|| -> std::io::Stderr { panic!("a warning about prefixes on disk") });
        scheduler = tracing::subscriber::with_default(log.finish(), || scheduler.with_disk(tier)).unwrap();
    }
    let handle = scheduler.handle();
    let server = Server::bind("127.0.0.1:0", handle.clone(), options).unwrap();
    let address = server.address().unwrap();
    let (end, ends) = unbounded_channel();
    let threads = vec![
        std::thread::spawn(move || scheduler.run()),
        std::thread::spawn(move || server.run(ends).unwrap()),
    ];
    Running { address, handle: OwnHandle(Some(handle)), end: Some(end), threads }
}

/// The handle of a server's scheduler. One whose models come and go has none.
pub struct OwnHandle(Option<Handle>);

impl std::ops::Deref for OwnHandle {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        self.0.as_ref().expect("a server of one model")
    }
}

impl Running {
    /// A server whose models come and go.
    pub fn of(address: SocketAddr, end: UnboundedSender<()>, threads: Vec<JoinHandle<()>>) -> Self {
        Self { address, handle: OwnHandle(None), end: Some(end), threads }
    }

    /// Tells it to end.
    pub fn end(&self) {
        self.end.as_ref().unwrap().send(()).unwrap();
    }

    /// Waits for its end.
    pub fn join(&mut self) {
        self.end = None;
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends bytes and reads all that comes back.
    pub fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that refuses a request need not take all of it.
        let _ = stream.write_all(request);
        Answer::read(&mut stream)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.raw(&request(path, body, ""))
    }

    /// An answer that must be one.
    #[track_caller]
    pub fn ask(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// The pieces of a stream, which must end as it should.
    #[track_caller]
    pub fn stream(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.head.contains("text/event-stream"), "{}", answer.head);
        let mut events: Vec<&str> = answer.body.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let piece = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(piece).collect()
    }

    /// The events of a stream that names them, with their data.
    #[track_caller]
    pub fn events(&self, path: &str, mut body: Value) -> Vec<(String, Value)> {
        body["stream"] = json!(true);
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let event = |text: &str| {
            let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            (name.to_owned(), serde_json::from_str(data).unwrap())
        };
        answer.body.split("\n\n").filter(|event| !event.is_empty()).map(event).collect()
    }

    /// Waits until `reached` holds of the counters.
    #[track_caller]
    pub fn wait_until(&self, reached: impl Fn(&kvant_engine::scheduler::Counters) -> bool) {
        let start = std::time::Instant::now();
        while !reached(&self.handle.counters()) {
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.handle.counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}

/// A request as bytes, with more lines in its head.
pub fn request(path: &str, body: &Value, head: &str) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{head}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Everything until the connection ends.
    pub fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A server that refuses what is still being sent may reset the connection; what came before that counts.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Asserts an error in OpenAI's shape whose message has these words.
    #[track_caller]
    pub fn fails(&self, status: u16, words: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(words), "{words:?} is not in {error}");
        let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        error
    }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}
