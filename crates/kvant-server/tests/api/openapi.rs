//! The description of the server holds of it.

use crate::support::*;
use kvant_server::{Keys, Limits, ServerOptions};
use serde_json::{Value, json};

fn document(server: &Running) -> Value {
    let answer = server.get("/openapi.json");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn routes_are_asked_for_as_the_document_says() {
    let server = usual();
    let document = document(&server);
    for (path, operations) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", MODEL).replace("{id}", "nothing");
        for (method, answer) in [("get", server.get(&path)), ("post", server.post(&path, &json!({})))] {
            match operations.get(method) {
                None => {
                    assert!(answer.status == 405 && answer.body.contains("does not accept"), "{answer:?}")
                }
                Some(operation) => {
                    let described = &operation["responses"][answer.status.to_string()];
                    assert!(!described.is_null(), "{method} {path}: {answer:?}");
                }
            }
        }
    }
}

#[test]
fn limits_are_those_of_this_server() {
    let limits = Limits { answers: 3, stops: 5, messages: 7, ..Limits::default() };
    let work = Default::default();
    let server = start(ServerOptions { limits, keys: Keys::new(["sesame"]), ..options() }, work);
    server.get("/openapi.json").fails(401, "key");
    let head = "Authorization: Bearer sesame\r\n";
    let get = |path: &str| {
        server.raw(
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}\r\n").as_bytes(),
        )
    };
    let document = get("/openapi.json").json();
    assert_eq!(document["security"], json!([{"key": []}]));
    let schemas = &document["components"]["schemas"];
    assert_eq!(
        (&schemas["ModelName"]["examples"][0], &schemas["TokenId"]["maximum"]),
        (&json!(MODEL), &json!(255))
    );
    let most = |place: &str| schemas.pointer(place).and_then(Value::as_u64).unwrap() as usize;
    let (answers, stops) = (most("/Count/maximum"), most("/Stop/anyOf/1/maxItems"));
    let messages = most("/Messages/maxItems");
    assert_eq!((answers, stops, messages), (3, 5, 7));
    // The last that is taken, and the first that is not.
    for (add, status) in [(0, 200), (1, 400)] {
        for body in [
            json!({"prompt": "a", "n": answers + add}),
            json!({"prompt": vec!["a"; answers + add]}),
            json!({"prompt": "a", "stop": vec!["x"; stops + add]}),
        ] {
            let answer = server.raw(&request("/v1/completions", &body, head));
            assert_eq!(answer.status, status, "{body}: {answer:?}");
        }
        let turns = vec![json!({"role": "user", "content": "a"}); messages + add];
        let answer = server.raw(&request("/tokenize", &json!({"messages": turns}), head));
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let open = usual().get("/openapi.json").json();
    assert_eq!(open["security"], json!([]));
    // Whether unknown fields are refused.
    let closed = strict().get("/openapi.json").json();
    let chat =
        |document: &Value| document["components"]["schemas"]["ChatRequest"]["additionalProperties"].clone();
    assert_eq!((chat(&open), chat(&closed)), (Value::Null, json!(false)));
}
