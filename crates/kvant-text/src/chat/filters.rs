//! Filters and methods that can multiply what they are given: measured before they run.

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::limits;

/// Puts a check before every filter and method whose result can be much larger than its arguments.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    guard(environment, "replace", Value::from_function(filters::replace), replace);
    guard(environment, "join", Value::from_function(filters::join), join);
    guard(environment, "format", Value::from_function(filters::format), format);
    guard(environment, "batch", Value::from_function(filters::batch), count);
    guard(environment, "slice", Value::from_function(filters::slice), count);
    guard(environment, "split", Value::from_function(filters::split), split);
    guard(environment, "lines", Value::from_function(filters::lines), split);
    guard(environment, "list", Value::from_function(filters::list), letters);
    guard(environment, "sum", Value::from_function(filters::sum), sum);
    guard(environment, "pprint", Value::from_function(filters::pprint), pprint);
    environment.set_unknown_method_callback(method);
    // It shows all variables, which may be large, and no template needs it.
    environment.remove_global("debug");
}

fn guard(
    environment: &mut Environment<'_>,
    name: &'static str,
    filter: Value,
    check: fn(&[Value]) -> Result<(), Error>,
) {
    let guarded = move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        check(&arguments)?;
        filter.call(state, &arguments)
    };
    environment.add_filter(name, guarded);
}

/// A Python method.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let with_text = || [std::slice::from_ref(value), arguments].concat();
        match name {
            "replace" => replace(&with_text())?,
            "split" | "splitlines" => split(&with_text())?,
            "format" => limits::formatting_fits(text, arguments)?,
            "join" => {
                if let Some(items) = arguments.first() {
                    limits::joining_fits(items, text)?;
                }
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// The argument as text, as filters take it.
fn text(arguments: &[Value], at: usize) -> String {
    match arguments.get(at) {
        Some(value) if !value.is_kwargs() => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        _ => String::new(),
    }
}

fn replace(arguments: &[Value]) -> Result<(), Error> {
    limits::replacing_fits(&text(arguments, 0), &text(arguments, 1), &text(arguments, 2))
}

fn join(arguments: &[Value]) -> Result<(), Error> {
    let Some(value) = arguments.first() else { return Ok(()) };
    let named = arguments.last().filter(|value| value.is_kwargs()).and_then(|named| named.get_attr("d").ok());
    let named = named.as_ref().and_then(Value::as_str).unwrap_or("");
    limits::joining_fits(value, &text(arguments, 1))?;
    limits::joining_fits(value, named)
}

fn format(arguments: &[Value]) -> Result<(), Error> {
    match arguments {
        [format, arguments @ ..] => limits::formatting_fits(format.as_str().unwrap_or(""), arguments),
        [] => Ok(()),
    }
}

/// The second argument is a length of lists, or a number of them.
fn count(arguments: &[Value]) -> Result<(), Error> {
    letters(arguments)?;
    limits::items_fit(arguments.get(1).and_then(Value::as_usize).unwrap_or(0))
}

fn split(arguments: &[Value]) -> Result<(), Error> {
    let separator = arguments.get(1).and_then(Value::as_str);
    limits::pieces_fit(&text(arguments, 0), separator)
}

/// A text is a list of its letters.
fn letters(arguments: &[Value]) -> Result<(), Error> {
    limits::items_fit(arguments.first().and_then(Value::as_str).map_or(0, |text| text.chars().count()))
}

/// Texts and lists are added one after another, each time to a copy.
fn sum(arguments: &[Value]) -> Result<(), Error> {
    let Some(value) = arguments.first() else { return Ok(()) };
    let size = limits::size(value)?;
    limits::fits(size.bytes.saturating_mul(size.items) >> 6)?;
    let nested = value.try_iter().is_ok_and(|mut items| items.any(|item| item.as_object().is_some()));
    match nested && size.items > 10_000 {
        true => Err(Error::new(ErrorKind::InvalidOperation, "sum: more than 10000 items in lists")),
        false => Ok(()),
    }
}

/// Every item is a line, moved to the right by its depth.
fn pprint(arguments: &[Value]) -> Result<(), Error> {
    let Some(value) = arguments.first() else { return Ok(()) };
    let size = limits::size(value)?;
    limits::fits(size.bytes.saturating_add(size.items.saturating_mul(4 * limits::DEPTH)))
}
