//! A hub to fetch from.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

/// Answers requests for `org/tiny` with `body`, and all others with 404, until the test ends; returns its address.
pub fn hub(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = if path.starts_with("/api/models/org/tiny/") {
                let file = format!(r#"{{"rfilename": "tiny.gguf", "size": {}}}"#, body.len());
                ("200 OK", format!(r#"{{"sha": "0123", "siblings": [{file}]}}"#).into_bytes())
            } else if path == "/org/tiny/resolve/0123/tiny.gguf" {
                ("200 OK", body.clone())
            } else {
                ("404 Not Found", Vec::new())
            };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A client that hangs up is the test's business.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    address
}
