//! A JSON object, field by field. What nobody knows is named in the response, or refused where the server is strict: no setting is
//! dropped in silence.

use crate::error::ApiError;
use crate::notes::Notes;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Fields that are yet to be read.
pub struct Fields {
    fields: Map<String, Value>,
    /// Where they are, for messages: empty, or `stream_options.`
    place: String,
    notes: Notes,
}

impl Fields {
    /// The object in a request's body.
    pub fn parse(body: &[u8], notes: &Notes) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|e| ApiError::bad(format!("the body is not valid JSON: {e}")))?;
        match value {
            Value::Object(fields) => Ok(Self { fields, place: String::new(), notes: notes.clone() }),
            _ => Err(ApiError::bad("the body must be a JSON object")),
        }
    }

    /// The fields of an object inside another.
    pub fn inside(&self, name: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => {
                Ok(Self { fields, place: format!("{name}."), notes: self.notes.clone() })
            }
            other => Err(ApiError::field(name, format!("{name} must be an object, not {}", kind(&other)))),
        }
    }

    /// What the fields are called in full.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// Any value; `null` is as good as none.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// A value that stays to be read.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A value out of an object that stays to be read.
    pub fn take_from(&mut self, object: &str, name: &str) -> Option<Value> {
        let inner = self.fields.get_mut(object)?.as_object_mut()?;
        inner.remove(name).filter(|value| !value.is_null())
    }

    /// Whether this holds for every field, by its name and value.
    pub fn all(&self, holds: impl Fn(&str, &Value) -> bool) -> bool {
        self.fields.iter().all(|(name, value)| holds(name, value))
    }

    /// A text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    /// True or false.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    /// A number within a range.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wanted = || format!("a number from {} to {}", range.start(), range.end());
        // Before it is rounded, which may move it over an end.
        let number = value.as_f64().filter(|number| range.contains(number));
        number.map(|number| Some(number as f32)).ok_or_else(|| self.wrong(name, &wanted(), &value))
    }

    /// A whole number within a range.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let integer = whole(&value).filter(|number| range.contains(number));
        let wanted = match *range.end() {
            u64::MAX => format!("a whole number from {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        integer.map(Some).ok_or_else(|| self.wrong(name, &wanted, &value))
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let full = self.name(name);
        self.take(name).map(|value| self.inside(&full, value)).transpose()
    }

    /// A number of tokens; −1, and less, is as good as none: no limit.
    pub fn tokens(&mut self, name: &str, least: u64) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match whole::<i128>(&value) {
            Some(count) if count < 0 => Ok(None),
            Some(count) if count >= i128::from(least) => {
                Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            _ => Err(self.wrong(name, &format!("a whole number from {least}, or -1 for no limit"), &value)),
        }
    }

    /// Whether a number below 0 is given.
    pub fn is_negative(&self, name: &str) -> bool {
        self.fields.get(name).and_then(Value::as_f64).is_some_and(|number| number < 0.0)
    }

    /// The items of an array.
    pub fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(name, "an array", &other)),
        }
    }

    /// What is said about the request besides its answer.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Drops fields that cannot change an answer: who asks, and notes of the client's own.
    pub fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.fields.remove(*name)));
    }

    /// Refuses what is known and not supported, by name. `false`, 0 and nothing ask for nothing.
    pub fn refuse(&mut self, names: &[&str]) -> Result<(), ApiError> {
        for name in names {
            let asks = |value: &Value| match value {
                Value::Bool(asked) => *asked,
                Value::Array(items) => !items.is_empty(),
                value => value.as_f64() != Some(0.0),
            };
            if self.take(name).is_some_and(|value| asks(&value)) {
                let full = self.name(name);
                let message = format!("{full} is not supported by this server");
                return Err(ApiError::field(full, message).code("unsupported_parameter"));
            }
        }
        Ok(())
    }

    /// Names whatever was not read, or refuses it where the server is strict.
    pub fn end(self) -> Result<(), ApiError> {
        let Some(name) = self.fields.keys().next() else { return Ok(()) };
        if !self.notes.is_strict() {
            self.fields.keys().for_each(|name| self.notes.ignored(self.name(name)));
            return Ok(());
        }
        let full = self.name(name);
        let message = format!("unknown field {full:?}");
        Err(ApiError::field(full, message).code("unknown_parameter"))
    }

    /// Says that a field is not what it must be.
    pub fn wrong(&self, name: &str, wanted: &str, got: &Value) -> ApiError {
        let full = self.name(name);
        let shown = match got {
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            other => kind(other).to_owned(),
        };
        let message = format!("{full} must be {wanted}, not {shown}");
        ApiError::field(full, message)
    }
}

