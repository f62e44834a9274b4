//! JSON as Python's `json.dumps` writes it: models were trained on its spaces.

use std::fmt::Write as _;
use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::limits;

/// Spaces a level. Python has no bound, but no template asks for more.
const MAX_INDENT: usize = 64;

/// The `tojson` filter: `ensure_ascii` (default false), `indent`, `separators` and `sort_keys` as in Python.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|width| width > MAX_INDENT) {
        let what = format!("tojson: an indent of more than {MAX_INDENT} spaces");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    limits::size(value)?;
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut out = Bounded(Vec::new());
    let layout = Layout { item, key, indent, depth: 0, is_empty: true };
    let mut serializer = Serializer::with_formatter(&mut out, layout);
    let written = match sort_keys {
        true => serde_json::to_value(value).and_then(|mut value| {
            value.sort_all_objects();
            value.serialize(&mut serializer)
        }),
        false => value.serialize(&mut serializer),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    let text = String::from_utf8_lossy(&out.0).into_owned();
    Ok(if ensure_ascii { escape_non_ascii(&text) } else { text })
}

/// Bytes up to the bound of a value.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        limits::fits(self.0.len() + bytes.len()).map_err(io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Characters beyond ASCII stand only inside strings, so each can be escaped where it is.
fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// A number as Python writes it: `1e-05` and `1e+16` where others write `1e-5` and `1e16`.
pub(super) fn float(value: f64) -> String {
    let exponential = format!("{value:e}");
    match exponential.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// Separators and, with `indent`, one item a line.
struct Layout {
    item: String,
    key: String,
    indent: Option<usize>,
    depth: usize,
    /// Nothing has been written since the innermost bracket opened.
    is_empty: bool,
}

impl Layout {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.line(writer)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(width) => {
                writer.write_all(b"\n")?;
                (0..self.depth).try_for_each(|_| writer.write_all(&[b' '; MAX_INDENT][..width]))
            }
            None => Ok(()),
        }
    }
}

impl Formatter for Layout {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let expected = [
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e-4, "0.0001"),
            (0.1, "0.1"),
            (21.0, "21.0"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e300, "-1.25e+300"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
        ];
        for (value, text) in expected {
            assert_eq!(float(value), text);
        }
    }
}
