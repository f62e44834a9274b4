//! Plain floating-point numbers, little-endian.

use half::{bf16, f16};

/// IEEE single precision.
pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

/// IEEE half precision.
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f16::from_le_bytes(*bytes).to_f32();
    }
}

/// The upper 16 bits of a single.
pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}
