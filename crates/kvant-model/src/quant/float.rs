//! Plain floating-point numbers, little-endian.

use super::widen;
use half::bf16;

/// IEEE single precision.
#[inline(always)]
pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

/// IEEE half precision.
#[inline(always)]
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = widen(u16::from_le_bytes(*bytes));
    }
}

/// The upper 16 bits of a single.
#[inline(always)]
pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}
