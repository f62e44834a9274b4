//! What kernels are launched with, field by field as `kernels/*.cuh` declare it. Pointers are device addresses, 0 for none.

/// A device address.
pub type Address = u64;

/// `AttentionParams` of `kernels/attention.cuh`, where the fields are described.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/attention.cuh describes them")]
pub struct AttentionParams {
    pub pages: Address,
    pub table: Address,
    pub exact: Address,
    pub items: Address,
    pub slots: Address,
    pub q: Address,
    pub q_sinks: Address,
    pub part_o: Address,
    pub part_ml: Address,
    pub signs: Address,
    pub sink_logits: Address,
    pub out: Address,
    pub n_items: i32,
    pub rows: i32,
    pub kv_heads: i32,
    pub group: i32,
    pub tile_bits: i32,
    pub table_stride: i32,
    pub exact_stride: i32,
    pub step_items: i32,
    pub step_columns: i32,
    pub scale: f32,
    pub cap: f32,
    pub zero: [i32; 4],
    pub floor: f32,
    pub q_closed: Address,
    pub q_bias: Address,
    pub widths: Address,
}

/// `ReduceParams` of `kernels/reduce.cuh`: results may be bf16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/reduce.cuh describes them")]
pub struct ReduceParams {
    pub attention: AttentionParams,
    pub bf16: i32,
    pub unused: i32,
}

/// Query heads in a column tile of the tensor cores.
pub const HEAD_TILE: usize = 8;

/// Columns that a warp attends for at once where a sequence brings several query tokens, or heads have many channels.
pub const fn many_columns(dim: usize) -> usize {
    if dim <= 128 { 2 * HEAD_TILE } else { HEAD_TILE }
}

/// Rows of a tile of `kernels/attention_tile.cu`: query heads of query tokens.
pub const TILE_ROWS: usize = 128;

/// The kernel that reads pages of this codec for tiles of a prompt; only some cards and codecs have it.
pub fn tile_kernel(codec: &str, dim: usize) -> String {
    format!("attend_tile_{codec}_d{dim}")
}

impl AttentionParams {
    /// Sets scale and cap for scores that are multiplied by `scale` and, with a soft cap c, become c·tanh(s/c).
    pub fn set_scoring(&mut self, scale: f32, soft_cap: Option<f32>) {
        let log2_e = std::f32::consts::LOG2_E;
        (self.scale, self.cap) = match soft_cap {
            None => (scale * log2_e, 0.0),
            Some(cap) => (2.0 * log2_e * scale / cap, cap * log2_e),
        };
    }
}

/// `RouteParams` of `kernels/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/moe.cu describes them")]
pub struct RouteParams {
    pub logits: Address,
    pub bias: Address,
    pub expert_scale: Address,
    pub chosen: Address,
    pub shares: Address,
    pub experts: i32,
    pub count: i32,
    pub score: i32,
    pub groups: i32,
    pub kept: i32,
    pub best: i32,
    pub renormalise: i32,
    pub epsilon: f32,
    pub least: f32,
    pub logit_scale: f32,
    pub scale: f32,
}

/// `GroupParams` of `kernels/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/moe.cu describes them")]
pub struct GroupParams {
    pub chosen: Address,
    pub places: Address,
    pub sources: Address,
    pub owners: Address,
    pub groups: Address,
    pub pairs: i32,
    pub count: i32,
    pub experts: i32,
    pub size: i32,
    pub most: i32,
}

/// `ExpertBiasParams` of `kernels/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/moe.cu describes them")]
pub struct ExpertBiasParams {
    pub y: Address,
    pub bias: Address,
    pub owners: Address,
    pub width: i32,
}

/// `CombineParams` of `kernels/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/moe.cu describes them")]
pub struct CombineParams {
    pub experts: Address,
    pub shares: Address,
    pub places: Address,
    pub y: Address,
    pub width: i32,
    pub count: i32,
    pub sigmoid: i32,
    pub accumulate: i32,
}

/// `EncodeParams` of `kernels/encode.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/encode.cu describes them")]
pub struct EncodeParams {
    pub pages: Address,
    pub jobs: Address,
    pub signs: Address,
    pub refused: Address,
}

/// `PlannedEncodeParams` of `kernels/encode_klt.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/encode_klt.cu describes them")]
pub struct PlannedEncodeParams {
    pub pages: Address,
    pub jobs: Address,
    pub heads: Address,
    pub bases: Address,
    pub widths: Address,
    pub refused: Address,
}

/// `TurnParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct TurnParams {
    pub y: Address,
    pub bias: Address,
    pub bases: Address,
}