/// A whole number, which JSON may as well write as `1.0`.
pub fn whole<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    let number: i128 = match (value.as_u64(), value.as_i64(), value.as_f64()) {
        (Some(number), ..) => number.into(),
        (_, Some(number), _) => number.into(),
        (.., Some(number)) if number.fract() == 0.0 => number as i128,
        _ => return None,
    };
    T::try_from(number).ok()
}

/// A kind of value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A number with the digits that it was written with: 0.95, where the nearest f64 of that f32 has sixteen.
pub fn short(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes(), &Notes::strict()).unwrap()
    }

    #[test]
    fn fields_are_checked_as_they_are_read() {
        let mut all = fields(r#"{"a": "x", "b": true, "c": 0.5, "d": 3, "e": null, "f": {"g": 1}}"#);
        assert_eq!(all.text("a").unwrap().as_deref(), Some("x"));
        assert_eq!(all.flag("b").unwrap(), Some(true));
        assert_eq!(all.number("c", 0.0..=1.0).unwrap(), Some(0.5));
        assert_eq!(all.integer("d", 1..=3).unwrap(), Some(3));
        assert_eq!(all.text("e").unwrap(), None);
        let mut inner = all.object("f").unwrap().unwrap();
        let error = inner.integer("g", 2..=3).unwrap_err();
        assert!(error.body().to_string().contains("f.g must be a whole number from 2 to 3, not 1"));
        assert_eq!(all.end(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, read) in [
            (r#"{"x": 1}"#, Fields::text as fn(&mut Fields, &str) -> _),
            (r#"{"x": "1"}"#, |f, n| f.flag(n).map(|_| None)),
            (r#"{"x": 1.5}"#, |f, n| f.integer(n, 0..=9).map(|_| None)),
            (r#"{"x": -1}"#, |f, n| f.integer(n, 0..=9).map(|_| None)),
            (r#"{"x": 1.00000001}"#, |f, n| f.number(n, 0.0..=1.0).map(|_| None)),
            (r#"{"x": 2}"#, |f, n| f.number(n, 0.0..=1.0).map(|_| None)),
            (r#"{"x": []}"#, |f, n| f.object(n).map(|_| None)),
        ] {
            let error = read(&mut fields(text), "x").unwrap_err().body();
            assert_eq!(error["error"]["param"], "x", "{error}");
        }
        for text in ["", "[]", "{", "nul", r#"{"a":1}}"#] {
            assert!(Fields::parse(text.as_bytes(), &Notes::default()).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_numbers_may_be_written_as_fractions_and_have_ends() {
        let whole_of = |text: &str| whole::<u64>(&serde_json::from_str(text).unwrap());
        assert_eq!((whole_of("7"), whole_of("7.0"), whole_of("7e2")), (Some(7), Some(7), Some(700)));
        assert_eq!(whole_of("18446744073709551615"), Some(u64::MAX));
        for text in ["7.5", "-1", "18446744073709551616", "1e300", "-1e300", "\"7\"", "null", "true"] {
            assert_eq!(whole_of(text), None, "{text}");
        }
        assert_eq!(whole::<i64>(&Value::from(-3.0)), Some(-3));
    }

    #[test]
    fn nothing_is_dropped_in_silence() {
        let error = fields(r#"{"temprature": 1}"#).end().unwrap_err().body();
        assert_eq!(error["error"]["code"], "unknown_parameter");
        let error = fields(r#"{"audio": {"voice": "x"}}"#).refuse(&["audio"]).unwrap_err().body();
        assert_eq!(error["error"]["code"], "unsupported_parameter");
        let mut idle = fields(r#"{"store": false, "best_of": 0, "tools": [], "user": "me"}"#);
        idle.refuse(&["store", "best_of", "tools"]).unwrap();
        idle.ignore(&["user"]);
        assert_eq!(idle.end(), Ok(()));
        let notes = Notes::default();
        let mut lenient = Fields::parse(br#"{"temprature": 1, "inner": {"odd": 2}}"#, &notes).unwrap();
        lenient.object("inner").unwrap().unwrap().end().unwrap();
        lenient.end().unwrap();
        assert_eq!(notes.header().unwrap(), "inner.odd, temprature");
    }

    #[test]
    fn minus_one_token_is_no_limit() {
        let tokens = |text: &str| fields(text).tokens("x", 1);
        assert_eq!(tokens(r#"{"x": 7}"#), Ok(Some(7)));
        assert_eq!(
            (tokens(r#"{"x": -1}"#), tokens("{}"), tokens(r#"{"x": null}"#)),
            (Ok(None), Ok(None), Ok(None))
        );
        assert_eq!(tokens(r#"{"x": 1e30}"#), Ok(Some(usize::MAX)));
        for text in [r#"{"x": 0}"#, r#"{"x": 1.5}"#, r#"{"x": "7"}"#] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }
}
