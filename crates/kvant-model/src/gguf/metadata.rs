//! The key-value part of a GGUF file, with getters that check type, range and sense.

use super::cursor::Cursor;
use super::value::{Value, ValueType};
use crate::bytes::Bytes;
use crate::error::{LoadError, Result};
use std::collections::HashMap;

/// Keys and values of a GGUF file. Values are decoded from the mapped bytes on each access, so a vocabulary of
/// a quarter million strings costs nothing until someone collects it, and then at most twice its size on disk.
#[derive(Debug, Clone)]
pub struct Metadata {
    bytes: Bytes,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Entry {
    key: String,
    kind: ValueType,
    /// Where the value starts.
    at: usize,
}

impl Metadata {
    /// Reads `count` pairs at the cursor, which walks `bytes`.
    pub(super) fn read(bytes: &Bytes, cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        let mut metadata = Self { bytes: bytes.clone(), entries: Vec::new(), by_key: HashMap::new() };
        for index in 0..count {
            let key = cursor.string().map_err(|e| LoadError::malformed(format!("key {index}: {e}")))?;
            let entry = (|| {
                let kind = ValueType::read(cursor)?;
                let at = cursor.position();
                Value::read(cursor, kind)?;
                Ok(Entry { key: key.to_owned(), kind, at })
            })()
            .map_err(|e: LoadError| LoadError::malformed(format!("key {key:?}: {e}")))?;
            if metadata.by_key.insert(key.to_owned(), metadata.entries.len()).is_some() {
                return Err(LoadError::malformed(format!("key {key:?} is given twice")));
            }
            metadata.entries.push(entry);
        }
        Ok(metadata)
    }

    /// All pairs, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|entry| Some((entry.key.as_str(), self.decode(entry)?)))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when the file has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The raw value of a key.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.by_key.get(key).and_then(|&index| self.decode(&self.entries[index]))
    }

    /// The value of an optional key as `T`: `None` when absent, an error naming the key when it is of another
    /// type, out of range or not a number.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Ok(converted) => Ok(Some(converted)),
            Err(why) => Err(LoadError::mismatch(format!("key {key:?}: {why}"))),
        }
    }

    /// The value of a key that must be there.
    pub fn need<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| LoadError::missing(format!("key {key:?} is missing")))
    }

    /// The value of an optional key, or `default`.
    pub fn get_or<'a, T: FromValue<'a>>(&'a self, key: &str, default: T) -> Result<T> {
        Ok(self.get(key)?.unwrap_or(default))
    }

    /// A hyper-parameter that is written once for all layers or as an array with one value for each.
    pub fn per_layer<'a, T: FromValue<'a> + Clone>(
        &'a self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<T>>>
    where
        Vec<T>: FromValue<'a>,
    {
        match self.value(key) {
            Some(Value::Array(_)) => {
                let values: Vec<T> = self.need(key)?;
                if values.len() != layers {
                    return Err(LoadError::mismatch(format!(
                        "key {key:?} has {} values for {layers} layers",
                        values.len()
                    )));
                }
                Ok(Some(values))
            }
            _ => Ok(self.get::<T>(key)?.map(|value| vec![value; layers])),
        }
    }

    /// The architecture the file names, which is also the prefix of its hyper-parameters.
    pub fn architecture(&self) -> Result<&str> {
        self.need("general.architecture")
    }

    fn decode(&self, entry: &Entry) -> Option<Value<'_>> {
        let mut cursor = Cursor::new(self.bytes.get(entry.at..)?);
        Value::read(&mut cursor, entry.kind).ok()
    }
}

/// Types a metadata value can be read as. Integers convert from every integer type when the number fits;
/// floating-point numbers must be finite, except that arrays may hold infinities (never NaN).
pub trait FromValue<'a>: Sized {
    /// Converts, or says in words why it cannot.
    fn from_value(value: Value<'a>) -> Result<Self, String>;
}

fn wrong(value: &Value<'_>, wanted: &str) -> String {
    format!("expected {wanted}, found {}", value.type_name())
}

fn integer(value: Value<'_>) -> Result<i128, String> {
    Ok(match value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        other => return Err(wrong(&other, "an integer")),
    })
}

fn number(value: Value<'_>) -> Result<f64, String> {
    match value {
        Value::F32(v) => Ok(v.into()),
        Value::F64(v) => Ok(v),
        other => integer(other).map(|v| v as f64).map_err(|_| wrong(&other, "a number")),
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl<'a> FromValue<'a> for $kind {
            fn from_value(value: Value<'a>) -> Result<Self, String> {
                let v = integer(value)?;
                Self::try_from(v).map_err(|_| format!("{v} is out of range ({} to {})", Self::MIN, Self::MAX))
            }
        }

        impl<'a> FromValue<'a> for Vec<$kind> {
            fn from_value(value: Value<'a>) -> Result<Self, String> {
                elements(value, "an array of integers", <$kind>::from_value)
            }
        }
    )*};
}

integers!(u32, i32, u64, i64, usize);

/// Collects an array. Its length was checked against the file, so the allocation is bounded by the file's size
/// times the widest element over one byte.
fn elements<'a, T>(
    value: Value<'a>,
    wanted: &str,
    convert: impl Fn(Value<'a>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let Value::Array(array) = value else { return Err(wrong(&value, wanted)) };
    array.iter().enumerate().map(|(i, v)| convert(v).map_err(|why| format!("element {i}: {why}"))).collect()
}

impl<'a> FromValue<'a> for f32 {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        let v = number(value)? as f32;
        if v.is_finite() { Ok(v) } else { Err(format!("{v} is not a finite number")) }
    }
}

impl<'a> FromValue<'a> for f64 {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        let v = number(value)?;
        if v.is_finite() { Ok(v) } else { Err(format!("{v} is not a finite number")) }
    }
}

impl<'a> FromValue<'a> for Vec<f32> {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        elements(value, "an array of numbers", |v| match number(v)? as f32 {
            v if v.is_nan() => Err("is not a number".to_owned()),
            v => Ok(v),
        })
    }
}

impl<'a> FromValue<'a> for bool {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::Bool(v) => Ok(v),
            other => Err(wrong(&other, "a truth value")),
        }
    }
}

impl<'a> FromValue<'a> for Vec<bool> {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        elements(value, "an array of truth values", bool::from_value)
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::String(v) => Ok(v),
            other => Err(wrong(&other, "a string")),
        }
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        elements(value, "an array of strings", <&str>::from_value)
    }
}
