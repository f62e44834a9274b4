//! `keep_alive`, as Ollama has it: how long a model stays loaded after a request.

use serde_json::Value;
use std::time::Duration;

/// How long a model stays when nobody asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long; no time at all unloads it once its answers are over.
    For(Duration),
    /// Until it is told to go, or others need its memory.
    Forever,
}

impl KeepAlive {
    /// Unloads a model.
    pub const NOT_AT_ALL: Self = Self::For(Duration::ZERO);

    /// From a number of seconds, or a duration such as `5m` or `1h30m`; what is below 0 is forever. None if it is neither.
    pub fn read(value: &Value) -> Option<Self> {
        let seconds = match value {
            Value::Number(number) => number.as_f64()?,
            Value::String(text) => seconds(text)?,
            _ => return None,
        };
        if seconds < 0.0 {
            return Some(Self::Forever);
        }
        // More than there is, is forever too.
        Some(Duration::try_from_secs_f64(seconds).map_or(Self::Forever, Self::For))
    }

    /// The time after which it goes.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::For(time) => Some(time),
            Self::Forever => None,
        }
    }
}

/// A duration as Go writes them; a number alone is seconds.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_number = |text: &str| {
        text.bytes().any(|byte| byte.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    if rest.is_empty() {
        return None;
    }
    if is_number(rest) {
        return rest.parse::<f64>().ok().map(|seconds| sign * seconds);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(end);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += factor * number.parse::<f64>().ok().filter(|_| is_number(number))?;
        rest = after;
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_are_read_as_ollama_reads_them() {
        let read = |value: Value| KeepAlive::read(&value);
        let for_seconds = |seconds| Some(KeepAlive::For(Duration::from_secs_f64(seconds)));
        for (value, expected) in [
            (json!(0), for_seconds(0.0)),
            (json!("0"), for_seconds(0.0)),
            (json!(90), for_seconds(90.0)),
            (json!(0.5), for_seconds(0.5)),
            (json!("300"), for_seconds(300.0)),
            (json!("5m"), for_seconds(300.0)),
            (json!("1h30m"), for_seconds(5400.0)),
            (json!("1.5s"), for_seconds(1.5)),
            (json!("250ms"), for_seconds(0.25)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1"), Some(KeepAlive::Forever)),
            (json!("-5m"), Some(KeepAlive::Forever)),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!("5 minutes"), None),
            (json!("m"), None),
            (json!("1..5s"), None),
            (json!(""), None),
            (json!("-"), None),
            (json!(true), None),
            (json!(["5m"]), None),
        ] {
            assert_eq!(read(value.clone()), expected, "{value}");
        }
    }
}
