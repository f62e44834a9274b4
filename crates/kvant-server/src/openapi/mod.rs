//! `/openapi.json`: what can be asked and what comes back, for machines.
//!
//! The document is written by hand, in JSON: it says what clients may count on, and a description made from the code would
//! change whenever the code does. Texts that begin with a dollar sign, such as `$stops`, stand for what this server is set
//! up with. Tests hold it to the routes, and schemathesis to what they answer.

use crate::app::App;
use crate::route::json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use kvant_engine::SAMPLING;
use kvant_engine::sampler::{SamplingSetting, SettingValue};
use serde_json::{Map, Value, json as object};
use std::sync::Arc;

/// Everything but the schemas.
const FRAME: &str = include_str!("paths.json");

/// Further paths: those of Anthropic's and Ollama's protocols, and of OpenAI's newer one.
const PROTOCOLS: &str = include_str!("protocols.json");

/// The schemas of what is sent, by name.
const REQUESTS: [&str; 2] = [include_str!("requests.json"), include_str!("fields.json")];

/// Those of what comes back.
const ANSWERS: [&str; 2] = [include_str!("answers.json"), include_str!("states.json")];

/// What stands for the settings of the sampler.
const SAMPLING_MARK: &str = "$sampling";

/// What a seed means to several answers.
const OF_SEVERAL: &str = " Of several answers each has the seed after the one before.";

/// Sends it.
pub async fn describe(State(app): State<Arc<App>>) -> Response<Body> {
    json(&document(&settings(&app), app.options.strict))
}

/// The highest id of any model that is loaded; of any model at all where none is.
fn last_token(app: &App) -> u64 {
    let last = |vocabulary: usize| vocabulary.saturating_sub(1) as u64;
    let loaded = app.models.loaded();
    loaded
        .iter()
        .map(|served| last(served.handle.engine().model().vocabulary()))
        .max()
        .unwrap_or(u32::MAX.into())
}

