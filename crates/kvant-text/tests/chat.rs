//! Chat templates against what Jinja2 makes of them. The fixtures are in `tests/data/chat`.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use kvant_text::chat::{ChatError, ChatTemplate, Message, RenderOptions};
use serde_json::Value;

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat")
}

fn read_in(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).expect(name)
}

fn read(name: &str) -> String {
    read_in(&data(), name)
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
        continue_final_message: false,
        tools,
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        now: UNIX_EPOCH + Duration::from_secs(1_721_953_805),
        variables,
    }
}

/// How a rendering differs from what Jinja2 wrote, or said.
fn difference(found: Result<String, ChatError>, case: &Value) -> Option<String> {
    let agrees = match &found {
        Ok(text) => case["text"] == text.as_str(),
        Err(ChatError::Refused(message)) => case["refused"] == message.as_str(),
        Err(_) => case["fails"].is_string(),
    };
    (!agrees).then(|| format!(" found {found:?}\n wants {case}"))
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
        wrong.extend(difference(found, case).map(|what| format!("{name} {}\n{what}", case["messages"])));
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n\n"));
}

/// `KVANT_CHAT_TEMPLATES` names another folder, in which `make_expected.py` has written what Jinja2 makes of its templates.
#[test]
fn templates_of_the_families_write_what_jinja_writes() {
    let folder =
        std::env::var_os("KVANT_CHAT_TEMPLATES").map_or_else(|| data().join("families"), PathBuf::from);
    let cases: Value = serde_json::from_str(&read_in(&folder, "cases.json")).unwrap();
    let conversations = cases["conversations"].as_array().unwrap();
    let mut wrong = Vec::new();
    for (name, texts) in cases["texts"].as_object().unwrap() {
        let template = ChatTemplate::new(&read_in(&folder, &format!("{name}.jinja"))).expect(name);
        for (at, (conversation, case)) in conversations.iter().zip(texts.as_array().unwrap()).enumerate() {
            let messages: Vec<Message> =
                conversation["messages"].as_array().unwrap().iter().map(message).collect();
            let found = template.render(&messages, &options(&conversation["options"]));
            // Where Jinja2 itself fails there is nothing to compare.
            let difference = difference(found, case).filter(|_| !case["fails"].is_string());
            wrong.extend(difference.map(|what| format!("{name}, conversation {at}\n{what}")));
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
