// Sums over warps and CTAs in a fixed order, and the functions between products.
#pragma once
#include "device.cuh"

template <class Combine>
DEVICE float over_warp(float x, Combine combine) {
#pragma unroll
    for (int o = 16; o; o /= 2) x = combine(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

// The sum over a CTA of whole warps, at every thread.
DEVICE float over_cta(float x, float* scratch) {
    x = over_warp(x, [](float a, float b) { return a + b; });
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.f;
    for (int w = 0; w < blockDim.x / WARP; w++) sum += scratch[w];
    return sum;
}

enum Activation { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED };
DEVICE float silu(float x) { return x / (1.f + ex2(-x * LOG2_E)); }
DEVICE float activate(float x, int activation) {
    switch (activation) {
        case GELU: return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
        case GELU_TANH: return x / (1.f + ex2(-2.f * LOG2_E * 0.79788456080286536f * fmaf(0.044715f * x * x, x, x)));
        case RELU: return fmaxf(x, 0.f);
        case RELU_SQUARED: return fmaxf(x, 0.f) * fmaxf(x, 0.f);
        default: return silu(x);
    }
}
