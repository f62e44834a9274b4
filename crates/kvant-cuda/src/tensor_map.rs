//! What the copy engine brings X.

use crate::device::{OpenError, failed};
use crate::product_params::LinearParams;
use crate::weights::{TILE_ROWS, WeightType};
use cudarc::driver::sys;

/// Tiles of 16 rows that a CTA takes at once.
const TILES: u32 = 8;

/// `WideMaps` of `kernels/wide.cuh`: activations, parts of weights, and what parts of a block share.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WideMaps([sys::CUtensorMap; 3]);

/// The maps of a product whose activations come in boxes of so many tokens and 64 channels.
pub(crate) fn wide_maps(
    of: &LinearParams,
    kind: WeightType,
    box_tokens: usize,
) -> Result<WideMaps, OpenError> {
    use sys::CUtensorMapDataType_enum::{CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT64};
    use sys::CUtensorMapSwizzle_enum::{CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE};
    let [rows, channels, tokens] = [of.rows, of.channels, of.tokens].map(|n| n as usize);
    // Tokens past the last one read as zeros.
    let x = Plane {
        address: of.x,
        number: CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        swizzle: CU_TENSOR_MAP_SWIZZLE_128B,
        dims: [channels, tokens],
        row_bytes: 2 * channels,
        boxes: [64, box_tokens as u32],
    };
    let tiles = rows.div_ceil(TILE_ROWS);
    let row_bytes = kind.packed_bytes(TILE_ROWS, channels);
    let (part, shared) = kind.device_part();
    let weights = |bytes: usize| Plane {
        address: of.weights,
        number: CU_TENSOR_MAP_DATA_TYPE_UINT64,
        swizzle: CU_TENSOR_MAP_SWIZZLE_NONE,
        dims: [row_bytes / 8, tiles],
        row_bytes,
        boxes: [bytes as u32 / 8, TILES],
    };
    let parts = weights(part).encode()?;
    let shared = if shared > 0 { weights(shared).encode()? } else { parts };
    Ok(WideMaps([x.encode()?, parts, shared]))
}

/// Rows of numbers that are copied in boxes; dimensions and boxes from the fastest to the slowest.
struct Plane {
    address: u64,
    number: sys::CUtensorMapDataType,
    swizzle: sys::CUtensorMapSwizzle,
    dims: [usize; 2],
    row_bytes: usize,
    boxes: [u32; 2],
}

impl Plane {
    fn encode(&self) -> Result<sys::CUtensorMap, OpenError> {
        use sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as ZEROS;
        use sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE as PLAIN;
        use sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B as PROMOTION;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (dims, strides) = (self.dims.map(|n| n as u64), [self.row_bytes as u64]);
        // SAFETY: the map is written, the arrays have the two dimensions and the one stride that are named, and no memory is read yet.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                self.number,
                2,
                self.address as *mut std::ffi::c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                self.boxes.as_ptr(),
                [1, 1].as_ptr(),
                PLAIN,
                self.swizzle,
                PROMOTION,
                ZEROS,
            )
        };
        made.result().map_err(failed("making a tensor map"))?;
        Ok(map)
    }
}
