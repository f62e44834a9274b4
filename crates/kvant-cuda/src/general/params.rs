//! What the kernels of any codec are launched with, field by field as `kernels/general*.cu*` declare it, which describe them. Pointers are device
//! addresses, 0 for none.

use crate::params::Address;

/// `GeneralParams` of `kernels/general.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GeneralParams {
    pub pages: Address,
    pub table: Address,
    pub exact: Address,
    pub items: Address,
    pub slots: Address,
    pub q: Address,
    pub q_closed: Address,
    pub q_bias: Address,
    pub part_o: Address,
    pub part_ml: Address,
    pub forms: Address,
    pub exact_forms: Address,
    pub tables: Address,
    pub sink_logits: Address,
    pub out: Address,
    pub tiles_of: Address,
    pub heads: i32,
    pub kv_heads: i32,
    pub dim: i32,
    pub key_width: i32,
    pub value_width: i32,
    pub table_stride: i32,
    pub exact_stride: i32,
    pub tiles: i32,
    pub unit: i32,
    pub key_pages: i32,
    pub value_pages: i32,
    pub tile_units: i32,
    pub scale: f32,
    pub cap: f32,
    pub floor: f32,
}

/// `GeneralTileParams` of `kernels/general.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GeneralTileParams {
    pub pages: Address,
    pub table: Address,
    pub forms: Address,
    pub tables: Address,
    pub to: Address,
    pub table_stride: i32,
    pub unit: i32,
    pub key_pages: i32,
    pub value_pages: i32,
    pub key_width: i32,
    pub value_width: i32,
    pub first: i32,
}

/// `GeneralQueryParams` of `kernels/general.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GeneralQueryParams {
    pub q: Address,
    pub to: Address,
    pub bias: Address,
    pub forms: Address,
    pub refused: Address,
    pub heads: i32,
    pub kv_heads: i32,
    pub dim: i32,
    pub width: i32,
}

/// `GeneralEncodeParams` of `kernels/general_encode.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GeneralEncodeParams {
    pub pages: Address,
    pub jobs: [Address; 2],
    pub forms: Address,
    pub exact_forms: Address,
    pub tables: Address,
    pub refused: Address,
    pub room: Address,
    pub room_floats: u64,
    pub counts: [i32; 2],
    pub first: i32,
    pub part: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_structs() {
        let general = [
            size_of::<GeneralParams>(),
            size_of::<GeneralTileParams>(),
            size_of::<GeneralQueryParams>(),
            size_of::<GeneralEncodeParams>(),
        ];
        assert_eq!(general, [192, 72, 56, 88]);
    }
}
