//! Any request of any route: an answer that is not a 500, from a server that answers the next one too.
#![no_main]

use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
use kvant_engine::{Arena, Engine, KvCache, LoadOptions, Policy};
use kvant_fuzz::{Numbers, model, spoil};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_server::{Server, ServerOptions};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};

static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(model()).expect("a file"));
    let engine = Arc::new(Engine::load(&checkpoint, LoadOptions::default()).expect("an engine"));
    let policy: Policy = "int4".parse().expect("a policy");
    let empty =
        KvCache::in_arena(policy, engine.model().slots(), 224, Arena::with_cap(8 << 20)).expect("a cache");
    let scheduler = Scheduler::new(engine, empty, SchedulerOptions::default());
    let options = ServerOptions::new("tiny");
    let server = Server::bind("127.0.0.1:0", scheduler.handle(), options).expect("a server");
    let address = server.address().expect("an address");
    std::thread::spawn(move || scheduler.run());
    std::thread::spawn(move || {
        let (_sender, ends) = tokio::sync::mpsc::unbounded_channel();
        server.run(ends).expect("the server runs");
    });
    address
});

thread_local! {
    static CONNECTION: RefCell<Option<BufReader<TcpStream>>> = const { RefCell::new(None) };
}

/// A good request of a route.
fn base(numbers: &mut Numbers<'_>) -> (&'static str, Value) {
    let said = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A color?"}]);
    let tool = json!({"name": "sum", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}});
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]});
    match numbers.below(14) {
        0 => (
            "/v1/completions",
            json!({"prompt": "ab", "max_tokens": 4, "temperature": 0.5, "stop": ["x"], "logprobs": 2, "n": 2, "seed": 1}),
        ),
        1 => (
            "/v1/chat/completions",
            json!({"messages": said, "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 3}),
        ),
        2 => (
            "/v1/chat/completions",
            json!({"messages": said, "max_tokens": 4, "tools": [{"type": "function", "function": tool}], "tool_choice": "auto"}),
        ),
        3 => (
            "/v1/chat/completions",
            json!({"messages": said, "max_tokens": 4, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        ),
        4 => (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "max_output_tokens": 4, "text": {"format": {"type": "text"}}}),
        ),
        5 => (
            "/v1/messages",
            json!({"model": "m", "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 4, "tools": [{"name": "sum", "input_schema": schema}]}),
        ),
        6 => (
            "/api/chat",
            json!({"model": "m", "messages": said, "stream": false, "format": schema, "options": {"num_predict": 4, "mirostat": 2, "stop": ["x"]}, "keep_alive": "5m"}),
        ),
        7 => (
            "/api/generate",
            json!({"model": "m", "prompt": "a", "suffix": "b", "options": {"num_predict": 4, "top_k": 3}}),
        ),
        8 => (
            "/completion",
            json!({"prompt": [1, 2, "a"], "n_predict": 4, "grammar": "root ::= \"a\" | \"b\"", "logit_bias": [[5, -1.0]], "samplers": ["top_k", "temperature"]}),
        ),
        9 => ("/v1/embeddings", json!({"input": ["a", "b"], "encoding_format": "base64"})),
        10 => ("/rerank", json!({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1})),
        11 => (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "input_extra": [{"filename": "f", "text": "t"}]}),
        ),
        12 => {
            ("/apply-template", json!({"messages": said, "chat_template_kwargs": {"enable_thinking": false}}))
        }
        _ => ("/tokenize", json!({"content": "a", "add_special": true, "with_pieces": true})),
    }
}

/// The status of an answer, which is read to its end.
fn post(connection: &mut BufReader<TcpStream>, path: &str, body: &[u8]) -> std::io::Result<u16> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.get_mut().write_all(&[head.as_bytes(), body].concat())?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let (mut length, mut chunked) = (0, false);
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let lower = line.trim().to_ascii_lowercase();
        if lower.is_empty() {
            break;
        }
        chunked |= lower == "transfer-encoding: chunked";
        length =
            lower.strip_prefix("content-length: ").and_then(|count| count.parse().ok()).unwrap_or(length);
    }
    while chunked {
        line.clear();
        connection.read_line(&mut line)?;
        length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        chunked = length > 0;
        connection.read_exact(&mut vec![0; length + 2])?;
        length = 0;
    }
    connection.read_exact(&mut vec![0; length])?;
    Ok(status)
}

fuzz_target!(|input: &[u8]| {
    let mut numbers = Numbers(input);
    let (path, mut body) = base(&mut numbers);
    let raw = numbers.below(16) == 0;
    while !raw && !numbers.is_empty() {
        spoil(&mut body, &mut numbers);
    }
    let body = if raw { numbers.0.to_vec() } else { body.to_string().into_bytes() };
    CONNECTION.with_borrow_mut(|connection| {
        // A connection that the server has closed is replaced once.
        for last in [false, true] {
            let one = connection.get_or_insert_with(|| {
                BufReader::new(TcpStream::connect(*SERVER).expect("the server answers"))
            });
            match post(one, path, &body) {
                Ok(status) => {
                    assert!(
                        (200..500).contains(&status) || status == 503,
                        "{path}: {status} for {}",
                        String::from_utf8_lossy(&body)
                    );
                    return;
                }
                Err(error) => {
                    *connection = None;
                    assert!(!last, "{path}: {error} for {}", String::from_utf8_lossy(&body));
                }
            }
        }
    });
});