/// What stands for a name after a dollar sign.
type Placeholders = Vec<(&'static str, Value)>;

fn settings(app: &App) -> Placeholders {
    let limits = app.limits();
    let security = if app.options.keys.is_open() { object!([]) } else { object!([{"key": []}]) };
    vec![
        ("$version", env!("CARGO_PKG_VERSION").into()),
        ("$security", security),
        ("$model", app.options.model.as_str().into()),
        ("$documents", limits.documents.into()),
        ("$last_token", last_token(app).into()),
        ("$adapters", app.models.list().iter().map(|model| model.adapters.len()).max().unwrap_or(0).into()),
        ("$answers", limits.answers.into()),
        ("$inputs", limits.inputs.into()),
        ("$stops", limits.stops.into()),
        ("$stop_bytes", limits.stop_bytes.into()),
        ("$biases", limits.biases.into()),
        ("$messages", limits.messages.into()),
        ("$format_bytes", limits.format_bytes.into()),
    ]
}

fn document(settings: &Placeholders, is_strict: bool) -> Value {
    let parse = |text| serde_json::from_str::<Map<String, Value>>(text).expect("a test has read it");
    let mut requests: Value = REQUESTS.into_iter().flat_map(parse).collect::<Map<String, Value>>().into();
    describe_sampling(&mut requests);
    if !is_strict {
        open(&mut requests);
    }
    let mut whole = Value::Object(parse(FRAME));
    if let Some(paths) = whole["paths"].as_object_mut() {
        paths.extend(parse(PROTOCOLS));
    }
    let mut schemas = requests.as_object().cloned().unwrap_or_default();
    schemas.extend(ANSWERS.into_iter().flat_map(parse));
    whole["components"]["schemas"] = schemas.into();
    fill(&mut whole, settings);
    whole
}

/// Puts the fields by which requests say how tokens are chosen where `$sampling` stands for them.
fn describe_sampling(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(describe_sampling),
        Value::Object(fields) => {
            for (name, mut field) in std::mem::take(fields) {
                match name == SAMPLING_MARK {
                    true => fields.extend(SAMPLING.iter().flat_map(described)),
                    false => {
                        describe_sampling(&mut field);
                        fields.insert(name, field);
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The fields of a setting, by all names that requests have for it.
fn described(setting: &SamplingSetting) -> Vec<(String, Value)> {
    let Some([least, most]) = setting.request else { return Vec::new() };
    let field = match setting.usual {
        SettingValue::Flag(_) => {
            Some(object!({"type": ["boolean", "null"], "description": format!("{}.", setting.help)}))
        }
        SettingValue::Order(_) => Some(object!({
            "type": ["array", "string", "null"], "items": {"type": "string"},
            "description": format!("{}.", setting.help),
        })),
        _ => None,
    };
    if let Some(field) = field {
        return setting.request_names().map(|name| (name.to_owned(), field.clone())).collect();
    }
    let (kind, least, most, more) = match setting.usual {
        SettingValue::Number(_) => ("number", Value::from(least), Value::from(most), ""),
        SettingValue::Seed(_) => ("integer", Value::from(-i64::MAX), Value::from(u64::MAX), OF_SEVERAL),
        SettingValue::Window(_) => ("integer", Value::from(-1), Value::from(i64::MAX), ""),
        _ => ("integer", Value::from(-1), Value::from(i64::MAX), " -1 is 0."),
    };
    let description = format!("{}.{more}", setting.help);
    let field =
        object!({"type": [kind, "null"], "minimum": least, "maximum": most, "description": description});
    setting.request_names().map(|name| (name.to_owned(), field.clone())).collect()
}

/// Lets objects have fields that are not described, which are then ignored.
fn open(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(open),
        Value::Object(fields) => {
            if fields.get("additionalProperties") == Some(&Value::Bool(false)) {
                fields.shift_remove("additionalProperties");
            }
            fields.values_mut().for_each(open);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fill(value: &mut Value, settings: &Placeholders) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, settings)),
        Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, settings)),
        Value::String(text) => match settings.iter().find(|(name, _)| name == text) {
            Some((_, setting)) => *value = setting.clone(),
            // Inside of sentences.
            None => {
                let one =
                    |text: String, (name, setting): &(&str, Value)| text.replace(name, &setting.to_string());
                *text = settings.iter().fold(std::mem::take(text), one);
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn filled() -> Value {
        let numbers = [
            "$last_token",
            "$answers",
            "$inputs",
            "$stops",
            "$stop_bytes",
            "$biases",
            "$messages",
            "$format_bytes",
            "$documents",
            "$adapters",
        ];
        let mut settings: Placeholders = numbers.into_iter().zip((100..).map(Value::from)).collect();
        settings.extend([
            ("$version", "1".into()),
            ("$model", "$stops".into()),
            ("$security", object!([{"key": []}])),
        ]);
        document(&settings, true)
    }

    /// Every text of the document, and the names of its fields.
    fn texts(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| texts(item, out)),
            Value::Object(fields) => fields.values().for_each(|field| texts(field, out)),
            Value::String(text) => out.push(text.clone()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let described: BTreeSet<String> =
            filled()["paths"].as_object().unwrap().keys().map(String::from).collect();
        let routes = crate::route::routes();
        let served = routes.iter().map(|(path, _)| path.replace("{*", "{")).collect::<BTreeSet<_>>();
        assert_eq!(described, served);
    }

    #[test]
    fn what_stands_for_settings_is_replaced_once() {
        let whole = filled();
        let schemas = &whole["components"]["schemas"];
        assert_eq!(schemas["Stop"]["anyOf"][1]["maxItems"], 103);
        assert!(schemas["Stop"]["description"].as_str().unwrap().contains("of 104 bytes"));
        // A model may be called whatever it likes.
        assert_eq!(schemas["ModelName"]["examples"][0], "$stops");
        let mut all = Vec::new();
        texts(&whole, &mut all);
        let is_name = |text: &&String| {
            *text != "$stops" && text.split('$').skip(1).any(|rest| rest.starts_with(char::is_alphabetic))
        };
        assert_eq!(all.iter().find(is_name), None);
    }

    #[test]
    fn references_lead_somewhere_and_no_schema_is_forgotten() {
        let whole = filled();
        let mut all = Vec::new();
        texts(&whole, &mut all);
        let named: BTreeSet<&str> = all.iter().filter_map(|text| text.strip_prefix("#")).collect();
        assert_eq!(named.iter().find(|place| whole.pointer(place).is_none()), None);
        for part in ["schemas", "responses", "headers"] {
            for name in whole["components"][part].as_object().unwrap().keys() {
                // Pieces of streams, which the document can only speak of.
                let is_piece = all.iter().any(|text| text.contains(&format!("`{name}`")));
                let place = format!("/components/{part}/{name}");
                assert!(is_piece || named.contains(place.as_str()), "{place}");
            }
        }
    }
}
