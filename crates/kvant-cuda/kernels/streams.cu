// Several residual streams side by side (AltUp), a linear layer of low rank around which its input is added (LAuReL), and gates that count from
// a part of their row on (Gemma 3n). One CTA per row; all of it in f32, coefficients too, so that a token has the same bits in every pass.
#include "functions.cuh"

constexpr int MOST_STREAMS = 8;

// Sums of several products over a CTA of whole warps, at every thread.
template <int N>
DEVICE void over_cta_all(float (&x)[N], int count, float* scratch) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= count) break;
        x[i] = over_warp(x[i], [](float a, float b) { return a + b; });
        if (threadIdx.x % WARP == 0) scratch[i * 32 + threadIdx.x / WARP] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= count) break;
        x[i] = 0.f;
        for (int w = 0; w < blockDim.x / WARP; w++) x[i] += scratch[i * 32 + w];
    }
    __syncthreads();
}

struct LikeParams {
    float* x;         // (rows, channels)
    const float* to;  // (rows, channels)
    int channels;
    float least;      // of a mean square that divides
};
// Rows rescaled to the root mean square of others.
extern "C" __global__ void __launch_bounds__(512) rescale_like(const __grid_constant__ LikeParams p) {
    __shared__ float own_sums[16], to_sums[16];
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels;
    float own = 0.f, to = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) own = fmaf(p.x[row + i], p.x[row + i], own), to = fmaf(p.to[row + i], p.to[row + i], to);
    own = over_cta(own, own_sums), to = over_cta(to, to_sums);
    const float by = sqrtf(to / p.channels) / sqrtf(fmaxf(own / p.channels, p.least));
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) p.x[row + i] *= by;
}

struct MeanParams {
    const float* streams;  // (streams, rows, channels)
    float* x;              // (rows, channels)
    int count, channels;
};
// The mean of all streams.
extern "C" __global__ void __launch_bounds__(512) mean_streams(const __grid_constant__ MeanParams p) {
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels, all = (u64)gridDim.x * p.channels;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        float sum = p.streams[row + i];
        for (int n = 1; n < p.count; n++) sum += p.streams[n * all + row + i];
        p.x[row + i] = sum / p.count;
    }
}

struct AltUpParams {
    float* streams;             // (streams, rows, channels)
    float* x;                   // (rows, channels)
    const float* norm;          // (channels), the router's multiplier in it
    const float* router;        // (streams, channels)
    const float* coefficients;  // (streams · streams, streams), or (streams, streams)
    const float* output_scale;  // (channels), or null
    u16* y;                     // (rows, channels) f16
    int count, active, channels;
    float eps;
};
// tanh(router(norm(u))) of a row, at every thread.
DEVICE void route_streams(const AltUpParams& p, const float* u, float (&routed)[MOST_STREAMS], float* scratch) {
    float square[1] = {0.f};
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) square[0] = fmaf(u[i], u[i], square[0]);
    over_cta_all(square, 1, scratch);
    const float r = rsqrtf(square[0] / p.channels + p.eps);
#pragma unroll
    for (int n = 0; n < MOST_STREAMS; n++) routed[n] = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        const float v = u[i] * r * __ldg(p.norm + i);
#pragma unroll
        for (int n = 0; n < MOST_STREAMS; n++)
            if (n < p.count) routed[n] = fmaf(__ldg(p.router + (u64)n * p.channels + i), v, routed[n]);
    }
    over_cta_all(routed, p.count, scratch);
