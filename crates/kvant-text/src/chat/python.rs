//! Where Python differs: what templates see of values.

use super::{json, limits};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, Output, State};

/// Makes an environment do as Jinja2 does in Python.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.set_formatter(write);
    environment.add_filter("string", |value: &Value| text(value).unwrap_or_else(|| value.to_string()));
    environment.add_filter("items", items);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_test("iterable", is_iterable);
}

fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    // A letter that is escaped becomes five or six.
    let growth = if matches!(state.auto_escape(), AutoEscape::None) { 1 } else { 6 };
    let size = limits::size(value)?;
    limits::write(growth * (size.bytes + size.items))?;
    match text(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// A number that is not whole, or a collection that holds one, as `str` writes it; none for everything else.
fn text(value: &Value) -> Option<String> {
    is_odd(value).then(|| match value.kind() {
        ValueKind::Number => f64::try_from(value.clone()).map_or_else(|_| value.to_string(), json::float),
        ValueKind::Map => {
            let pair = |(key, item): (Value, Value)| format!("{}: {}", repr(&key), repr(&item));
            format!("{{{}}}", pairs(value).map(pair).collect::<Vec<_>>().join(", "))
        }
        _ => format!("[{}]", items_of(value).map(|item| repr(&item)).collect::<Vec<_>>().join(", ")),
    })
}

/// Whether a number that is not whole is in it.
fn is_odd(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => !value.is_integer(),
        ValueKind::Seq => items_of(value).any(|item| is_odd(&item)),
        ValueKind::Map => pairs(value).any(|(_, item)| is_odd(&item)),
        _ => false,
    }
}

fn items_of(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}

fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten()
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
    limits::fits(text.len().saturating_add((text.matches('\n').count() + 1).saturating_mul(width)))?;
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