/// `AppendTurnParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct AppendTurnParams {
    pub append: AppendParams,
    pub turn: TurnParams,
}

/// `AppendParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct AppendParams {
    pub qkv: Address,
    pub rotations: Address,
    pub q_norm: Address,
    pub k_norm: Address,
    pub v_norm: Address,
    pub gains: Address,
    pub q: Address,
    pub pages: Address,
    pub exact: Address,
    pub targets: Address,
    pub refused: Address,
    pub heads: i32,
    pub kv_heads: i32,
    pub exact_stride: i32,
    pub pairs: i32,
    pub neighbours: i32,
    pub norm_last: i32,
    pub stride: i32,
    pub q_step: i32,
    pub kv_step: i32,
    pub k_at: i32,
    pub v_at: i32,
    pub q_eps: f32,
    pub k_eps: f32,
    pub v_eps: f32,
    pub key_scale: f32,
    pub k_element: i32,
    pub v_element: i32,
}

/// `NormParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct NormParams {
    pub x: Address,
    pub weight: Address,
    pub y: Address,
    pub channels: i32,
    pub eps: f32,
}

/// `ActivateParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct ActivateParams {
    pub inner: Address,
    pub y: Address,
    pub channels: i32,
    pub activation: i32,
    pub gated: i32,
    pub gate_scale: f32,
    pub limit: f32,
    pub alpha: f32,
}

/// `EmbedParams` of `kernels/linear.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/linear.cu describes them")]
pub struct EmbedParams {
    pub weights: Address,
    pub ids: Address,
    pub out: Address,
    pub channels: i32,
    pub scale: f32,
}

/// `BiasParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct BiasParams {
    pub y: Address,
    pub bias: Address,
    pub width: i32,
}

/// `ColumnsParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct ColumnsParams {
    pub x: Address,
    pub y: Address,
    pub width: i32,
    pub stride: i32,
    pub at: i32,
}

/// `GatherParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct GatherParams {
    pub x: Address,
    pub rows: Address,
    pub y: Address,
    pub channels: i32,
}

/// `ClearParams` of `kernels/rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/rows.cu describes them")]
pub struct ClearParams {
    pub pages: Address,
    pub list: Address,
}

/// `StrictParams` of `kernels/strict.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/strict.cu describes them")]
pub struct StrictParams {
    pub pages: Address,
    pub jobs: Address,
    pub tokens: Address,
    pub signs: Address,
}

/// `LatentParams` of `kernels/latent.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent.cuh describes them")]
pub struct LatentParams {
    pub pages: Address,
    pub table: Address,
    pub exact: Address,
    pub items: Address,
    pub slots: Address,
    pub q: Address,
    pub q_closed: Address,
    pub part_o: Address,
    pub part_ml: Address,
    pub signs: Address,
    pub out: Address,
    pub n_items: i32,
    pub heads: i32,
    pub latent: i32,
    pub rotated: i32,
    pub table_stride: i32,
    pub exact_stride: i32,
    pub key_bits: i32,
    pub value_bits: i32,
    pub sink_tokens: i32,
    pub tiles: i32,
    pub kv_heads: i32,
    pub scale: f32,
    pub floor: f32,
}

/// `LatentQueryParams` of `kernels/latent.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent.cu describes them")]
pub struct LatentQueryParams {
    pub q: Address,
    pub absorbed: Address,
    pub rotations: Address,
    pub gains: Address,
    pub signs: Address,
    pub to: Address,
    pub to_closed: Address,
    pub refused: Address,
    pub heads: i32,
    pub nope: i32,
    pub latent: i32,
    pub rotated: i32,
    pub pairs: i32,
    pub neighbours: i32,
}

/// `LatentRowParams` of `kernels/latent_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent_rows.cu describes them")]
pub struct LatentRowParams {
    pub q: Address,
    pub both: Address,
    pub norm: Address,
    pub rotations: Address,
    pub gains: Address,
    pub plain: Address,
    pub pages: Address,
    pub exact: Address,
    pub targets: Address,
    pub refused: Address,
    pub heads: i32,
    pub nope: i32,
    pub latent: i32,
    pub rotated: i32,
    pub pairs: i32,
    pub neighbours: i32,
    pub exact_stride: i32,
    pub sink_tokens: i32,
    pub eps: f32,
}