#pragma unroll
    for (int n = 0; n < MOST_STREAMS; n++)
        if (n < p.count) routed[n] = tanhf(routed[n]);
}
DEVICE float coefficient(const AltUpParams& p, int row, const float (&routed)[MOST_STREAMS]) {
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < MOST_STREAMS; n++)
        if (n < p.count) sum = fmaf(__ldg(p.coefficients + row * p.count + n), routed[n], sum);
    return sum;
}
// What the layer expects each stream to become; x begins as the active one.
extern "C" __global__ void __launch_bounds__(512) predict_streams(const __grid_constant__ AltUpParams p) {
    __shared__ float scratch[MOST_STREAMS * 32], by[MOST_STREAMS * MOST_STREAMS];
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels, all = (u64)gridDim.x * p.channels;
    float routed[MOST_STREAMS];
    route_streams(p, p.streams + p.active * all + row, routed, scratch);
    if (threadIdx.x < p.count * p.count) by[threadIdx.x] = coefficient(p, threadIdx.x, routed);
    __syncthreads();
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        float before[MOST_STREAMS];
#pragma unroll
        for (int n = 0; n < MOST_STREAMS; n++) before[n] = n < p.count ? p.streams[n * all + row + i] : 0.f;
#pragma unroll
        for (int to = 0; to < MOST_STREAMS; to++) {
            if (to >= p.count) break;
            float sum = before[to];
#pragma unroll
            for (int from = 0; from < MOST_STREAMS; from++)
                if (from < p.count) sum = fmaf(by[to * p.count + from], before[from], sum);
            p.streams[to * all + row + i] = sum;
            if (to == p.active) p.x[row + i] = sum;
        }
    }
}
// All streams after the residuals turned the active one into x; y is the input of the layer's own input. x ends as the first stream.
extern "C" __global__ void __launch_bounds__(512) correct_streams(const __grid_constant__ AltUpParams p) {
    __shared__ float scratch[MOST_STREAMS * 32], by[MOST_STREAMS];
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels, all = (u64)gridDim.x * p.channels;
    float routed[MOST_STREAMS];
    route_streams(p, p.x + row, routed, scratch);
    if (threadIdx.x < p.count) by[threadIdx.x] = 1.f + coefficient(p, threadIdx.x, routed);
    __syncthreads();
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        const float change = p.x[row + i] - p.streams[p.active * all + row + i];
        for (int n = 0; n < p.count; n++) {
            const float own = fmaf(by[n], change, p.streams[n * all + row + i]);
            p.streams[n * all + row + i] = own;
            if (n == 0) p.x[row + i] = own;
            if (n == p.active) p.y[row + i] = f32_to_f16(p.output_scale ? own * __ldg(p.output_scale + i) : own);
        }
    }
}

struct AddStreamsParams {
    const float* x;       // (rows, channels)
    const float* weight;  // (channels)
    float* streams;       // (streams, rows, channels)
    int count, channels;
    float eps;
};
// norm(x) is added to every stream but the first.
extern "C" __global__ void __launch_bounds__(512) add_to_streams(const __grid_constant__ AddStreamsParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels, all = (u64)gridDim.x * p.channels;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum = fmaf(p.x[row + i], p.x[row + i], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.channels + p.eps);
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        const float y = p.x[row + i] * r * __ldg(p.weight + i);
        for (int n = 1; n < p.count; n++) p.streams[n * all + row + i] += y;
    }
}

struct LaurelParams {
    const float* x;       // (rows, channels): what the layers of low rank gave
    const u16* input;     // (rows, channels) f16
    const float* weight;  // (channels)
    float* y;             // (rows, channels)
    int channels, accumulate;
    float eps, scale;
};
// scale (input + norm(x)).
extern "C" __global__ void __launch_bounds__(512) add_laurel(const __grid_constant__ LaurelParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const u64 row = (u64)blockIdx.x * p.channels;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum = fmaf(p.x[row + i], p.x[row + i], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.channels + p.eps);
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        const float own = p.scale * fmaf(p.x[row + i] * r, __ldg(p.weight + i), f16_to_f32(p.input[row + i]));
        p.y[row + i] = p.accumulate ? p.y[row + i] + own : own;
    }
}

struct CutParams {
    float* x;  // (rows, stride): gates are its first columns
    int channels, stride;
    float deviations;
};
// Gates count from the mean of their row and so many of its deviations on; those below are zero.
extern "C" __global__ void __launch_bounds__(512) cut_gates(const __grid_constant__ CutParams p) {
    __shared__ float sums[16], squares[16];
    pdl_wait();
    pdl_trigger();
    float* x = p.x + (u64)blockIdx.x * p.stride;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum += x[i];
    const float mean = over_cta(sum, sums) / p.channels;
    float square = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) square = fmaf(x[i] - mean, x[i] - mean, square);
    const float cut = fmaf(p.deviations, sqrtf(over_cta(square, squares) / p.channels), mean);
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) x[i] = fmaxf(x[i] - cut, 0.f);
}
