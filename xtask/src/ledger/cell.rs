//! The text of a cell: words with keys in braces.

use serde_json::Value;

/// Fills a template from a row. A key that the row does not have leaves the whole cell empty: half a cell would mislead.
pub fn filled(template: &str, row: &Value) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        let end = rest[start..].find('}').ok_or_else(|| format!("`{template}` has an open brace"))? + start;
        out.push_str(&rest[..start]);
        let (key, format) = rest[start + 1..end].split_once(':').unwrap_or((&rest[start + 1..end], ""));
        match &row[key] {
            Value::Null => return Ok(String::new()),
            value => out.push_str(&spread(row, key, value, format)?),
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    // A bar would end the cell.
    Ok(out.replace('|', "\\|"))
}

/// A value, and with `~` after its format its spread over several runs: `17.1 (15.0–19.6)`.
fn spread(row: &Value, key: &str, value: &Value, format: &str) -> Result<String, String> {
    let Some(format) = format.strip_suffix('~') else { return written(value, format) };
    let end = |name: &str| match &row[format!("{key} {name}")] {
        Value::Null => written(value, format),
        end => written(end, format),
    };
    let (low, high) = (end("low")?, end("high")?);
    let median = written(value, format)?;
    Ok(if low == high { median } else { format!("{median} ({low}–{high})") })
}

/// A value as the format says: `.N` digits, `+` always with a sign, `%` a share in percent, `g` as many digits as count,
/// `,` a whole number with its thousands set apart.
fn written(value: &Value, format: &str) -> Result<String, String> {
    let number = match value {
        Value::String(text) if format.is_empty() => return Ok(text.clone()),
        Value::Number(number) if format.is_empty() => return Ok(number.to_string()),
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{number} is beyond any cell"))?,
        other => return Err(format!("{other} cannot be written as `{format}`")),
    };
    match format {
        "g" => return Ok(counting(number)),
        "," => return Ok(thousands(number)),
        _ => {}
    }
    let wrong = || format!("`{format}` is not a format: .N, with + before and % after it, or g, or a comma");
    let signed = format.starts_with('+');
    let (digits, percent) = match format.trim_start_matches('+').strip_suffix('%') {
        Some(digits) => (digits, true),
        None => (format.trim_start_matches('+'), false),
    };
    let digits: usize = digits.strip_prefix('.').and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
    let number = if percent { 100.0 * number } else { number };
    let text = if signed { format!("{number:+.digits$}") } else { format!("{number:.digits$}") };
    let unit = if percent { " %" } else { "" };
    Ok(format!("{}{unit}", text.replace('-', "−")))
}

/// A whole number in groups of three digits.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out.replace('-', "−")
}

/// Two or three digits that count, however small the number.
fn counting(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 1e-4 => {
            let digits = (2 - size.log10().floor() as i32) as usize;
            format!("{number:.*}", digits.min(6))
        }
        _ => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_filled_as_they_say() {
        let row = json!({"ms": 17.14, "ms low": 15.0, "ms high": 19.6, "ctx": 131072, "kl": 0.01754, "se": 0.0009, "top1": 0.9219, "spec": "a|b", "d": -0.04, "n": 12, "tiny": 7.1e-9});
        for (template, text) in [
            ("{kl:.4} ± {se:.4}", "0.0175 ± 0.0009"),
            ("{top1:.1%}", "92.2 %"),
            ("`{spec}`", "`a\\|b`"),
            ("{d:+.1} %", "−0.0 %"),
            ("**{n}**", "**12**"),
            ("{kl:g}, {tiny:g}, {n:g}", "0.0175, 7.1e-9, 12.00"),
            ("{kl:.2} {absent:.2}", ""),
            ("{ms:.1~}, {kl:.2~}", "17.1 (15.0–19.6), 0.02"),
            ("{ms:.0~}; {ctx:,}, {n:,}", "17 (15–20); 131,072, 12"),
            ("plain", "plain"),
        ] {
            assert_eq!(filled(template, &row).as_deref(), Ok(text), "{template}");
        }
        for bad in ["{kl", "{kl:x}", "{spec:.2}"] {
            assert!(filled(bad, &row).is_err(), "{bad}");
        }
    }
}
