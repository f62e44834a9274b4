//! Metadata values as they lie in the file, decoded when asked for.

use super::cursor::Cursor;
use crate::error::{LoadError, Result};

/// Arrays of arrays deeper than this are refused; real files use one level.
const MAX_DEPTH: usize = 8;

/// The thirteen types of metadata values, numbered as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Single precision.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// UTF-8 text.
    String = 8,
    /// Values of one type.
    Array = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// Signed, 64 bits.
    I64 = 11,
    /// Double precision.
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let code = cursor.u32()?;
        let known = usize::try_from(code).ok().and_then(|i| Self::ALL.get(i).copied());
        known.ok_or_else(|| LoadError::malformed(format!("there is no value type {code}")))
    }

    /// Bytes per value, for those of fixed size whose every bit pattern is valid.
    fn plain_size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Bool | Self::String | Self::Array => None,
        }
    }
}

/// One metadata value; text and arrays borrow from the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// UTF-8 text.
    String(&'a str),
    /// Values of one type.
    Array(Array<'a>),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

impl<'a> Value<'a> {
    /// Reads and checks a value of `kind`; an array is walked to its end, not collected.
    pub(super) fn read(cursor: &mut Cursor<'a>, kind: ValueType) -> Result<Self> {
        Self::read_nested(cursor, kind, 0)
    }

    fn read_nested(cursor: &mut Cursor<'a>, kind: ValueType, depth: usize) -> Result<Self> {
        Ok(match kind {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Self::U32(cursor.u32()?),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Self::U64(cursor.u64()?),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match u8::from_le_bytes(cursor.array()?) {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                other => return Err(LoadError::malformed(format!("{other} is not a truth value (0 or 1)"))),
            },
            ValueType::String => Self::String(cursor.string()?),
            ValueType::Array => Self::Array(Array::read(cursor, depth)?),
        })
    }

    /// The type, as a person would name it in a message.
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {} {:?}", array.len, array.element),
            other => format!("{:?}", other.value_type()),
        }
    }

    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }
}

/// An array that still lies in the file. It was walked once when the file was opened, so it is known to fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
    depth: usize,
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, depth: usize) -> Result<Self> {
        if depth >= MAX_DEPTH {
            return Err(LoadError::malformed(format!("arrays are nested more than {MAX_DEPTH} deep")));
        }
        let element = ValueType::read(cursor)?;
        let count = cursor.u64()?;
        let mut body = *cursor;
        if let Some(size) = element.plain_size() {
            // An overflowing product is certainly more than is left; `take` refuses it.
            cursor.take(count.saturating_mul(size))?;
        } else {
            // Every element takes at least one byte, so a false count ends in an error, not in a long loop.
            for _ in 0..count {
                Value::read_nested(cursor, element, depth + 1)?;
            }
        }
        let len = usize::try_from(count)
            .map_err(|_| LoadError::malformed(format!("an array of {count} values cannot be addressed")))?;
        let bytes = body.take((cursor.position() - body.position()) as u64)?;
        Ok(Self { element, len, bytes, depth })
    }

    /// Type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, decoded one by one.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (element, depth) = (self.element, self.depth + 1);
        let mut cursor = Cursor::new(self.bytes);
        (0..self.len).map_while(move |_| Value::read_nested(&mut cursor, element, depth).ok())
    }
}
