//! What the kernels of `kernels/relay.cu`, `kernels/residual.cu`, `kernels/streams.cu` and `kernels/recurrent*.cu` are launched with, field by field as they declare it. Pointers are
//! device addresses, 0 for none.

use crate::params::Address;

macro_rules! params {
    ($($name:literal $params:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        #[doc = $name]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $params {
            $(pub $field: $kind),*
        }
    )*};
}

params! {
    "`RelayParams`." RelayParams {
        raw: Address, out: Address, found: Address, row_bytes: u64, rows: i32, channels: i32, over: f32,
    }
    "`HalfParams`." HalfParams { x: Address, y: Address, channels: i32, scale: f32 }
    "`LayerNormParams`." LayerNormParams {
        x: Address, weight: Address, bias: Address, y: Address, channels: i32, eps: f32,
    }
    "`MixParams`." MixParams {
        x: Address, weight: Address, y: Address, channels: i32, eps: f32, keep: f32, scale: f32,
    }
    "`SpanParams`." SpanParams { x: Address, weight: Address, stride: i32, at: i32, width: i32, eps: f32 }
    "`HeadGateParams`." HeadGateParams {
        x: Address, gates: Address, heads: i32, dim: i32, stride: i32, step: i32,
    }
    "`PositionParams`." PositionParams { x: Address, table: Address, positions: Address, channels: i32 }
    "`ScaleParams`." ScaleParams { x: Address, scale: Address, width: i32 }
    "`LayerInputParams`." LayerInputParams {
        x: Address, table: Address, weight: Address, layers: i32, width: i32, eps: f32, scale: f32,
    }
    "`InputGateParams`." InputGateParams {
        gates: Address, inputs: Address, y: Address, width: i32, stride: i32, activation: i32,
    }
    "`LikeParams`." LikeParams { x: Address, to: Address, channels: i32, least: f32 }
    "`MeanParams`." MeanParams { streams: Address, x: Address, count: i32, channels: i32 }
    "`AltUpParams`." AltUpParams {
        streams: Address, x: Address, norm: Address, router: Address, coefficients: Address, output_scale: Address,
        y: Address, count: i32, active: i32, channels: i32, eps: f32,
    }
    "`AddStreamsParams`." AddStreamsParams {
        x: Address, weight: Address, streams: Address, count: i32, channels: i32, eps: f32,
    }
    "`LaurelParams`." LaurelParams {
        x: Address, input: Address, weight: Address, y: Address, channels: i32, accumulate: i32, eps: f32,
        scale: f32,
    }
    "`CutParams`." CutParams { x: Address, channels: i32, stride: i32, deviations: f32 }
    "`ConvParams`." ConvParams {
        x: Address, taps: Address, bias: Address, y: Address, gated: Address, pages: Address, pieces: Address,
        piece_of: Address, refused: Address, channels: i32, kernel: i32, stride: i32, at: i32, times_at: i32,
        gate_at: i32, row_width: i32, activation: i32, state_type: i32, state_count: i32, rows: i32,
    }
    "`StateParams`." StateParams {
        x: Address, steps: Address, betas: Address, rates: Address, dt_bias: Address, skip: Address, y: Address,
        pages: Address, pieces: Address, sequences: Address, products: Address, refused: Address, heads: i32,
        key_heads: i32,
        tiled: i32, key_dim: i32, value_dim: i32, channels: i32, stride: i32, query_at: i32, key_at: i32,
        value_at: i32, row_width: i32, row_keys: i32, row_values: i32, row_decay: i32, state_at: i32, qk_eps: f32,
        least: f32, most: f32, state_type: i32, state_count: i32, stages: i32,
    }
    "`GateNormParams`." GateNormParams {
        x: Address, gates: Address, weight: Address, y: Address, width: i32, stride: i32, gate_first: i32,
        eps: f32, groups: i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_structs() {
        let rows = [
            size_of::<HalfParams>(),
            size_of::<LayerNormParams>(),
            size_of::<MixParams>(),
            size_of::<SpanParams>(),
            size_of::<HeadGateParams>(),
            size_of::<PositionParams>(),
            size_of::<ScaleParams>(),
            size_of::<LayerInputParams>(),
            size_of::<InputGateParams>(),
        ];
        assert_eq!(rows, [24, 40, 40, 32, 32, 32, 24, 40, 40]);
        assert_eq!(size_of::<RelayParams>(), 48);
        let streams = [
            size_of::<LikeParams>(),
            size_of::<MeanParams>(),
            size_of::<AltUpParams>(),
            size_of::<AddStreamsParams>(),
            size_of::<LaurelParams>(),
            size_of::<CutParams>(),
        ];
        assert_eq!(streams, [24, 24, 72, 40, 48, 24]);
        let states = [size_of::<ConvParams>(), size_of::<StateParams>(), size_of::<GateNormParams>()];
        assert_eq!(states, [120, 184, 56]);
    }
}
