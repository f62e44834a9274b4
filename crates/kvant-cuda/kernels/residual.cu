// What is done to rows around a block besides the usual norm: layer norms, rows that are not normed, sums of blocks side by side, norms of
// many heads at once, output gates, learned positions, and inputs of each layer's own. One CTA per row, or part of one.
#include "functions.cuh"

struct HalfParams {
    const float* x;  // (rows, channels)
    u16* y;          // (rows, channels) f16
    int channels;
    float scale;
};
// Rows that are not normed. Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) to_half(const __grid_constant__ HalfParams p) {
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.channels; i += gridDim.y * blockDim.x) p.y[row + i] = f32_to_f16(p.scale * p.x[row + i]);
}

struct LayerNormParams {
    const float *x, *weight, *bias;  // (rows, channels), (channels), (channels) or null
    u16* y;                          // (rows, channels) f16
    int channels;
    float eps;
};
extern "C" __global__ void __launch_bounds__(512) layer_norm(const __grid_constant__ LayerNormParams p) {
    __shared__ float sums[16], squares[16];
    pdl_wait();
    pdl_trigger();
    const float* x = p.x + (u64)blockIdx.x * p.channels;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum += x[i];
    const float mean = over_cta(sum, sums) / p.channels;
    float square = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) square = fmaf(x[i] - mean, x[i] - mean, square);
    const float r = rsqrtf(over_cta(square, squares) / p.channels + p.eps);
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x)
        p.y[(u64)blockIdx.x * p.channels + i] = f32_to_f16(fmaf((x[i] - mean) * r, __ldg(p.weight + i), p.bias ? __ldg(p.bias + i) : 0.f));
}

struct MixParams {
    const float* x;       // (rows, channels), or null
    const float* weight;  // (channels) of an RMS norm of x, or null for none
    float* y;             // (rows, channels)
    int channels;
    float eps, keep, scale;
};
// y = scale (keep y + norm(x)); y is not read where nothing of it is kept.
extern "C" __global__ void __launch_bounds__(512) mix_rows(const __grid_constant__ MixParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const float* x = p.x + (u64)blockIdx.x * p.channels;
    float* y = p.y + (u64)blockIdx.x * p.channels;
    float r = 1.f;
    if (p.weight) {
        float sum = 0.f;
        for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
        r = rsqrtf(over_cta(sum, scratch) / p.channels + p.eps);
    }
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        float v = p.x ? x[i] : 0.f;
        if (p.weight) v = v * r * __ldg(p.weight + i);
        y[i] = p.scale * (p.keep == 0.f ? v : fmaf(p.keep, y[i], v));
    }
}

struct SpanParams {
    float* x;             // (rows, stride)
    const float* weight;  // (width)
    int stride, at, width;
    float eps;
};
// An RMS norm of columns at … at + width, as of all heads at once.
extern "C" __global__ void __launch_bounds__(512) norm_span(const __grid_constant__ SpanParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    float* x = p.x + (u64)blockIdx.x * p.stride + p.at;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.width + p.eps);
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) x[i] = x[i] * r * __ldg(p.weight + i);
}

DEVICE float sigmoid(float x) { return 1.f / (1.f + ex2(-x * LOG2_E)); }

struct HeadGateParams {
    u16* x;              // (rows, heads, dim) f16
    const float* gates;  // (rows, stride): those of a head are `step` numbers after those of the one before
    int heads, dim, stride, step;
};
// Grid: (rows, heads).
extern "C" __global__ void __launch_bounds__(128) gate_heads(const __grid_constant__ HeadGateParams p) {
    pdl_wait();
    pdl_trigger();
    u16* x = p.x + ((u64)blockIdx.x * p.heads + blockIdx.y) * p.dim;
    const float* gates = p.gates + (u64)blockIdx.x * p.stride + blockIdx.y * p.step;
    for (int i = threadIdx.x; i < p.dim; i += blockDim.x) x[i] = f32_to_f16(f16_to_f32(x[i]) * sigmoid(gates[i]));
}

struct PositionParams {
    float* x;              // (rows, channels)
    const float* table;    // (positions, channels)
    const int* positions;  // (rows)
    int channels;
};
extern "C" __global__ void __launch_bounds__(256) add_positions(const __grid_constant__ PositionParams p) {
    pdl_wait();
    pdl_trigger();
    const float* own = p.table + (u64)__ldg(p.positions + blockIdx.x) * p.channels;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) p.x[(u64)blockIdx.x * p.channels + i] += __ldg(own + i);
}

struct ScaleParams {
    float* x;            // (rows, width)
    const float* scale;  // (width)
    int width;
};
// Multipliers of columns. Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) scale_columns(const __grid_constant__ ScaleParams p) {
    pdl_wait();
    pdl_trigger();
    float* x = p.x + (u64)blockIdx.x * p.width;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += gridDim.y * blockDim.x) x[i] *= __ldg(p.scale + i);
}

struct LayerInputParams {
    float* x;             // (rows, layers, width): the projection, then the inputs
    const float* table;   // (rows, layers, width)
    const float* weight;  // (width)
    int layers, width;
    float eps, scale;
};
// x = scale (norm(x) + table), layer by layer. Grid: (rows, layers).
extern "C" __global__ void __launch_bounds__(128) layer_inputs(const __grid_constant__ LayerInputParams p) {
    __shared__ float scratch[4];
    pdl_wait();
    pdl_trigger();
    const u64 at = ((u64)blockIdx.x * p.layers + blockIdx.y) * p.width;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) sum = fmaf(p.x[at + i], p.x[at + i], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.width + p.eps);
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.x[at + i] = p.scale * fmaf(p.x[at + i] * r, __ldg(p.weight + i), p.table[at + i]);
}

struct InputGateParams {
    const float* gates;   // (rows, width)
    const float* inputs;  // (rows, stride)
    u16* y;               // (rows, width) f16
    int width, stride, activation;
};
extern "C" __global__ void __launch_bounds__(128) gate_inputs(const __grid_constant__ InputGateParams p) {
    pdl_wait();
    pdl_trigger();
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const u64 at = (u64)blockIdx.x * p.width + i;
        p.y[at] = f32_to_f16(activate(p.gates[at], p.activation) * p.inputs[(u64)blockIdx.x * p.stride + i]);
    }
}
