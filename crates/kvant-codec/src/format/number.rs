//! The number formats of what is not a code. All little-endian.

/// The number format of scales and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// IEEE binary16, two bytes.
    F16,
    /// IEEE binary32, four bytes.
    F32,
}

impl ScaleFormat {
    /// Bytes of one scale.
    pub fn bytes(self) -> usize {
        match self {
            ScaleFormat::F16 => 2,
            ScaleFormat::F32 => 4,
        }
    }

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ScaleFormat::F16 => "f16",
            ScaleFormat::F32 => "f32",
        }
    }

    /// The largest scale or zero that is stored. An f32 could be larger, but then a decoded vector, or a sum of some,
    /// might not be finite.
    pub(crate) fn max(self) -> f32 {
        match self {
            ScaleFormat::F16 => 65504.0,
            ScaleFormat::F32 => 1e30,
        }
    }

    pub(crate) fn write(self, bytes: &mut [u8], index: usize, x: f32) {
        match self {
            ScaleFormat::F16 => {
                bytes[2 * index..2 * index + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
            }
            ScaleFormat::F32 => bytes[4 * index..4 * index + 4].copy_from_slice(&x.to_le_bytes()),
        }
    }

    pub(crate) fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            ScaleFormat::F16 => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            ScaleFormat::F32 => f32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i])),
        }
    }
}

/// The number format of an exact page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl Element {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    /// The largest magnitude that stays finite.
    pub fn largest(self) -> f32 {
        match self {
            Element::F32 => f32::MAX,
            // Above this, rounding to nearest gives infinity.
            Element::F16 => 65519.996,
            Element::Bf16 => f32::from_bits(0x7F7F_7FFF),
        }
    }

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
        }
    }
}
