// The last step of decode attention: merges the partials of a sequence, turns the closed pages' sum back into the model's basis,
// adds the exact rows' sum, divides. One CTA per query head; the order of sums depends on the number of partials alone.
#pragma once
#include "attention.cuh"

constexpr int REDUCE_THREADS = 256;

// In place, over D values that lie four to a thread in D/4 neighbouring lanes: unnormalised Walsh-Hadamard, lowest stage first.
template <int D>
DEVICE void walsh_hadamard(float (&x)[4], int lane) {
#pragma unroll
    for (int h = 1; h < 4; h *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & h)) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b, x[i + h] = a - b;
            }
#pragma unroll
    for (int h = 1; h < D / 4; h *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], h);
            x[i] = lane & h ? other - x[i] : x[i] + other;
        }
}

template <int D>
DEVICE void reduce(const AttentionParams& p) {
    constexpr int C = D / 4, SLICES = REDUCE_THREADS / C, PER = (MAX_PARTS + SLICES - 1) / SLICES;
    static_assert(C <= WARP && MAX_PARTS <= 2 * WARP, "a warp holds a row, and the weights of all partials in two registers");
    __shared__ float4 sums[REDUCE_THREADS];
    const int heads = p.kv_heads * p.group, row = blockIdx.x / heads, h = blockIdx.x % heads;
    const int kv = h / p.group, in_group = h % p.group, lane = threadIdx.x % WARP;
    const int slice = threadIdx.x / C, c4 = threadIdx.x % C;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const u64 per_slot = (u64)(p.kv_heads << p.tile_bits) * HEADS;  // partial rows of a slot
    const u64 first = slots.x * per_slot + ((kv << p.tile_bits) + in_group / HEADS) * HEADS + in_group % HEADS;
    const int closed = slots.y - 1;  // the last one is the exact rows'
    const float logit = p.sink_logits ? __ldg(p.sink_logits + h) * LOG2_E : MINUS_INFINITY;
    float4 sign = {0.f, 0.f, 0.f, 0.f};
    if (p.signs) sign = __ldg(reinterpret_cast<const float4*>(p.signs) + c4);
    pdl_wait();
    pdl_trigger();
    auto part = [&](int s) { return __ldcg(reinterpret_cast<const float4*>(p.part_o) + (first + s * per_slot) * C + c4); };
    float4 x[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int s = slice * PER + i;
        x[i] = s < closed ? part(s) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    const float4 exact = part(closed);
    auto mass = [&](int s) { return s < slots.y ? __ldcg(&p.part_ml[first + s * per_slot]) : make_float2(MINUS_INFINITY, 0.f); };
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
    float4 o = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float f = weight(min(slice * PER + i, MAX_PARTS - 1));
        o.x = fmaf(f, x[i].x, o.x), o.y = fmaf(f, x[i].y, o.y), o.z = fmaf(f, x[i].z, o.z), o.w = fmaf(f, x[i].w, o.w);
    }
    sums[threadIdx.x] = o;
    const float we = weight(closed);
    __syncthreads();
    if (threadIdx.x >= WARP) return;
#pragma unroll
    for (int k = 1; k < SLICES; k++) {
        const float4 v = sums[k * C + c4];
        if (slice == 0) o.x += v.x, o.y += v.y, o.z += v.z, o.w += v.w;
    }
    float y[4] = {o.x, o.y, o.z, o.w};
    if (p.signs) {
        walsh_hadamard<D>(y, lane);
        y[0] *= sign.x, y[1] *= sign.y, y[2] *= sign.z, y[3] *= sign.w;
    }
    const float r = 1.f / l;
    y[0] = fmaf(we, exact.x, y[0]) * r, y[1] = fmaf(we, exact.y, y[1]) * r;
    y[2] = fmaf(we, exact.z, y[2]) * r, y[3] = fmaf(we, exact.w, y[3]) * r;
    if (slice == 0)
        reinterpret_cast<uint2*>(p.out)[((u64)row * heads + h) * C + c4] = make_uint2(pack_f16x2(y[0], y[1]), pack_f16x2(y[2], y[3]));
}
