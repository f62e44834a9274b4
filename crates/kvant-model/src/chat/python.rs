//! Where Python differs: what templates see of values.

use super::json;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, Output, State};

/// Makes an environment do as Jinja2 does in Python.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(write);
    environment.add_filter("string", |value: &Value| text(value).unwrap_or_else(|| value.to_string()));
    environment.add_filter("items", items);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_test("iterable", is_iterable);
}

fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match text(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// A number that is not whole, or a collection that holds one, as `str` writes it; none for everything else.
fn text(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(json::float),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter().ok()?.collect();
            let is_odd = items.iter().any(|item| text(item).is_some());
            is_odd.then(|| format!("[{}]", items.iter().map(repr).collect::<Vec<_>>().join(", ")))
        }
        ValueKind::Map => {
            let items: Vec<(Value, Value)> = value
                .try_iter()
                .ok()?
                .map(|key| value.get_item(&key).map(|item| (key, item)))
                .collect::<Result<_, _>>()
                .ok()?;
            let is_odd = items.iter().any(|(_, item)| text(item).is_some());
            let pair = |(key, item): &(Value, Value)| format!("{}: {}", repr(key), repr(item));
            is_odd.then(|| format!("{{{}}}", items.iter().map(pair).collect::<Vec<_>>().join(", ")))
        }
        _ => None,
    }
}

/// A value within a collection.
fn repr(value: &Value) -> String {
    text(value).unwrap_or_else(|| {
        let alone = Value::from(vec![value.clone()]).to_string();
        alone.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&alone).to_owned()
    })
}

/// Pairs of keys and values; what is not there has none.
fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => minijinja::filters::items(value),
    }
}

/// What is not there has no length.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// Lines moved to the right, all but the first and empty ones unless asked for. A line break at the end stays.
fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let space = " ".repeat(width);
    let line = |(at, line): (usize, &str)| {
        let is_moved = if at == 0 { first } else { blank || !line.is_empty() };
        if is_moved { format!("{space}{line}") } else { line.to_owned() }
    };
    Ok(text.split('\n').enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

/// `None` is not.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}
