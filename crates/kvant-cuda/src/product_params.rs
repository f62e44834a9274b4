//! What the kernels of products are launched with, field by field as `kernels/*.cu*` declare it. Pointers are device addresses, 0 for none.

use crate::params::Address;

/// `LinearParams` of `kernels/weights.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/weights.cuh describes them")]
pub struct LinearParams {
    pub weights: Address,
    pub x: Address,
    pub y: Address,
    pub rows: i32,
    pub channels: i32,
    pub tokens: i32,
    pub accumulate: i32,
    pub scale: f32,
    pub gated: i32,
    pub gate_scale: f32,
    pub eps: f32,
    pub norm: Address,
}

/// `WideParams` of `kernels/wide.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/wide.cu describes them")]
pub struct WideParams {
    pub product: LinearParams,
    pub token_tiles: i32,
    pub whole: i32,
    pub tiles: i32,
    pub apart: i32,
}

/// `SegmentsParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct SegmentsParams {
    pub sums: Address,
    pub y: Address,
    pub segments: i32,
    pub numbers: i32,
    pub accumulate: i32,
    pub scale: f32,
}

/// `GroupedParams` of `kernels/weights.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/weights.cuh describes them")]
pub struct GroupedParams {
    pub product: LinearParams,
    pub groups: Address,
    pub sources: Address,
    pub expert_bytes: u64,
}

/// `WideGroupsParams` of `kernels/wide_groups.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/wide_groups.cu describes them")]
pub struct WideGroupsParams {
    pub product: LinearParams,
    pub groups: Address,
    pub panels: i32,
    pub tiles: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_structs() {
        let size = [
            size_of::<LinearParams>(),
            size_of::<WideParams>(),
            size_of::<GroupedParams>(),
            size_of::<SegmentsParams>(),
            size_of::<WideGroupsParams>(),
        ];
        assert_eq!(size, [64, 80, 88, 32, 80]);
    }
}
