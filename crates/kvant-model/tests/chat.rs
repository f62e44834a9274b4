//! Chat templates against what Jinja2 makes of them. The fixtures are in `tests/data/chat`.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use kvant_model::chat::{ChatError, ChatTemplate, Message, RenderOptions};
use serde_json::Value;

fn read(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat").join(name);
    std::fs::read_to_string(path).expect(name)
}

fn message(json: &Value) -> Message {
    let mut fields = json.as_object().unwrap().clone();
    let role = fields.remove("role").unwrap().as_str().unwrap().to_owned();
    let content = fields.remove("content").unwrap().as_str().map(String::from);
    Message { role, content, fields }
}

fn options(json: &Value) -> RenderOptions {
    let mut variables = json.as_object().unwrap().clone();
    let tools = variables.remove("tools").and_then(|tools| tools.as_array().cloned()).unwrap_or_default();
    let prompt = variables.remove("add_generation_prompt").is_none_or(|value| value == true);
    RenderOptions {
        add_generation_prompt: prompt,
        tools,
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        now: UNIX_EPOCH + Duration::from_secs(1_721_953_805),
        variables,
    }
}

#[test]
fn templates_write_what_jinja_writes() {
    let cases: Value = serde_json::from_str(&read("cases.json")).unwrap();
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let template = ChatTemplate::new(&read(&format!("{name}.jinja"))).expect(name);
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let found = template.render(&messages, &options(&case["options"]));
        let agrees = match &found {
            Ok(text) => case["text"] == text.as_str(),
            Err(ChatError::Refused(message)) => case["refused"] == message.as_str(),
            Err(_) => case["fails"].is_string(),
        };
        if !agrees {
            wrong.push(format!(
                "{name} {}\n found {found:?}\n wants {} {} {}",
                case["messages"], case["text"], case["refused"], case["fails"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn a_refusal_is_in_the_words_of_the_template() {
    let template = ChatTemplate::new("{{ raise_exception('no ' ~ messages[0].role) }}").unwrap();
    let error = template.render(&[Message::new("tool", "x")], &RenderOptions::default()).unwrap_err();
    assert!(matches!(&error, ChatError::Refused(words) if words == "no tool"));
    assert_eq!(error.to_string(), "the chat template of this model refuses this conversation: no tool");
}

#[test]
fn a_broken_template_is_named_with_its_line() {
    let error = ChatTemplate::new("a\n{% for %}").unwrap_err();
    assert!(matches!(error, ChatError::Syntax(_)));
    assert!(error.to_string().contains("line 2"), "{error}");
    let template = ChatTemplate::new("\n\n{{ messages.nothing.there }}").unwrap();
    let error = template.render(&[], &RenderOptions::default()).unwrap_err();
    assert!(matches!(error, ChatError::Failed(_)));
    assert!(error.to_string().contains("line 3"), "{error}");
}

#[test]
fn an_endless_template_is_stopped() {
    let template = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(template).unwrap();
    assert!(matches!(template.render(&[], &RenderOptions::default()), Err(ChatError::Failed(_))));
}
