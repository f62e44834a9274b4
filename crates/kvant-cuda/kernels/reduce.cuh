// The last step of decode attention: merges the partials of a sequence, turns the closed pages' sum back into the model's basis,
// adds the exact rows' sum, divides. One CTA per query row and head; the order of sums depends on the number of partials alone.
#pragma once
#include "attention.cuh"
#include "walsh.cuh"

constexpr int REDUCE_THREADS = 256;

// Lanes that share a row, and neighbouring values that each has.
template <int D>
struct RowLanes {
    static constexpr int LANES = D / 4 < WARP ? D / 4 : WARP, VALUES = D / LANES;
};

template <int D>
DEVICE void reduce(const AttentionParams& p) {
    constexpr int LANES = RowLanes<D>::LANES, VALUES = RowLanes<D>::VALUES, FOURS = VALUES / 4;
    constexpr int SLICES = REDUCE_THREADS / LANES, PER = (MAX_PARTS + SLICES - 1) / SLICES;
    static_assert(MAX_PARTS <= 2 * WARP, "a warp holds the weights of all partials in two registers");
    __shared__ float4 sums[SLICES][FOURS][LANES];
    const int heads = p.kv_heads * p.group, row = blockIdx.x / heads, h = blockIdx.x % heads;
    const int lane = threadIdx.x % WARP, slice = threadIdx.x / LANES, c = threadIdx.x % LANES;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const int closed = slots.y - 1;  // the last one is the exact rows'
    const float logit = p.sink_logits ? __ldg(p.sink_logits + h) * LOG2_E : MINUS_INFINITY;
    float sign[VALUES] = {};
    if (p.signs) {
#pragma unroll
        for (int i = 0; i < VALUES; i++) sign[i] = __ldg(p.signs + VALUES * c + i);
    }
    pdl_wait();
    pdl_trigger();
    auto at = [&](int s) { return (u64)(slots.x + s) * heads + h; };
    auto part = [&](int s, int k) { return __ldcg(reinterpret_cast<const float4*>(p.part_o) + (at(s) * LANES + c) * FOURS + k); };
    float4 x[PER][FOURS], exact[FOURS];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int s = slice * PER + i;
#pragma unroll
        for (int k = 0; k < FOURS; k++) x[i][k] = s < closed ? part(s, k) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int k = 0; k < FOURS; k++) exact[k] = part(closed, k);
    auto mass = [&](int s) { return s < slots.y ? __ldcg(&p.part_ml[at(s)]) : make_float2(MINUS_INFINITY, 0.f); };
    const float2 a = mass(lane), b = mass(lane + WARP);
    float m = fmaxf(fmaxf(a.x, b.x), logit);
#pragma unroll
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    const float wa = ex2(a.x - m), wb = ex2(b.x - m);
    float l = fmaf(wa, a.y, wb * b.y);
#pragma unroll
    for (int o = 16; o; o /= 2) l += __shfl_xor_sync(~0u, l, o);
    l += ex2(logit - m);
    auto weight = [&](int s) {
        const float low = __shfl_sync(~0u, wa, s % WARP), high = __shfl_sync(~0u, wb, s % WARP);
        return s < WARP ? low : high;
    };
    float4 o[FOURS] = {};
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float f = weight(min(slice * PER + i, MAX_PARTS - 1));
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            o[k].x = fmaf(f, x[i][k].x, o[k].x), o[k].y = fmaf(f, x[i][k].y, o[k].y), o[k].z = fmaf(f, x[i][k].z, o[k].z),
            o[k].w = fmaf(f, x[i][k].w, o[k].w);
    }
#pragma unroll
    for (int k = 0; k < FOURS; k++) sums[slice][k][c] = o[k];
    const float we = weight(closed);
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    float y[VALUES];
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
#pragma unroll
        for (int i = 1; i < SLICES; i++) {
            const float4 v = sums[i][k][c];
            if (slice == 0) o[k].x += v.x, o[k].y += v.y, o[k].z += v.z, o[k].w += v.w;
        }
        y[4 * k] = o[k].x, y[4 * k + 1] = o[k].y, y[4 * k + 2] = o[k].z, y[4 * k + 3] = o[k].w;
    }
    if (p.signs) {
        walsh_hadamard<VALUES, LANES>(y, lane);
#pragma unroll
        for (int i = 0; i < VALUES; i++) y[i] *= sign[i];
    }
    const float r = 1.f / l;
    if (slice == 0) {
        uint2* out = reinterpret_cast<uint2*>(p.out) + (((u64)row * heads + h) * LANES + c) * FOURS;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            y[4 * k + 0] = fmaf(we, exact[k].x, y[4 * k + 0]) * r, y[4 * k + 1] = fmaf(we, exact[k].y, y[4 * k + 1]) * r;
            y[4 * k + 2] = fmaf(we, exact[k].z, y[4 * k + 2]) * r, y[4 * k + 3] = fmaf(we, exact[k].w, y[4 * k + 3]) * r;
            out[k] = make_uint2(pack_f16x2(y[4 * k], y[4 * k + 1]), pack_f16x2(y[4 * k + 2], y[4 * k + 3]));
        }
    }
}
