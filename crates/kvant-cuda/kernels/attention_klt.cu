// Entry points: attention over pages of `klt` keys and values of 4 bits, without soft caps, and the way of queries into the keys' basis.
#include "planned.cuh"
ATTEND(attend_klt_d64, 64, PLAIN, PlannedCodec<64>, 4, 1, false, 1, 2)
ATTEND(attend_many_klt_d64, 64, PLAIN, PlannedCodec<64>, 3, 2, true, 1, 2)
ATTEND(attend_klt_d128, 128, PLAIN, PlannedCodec<128>, 2, 1, false, 1, 2)
ATTEND(attend_many_klt_d128, 128, PLAIN, PlannedCodec<128>, 2, 2, true, 2, 1)

struct TurnParams {
    const u16* q;        // (rows, heads, D) f16
    u16* y;              // (rows, heads, D) f16
    float* bias;         // (rows, heads)
    const float* bases;  // (kv_heads, D + 1, D): for every channel of the model what it adds to those of the basis; the mean
    int* refused;        // the largest 1 + row whose queries f16 does not hold in the basis
    int heads, group;
};
// Grid: (rows, heads); TURN_PARTS * D threads, which share the channels of the model. The matrix is read before the queries are there.
constexpr int TURN_PARTS = 4;
template <int D>
DEVICE void turn_queries(const TurnParams& p) {
    constexpr int OWN = D / TURN_PARTS;
    __shared__ float q[D];
    __shared__ float sums[TURN_PARTS][D];
    const int c = threadIdx.x % D, part = threadIdx.x / D, head = blockIdx.y;
    const u64 at = (u64)blockIdx.x * p.heads + head;
    const float* basis = p.bases + (u64)(head / p.group) * (D + 1) * D;
    float m[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) m[j] = __ldg(basis + (part * OWN + j) * D + c);
    const float mean = __ldg(basis + D * D + c);
    pdl_wait();
    pdl_trigger();
    if (part == 0) q[c] = f16_to_f32(__ldcg(p.q + at * D + c));
    __syncthreads();
    float y = 0.f, bias = mean * q[c];
#pragma unroll
    for (int j = 0; j < OWN; j++) y = fmaf(m[j], q[part * OWN + j], y);
    sums[part][c] = y;
    if (part == 0) {
#pragma unroll
        for (int o = 16; o; o /= 2) bias += __shfl_xor_sync(~0u, bias, o);
    }
    __syncthreads();
    if (part == 0) {
#pragma unroll
        for (int i = 1; i < TURN_PARTS; i++) y += sums[i][c];
        const u16 half = f32_to_f16(y);
        if (!(fabsf(f16_to_f32(half)) <= 65504.f)) atomicMax(p.refused, 1 + (int)blockIdx.x);
        p.y[at * D + c] = half;
        if (c % WARP == 0) q[c] = bias;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < D / WARP; w++) bias += q[w * WARP];
        p.bias[at] = bias;
    }
}
extern "C" __global__ void __launch_bounds__(256) turn_queries_d64(const __grid_constant__ TurnParams p) { turn_queries<64>(p); }
extern "C" __global__ void __launch_bounds__(512) turn_queries_d128(const __grid_constant__ TurnParams p) { turn_queries<128>(p); }
