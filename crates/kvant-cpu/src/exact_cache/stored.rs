//! The number types of an exact cache.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// A number type the exact cache can store.
pub trait Stored: Copy + Send + Sync + 'static {
    /// Appends values, rounding to the stored type.
    fn push(store: &mut Vec<Self>, values: &[f32]);
    /// The stored values as f32, by way of `scratch` where they need converting.
    fn read<'a>(store: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];
}

impl Stored for f32 {
    fn push(store: &mut Vec<Self>, values: &[f32]) {
        store.extend_from_slice(values);
    }

    fn read<'a>(store: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        store
    }
}

impl Stored for f16 {
    fn push(store: &mut Vec<Self>, values: &[f32]) {
        let start = store.len();
        store.resize(start + values.len(), f16::ZERO);
        store[start..].convert_from_f32_slice(values);
    }

    fn read<'a>(store: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(store.len(), 0.0);
        store.convert_to_f32_slice(scratch);
        scratch
    }
}
