//! Bounds on what a template may make.
//!
//! A template comes with a model file, so it is as hostile as the file. Fuel bounds how many instructions it runs; these bounds hold
//! for what an instruction makes: bytes of text and number of items of a value, how deep values nest, and the sums over one rendering.
//! Rendering has a thread of its own, so the sums are kept per thread.
//!
//! **Invariant:** every value that a template makes is measured before the next instruction sees it ([`super::program`] puts the
//! measuring in). What multiplies, such as `replace`, is measured before it runs.

use std::cell::Cell;

use minijinja::value::{ObjectRepr, Value};
use minijinja::{Error, ErrorKind};

/// Bytes of text in one value, and in what one filter makes: four million tokens and more.
pub(super) const VALUE_BYTES: usize = 16 << 20;

/// Items in one value, those of its lists and maps included.
pub(super) const VALUE_ITEMS: usize = 1 << 20;

/// Lists and maps within each other. JSON of a request has at most 128.
pub(super) const DEPTH: usize = 192;

/// Bytes that one rendering may write, what is captured by macros included.
const WRITTEN_BYTES: usize = 64 << 20;

/// Bytes of text that one rendering may make on its way.
const MADE_BYTES: usize = 1 << 30;

/// Items that one rendering may look at while it measures.
const LOOKED_AT: usize = 1 << 28;

/// Width and precision in a format string.
const PADDING: usize = 10_000;

thread_local! {
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
    static MADE: Cell<usize> = const { Cell::new(0) };
    static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// What a rendering is refused for.
fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the template asks for too much: {what}"))
}

/// Begins a rendering on this thread.
pub(super) fn begin() {
    for sum in [&WRITTEN, &MADE, &SEEN] {
        sum.set(0);
    }
}

/// Bytes of text and items of a value.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    pub(super) bytes: usize,
    pub(super) items: usize,
}

/// The size of a value that is within the bounds.
pub(super) fn size(value: &Value) -> Result<Size, Error> {
    let mut size = Size::default();
    add_size(value, 0, &mut size)?;
    let seen = SEEN.get() + size.items;
    SEEN.set(seen);
    match seen <= LOOKED_AT {
        true => Ok(size),
        false => Err(too_much(&format!("values of more than {LOOKED_AT} items in all"))),
    }
}

fn add_size(value: &Value, depth: usize, size: &mut Size) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(too_much(&format!("lists or maps more than {DEPTH} deep, or one within itself")));
    }
    size.items += 1;
    if let Some(text) = value.as_str() {
        size.bytes += text.len();
    } else if let Some(object) = value.as_object() {
        match object.repr() {
            ObjectRepr::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    add_size(&key, depth + 1, size)?;
                    add_size(&item, depth + 1, size)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    add_size(&item, depth + 1, size)?;
                }
            }
            _ => {}
        }
    }
    fits(size.bytes)?;
    items_fit(size.items)
}

/// Whether so many bytes may be made at once.
pub(super) fn fits(bytes: usize) -> Result<(), Error> {
    match bytes <= VALUE_BYTES {
        true => Ok(()),
        false => Err(too_much(&format!("a text of more than {} MiB", VALUE_BYTES >> 20))),
    }
}

/// Whether a list may have so many items.
pub(super) fn items_fit(items: usize) -> Result<(), Error> {
    match items <= VALUE_ITEMS {
        true => Ok(()),
        false => Err(too_much(&format!("a value of more than {VALUE_ITEMS} items"))),
    }
}

/// Counts bytes that go to the output.
pub(super) fn write(bytes: usize) -> Result<(), Error> {
    let written = WRITTEN.get().saturating_add(bytes);
    WRITTEN.set(written);
    match written <= WRITTEN_BYTES {
        true => Ok(()),
        false => Err(too_much(&format!("an output of more than {} MiB", WRITTEN_BYTES >> 20))),
    }
}

/// A value that shares what was there before: measured, not counted.
pub(super) fn shared(value: Value) -> Result<Value, Error> {
    size(&value).map(|_| value)
}

/// A value with new text in it: measured and counted.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    let made = MADE.get() + size(&value)?.bytes;
    MADE.set(made);
    match made <= MADE_BYTES {
        true => Ok(value),
        false => Err(too_much(&format!("more than {} MiB of text in all", MADE_BYTES >> 20))),
    }
}

/// A value for a namespace. Namespaces are all that can be changed, so that nothing is within itself if none holds another.
pub(super) fn kept(value: Value) -> Result<Value, Error> {
    size(&value)?;
    match holds_namespace(&value) {
        false => Ok(value),
        true => Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be put into a namespace")),
    }
}

fn holds_namespace(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    if object.type_name().ends_with("::Namespace") {
        return true;
    }
    match object.repr() {
        ObjectRepr::Map => {
            object.try_iter_pairs().is_some_and(|mut pairs| pairs.any(|(_, item)| holds_namespace(&item)))
        }
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            object.try_iter().is_some_and(|mut items| items.any(|item| holds_namespace(&item)))
        }
        _ => false,
    }
}

/// `left ~ right`.
pub(super) fn concatenated(left: &Value, right: &Value) -> Result<Value, Error> {
    fits(size(left)?.bytes + size(right)?.bytes)?;
    made(Value::from(format!("{left}{right}")))
}

/// Whether `text` with every `old` replaced by `new` is small enough.
pub(super) fn replacing_fits(text: &str, old: &str, new: &str) -> Result<(), Error> {
    fits(text.len().saturating_add(text.matches(old).count().saturating_mul(new.len())))
}

/// Whether the items of `value` with `separator` between them are small enough.
pub(super) fn joining_fits(value: &Value, separator: &str) -> Result<(), Error> {
    let size = size(value)?;
    let gaps = value.as_str().map_or(size.items, |text| text.chars().count());
    fits(size.bytes.saturating_add(gaps.saturating_mul(separator.len())))
}

/// Whether `text` can be cut at `separator`, or at spaces or lines, into a list that is small enough.
pub(super) fn pieces_fit(text: &str, separator: Option<&str>) -> Result<(), Error> {
    items_fit(match separator {
        Some(separator) => text.matches(separator).count(),
        None => text.bytes().filter(u8::is_ascii_whitespace).count(),
    })
}

/// Whether a format string, in either style, with these arguments gives something small enough.
pub(super) fn formatting_fits(format: &str, arguments: &[Value]) -> Result<(), Error> {
    let widest = format
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.trim_start_matches('0'))
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
        .max()
        .unwrap_or(0);
    if widest > PADDING {
        return Err(too_much(&format!("a width or precision of more than {PADDING}")));
    }
    let mut each = widest;
    for argument in arguments {
        each = each.saturating_add(size(argument)?.bytes + 400);
        // `*` takes a width from the arguments.
        let is_wide = argument.as_i64().is_some_and(|width| width.unsigned_abs() > PADDING as u64);
        if format.contains('*') && is_wide {
            return Err(too_much(&format!("a width or precision of more than {PADDING}")));
        }
    }
    let fields = format.matches(['%', '{']).count();
    fits(format.len().saturating_add(fields.saturating_mul(each)))
}