/// `FoldedRowParams` of `kernels/latent_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent_rows.cu describes them")]
pub struct FoldedRowParams {
    pub qkv: Address,
    pub rotations: Address,
    pub q_norm: Address,
    pub k_norm: Address,
    pub v_norm: Address,
    pub gains: Address,
    pub by: Address,
    pub turning: Address,
    pub signs: Address,
    pub to: Address,
    pub to_closed: Address,
    pub pages: Address,
    pub exact: Address,
    pub targets: Address,
    pub refused: Address,
    pub heads: i32,
    pub kv_heads: i32,
    pub latent: i32,
    pub rotated: i32,
    pub pairs: i32,
    pub neighbours: i32,
    pub stride: i32,
    pub exact_stride: i32,
    pub sink_tokens: i32,
    pub q_eps: f32,
    pub k_eps: f32,
    pub v_eps: f32,
}

/// `LatentValueParams` of `kernels/latent_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent_rows.cu describes them")]
pub struct LatentValueParams {
    pub x: Address,
    pub y: Address,
    pub width: i32,
}

/// `LatentEncodeParams` of `kernels/latent_rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/latent_rows.cu describes them")]
pub struct LatentEncodeParams {
    pub pages: Address,
    pub jobs: Address,
    pub signs: Address,
    pub refused: Address,
    pub latent: i32,
    pub rotated: i32,
    pub key_bits: i32,
    pub value_bits: i32,
}

/// `TopParams` of `kernels/top.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/top.cu describes them")]
pub struct TopParams {
    pub logits: Address,
    pub keys: Address,
    pub out: Address,
    pub headers: Address,
    pub n: i32,
    pub count: i32,
    pub scale: f32,
}

/// `MassParams` of `kernels/top.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/top.cu describes them")]
pub struct MassParams {
    pub logits: Address,
    pub top: Address,
    pub temperatures: Address,
    pub headers: Address,
    pub n: i32,
    pub count: i32,
    pub scale: f32,
    pub unused: i32,
}

/// `Tensor` of `kernels/tensors.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/tensors.cu describes them")]
pub struct TensorParams {
    pub data: Address,
    pub batch: i64,
    pub head: i64,
    pub token: i64,
    pub number: i32,
    pub zero: i32,
}

/// `FromTensorsParams` of `kernels/tensors.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/tensors.cu describes them")]
pub struct FromTensorsParams {
    pub q: TensorParams,
    pub k: TensorParams,
    pub v: TensorParams,
    pub places: Address,
    pub queries: Address,
    pub pages: Address,
    pub exact: Address,
    pub targets: Address,
    pub refused: Address,
    pub heads: i32,
    pub kv_heads: i32,
    pub exact_stride: i32,
}

/// `ToTensorParams` of `kernels/tensors.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "kernels/tensors.cu describes them")]
pub struct ToTensorParams {
    pub x: Address,
    pub y: TensorParams,
    pub places: Address,
    pub heads: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_structs() {
        let size = [size_of::<AttentionParams>(), size_of::<EncodeParams>(), size_of::<AppendParams>()];
        assert_eq!(size, [184, 32, 160]);
        let planned = (size_of::<PlannedEncodeParams>(), size_of::<AppendTurnParams>());
        assert_eq!(planned, (48, size_of::<AppendParams>() + 24));
        let latents = [
            size_of::<LatentParams>(),
            size_of::<LatentQueryParams>(),
            size_of::<LatentRowParams>(),
            size_of::<FoldedRowParams>(),
            size_of::<LatentValueParams>(),
            size_of::<LatentEncodeParams>(),
        ];
        assert_eq!(latents, [144, 88, 120, 168, 24, 48]);
        let rows = [
            size_of::<NormParams>(),
            size_of::<ActivateParams>(),
            size_of::<EmbedParams>(),
            size_of::<BiasParams>(),
            size_of::<ColumnsParams>(),
            size_of::<GatherParams>(),
            size_of::<ClearParams>(),
        ];
        assert_eq!(rows, [32, 40, 32, 24, 32, 32, 16]);
        let experts = [
            size_of::<RouteParams>(),
            size_of::<GroupParams>(),
            size_of::<ExpertBiasParams>(),
            size_of::<CombineParams>(),
        ];
        assert_eq!(experts, [88, 64, 32, 48]);
        assert_eq!(
            (size_of::<TopParams>(), size_of::<MassParams>(), size_of::<StrictParams>()),
            (48, 48, 32)
        );
        let tensors =
            [size_of::<TensorParams>(), size_of::<FromTensorsParams>(), size_of::<ToTensorParams>()];
        assert_eq!(tensors, [40, 184, 64]);
        assert_eq!((size_of::<crate::plan::Slots>(), size_of::<crate::plan::Item>()), (8, 48));
    }
}
