// The last step of decode attention: merges the partials of a sequence, turns the closed pages' sum back into the model's basis,
// adds the exact rows' sum, divides. One CTA per query row and head; the order of sums depends on the number of partials alone.
#pragma once
#include "attention.cuh"
#include "walsh.cuh"

constexpr int REDUCE_THREADS = 256;

struct ReduceParams : AttentionParams {
    int bf16, unused;  // whether results go out as bf16, as tensors of other libraries have them
    // Two numbers of a result: f16, or the bf16 nearest to those.
    DEVICE u32 two(float lo, float hi) const {
        const u32 halves = pack_f16x2(lo, hi);
        if (!bf16) return halves;
        auto narrow = [](u16 half) -> u32 {
            const u32 bits = __float_as_uint(f16_to_f32(half));
            return (bits << 1) > 0xff000000u ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // NaN; to nearest, ties to even
        };
        return narrow((u16)halves) | narrow(halves >> 16) << 16;
    }
};

// Lanes that share a row, and neighbouring values that each has.
template <int D>
struct RowLanes {
    static constexpr int LANES = D / 4 < WARP ? D / 4 : WARP, VALUES = D / LANES;
};

// The weights of a row's partials, by the lanes of a warp: partials `lane` and `lane` + 32.
struct Shares {
    float low, high, mass;  // mass: the sum that results are divided by

    DEVICE Shares(const AttentionParams& p, const int2& slots, int heads, int h, float logit, int lane) {
        auto part = [&](int s) {
            return s < slots.y ? __ldcg(&p.part_ml[(u64)(slots.x + s) * heads + h]) : make_float2(MINUS_INFINITY, 0.f);
        };
        const float2 a = part(lane), b = part(lane + WARP);
        float m = fmaxf(fmaxf(a.x, b.x), logit);
#pragma unroll
        for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        low = ex2(a.x - m), high = ex2(b.x - m);
        mass = fmaf(low, a.y, high * b.y);
#pragma unroll
        for (int o = 16; o; o /= 2) mass += __shfl_xor_sync(~0u, mass, o);
        mass += ex2(logit - m);
    }
    DEVICE float of(int s) const {
        const float l = __shfl_sync(~0u, low, s % WARP), h = __shfl_sync(~0u, high, s % WARP);
        return s < WARP ? l : h;
    }
};

template <int D>
DEVICE void reduce(const ReduceParams& p) {
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
    const Shares shares(p, slots, heads, h, logit, lane);
    float4 o[FOURS] = {};
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float f = shares.of(min(slice * PER + i, MAX_PARTS - 1));
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            o[k].x = fmaf(f, x[i][k].x, o[k].x), o[k].y = fmaf(f, x[i][k].y, o[k].y), o[k].z = fmaf(f, x[i][k].z, o[k].z),
            o[k].w = fmaf(f, x[i][k].w, o[k].w);
    }
#pragma unroll
    for (int k = 0; k < FOURS; k++) sums[slice][k][c] = o[k];
    const float we = shares.of(closed);
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
    const float r = 1.f / shares.mass;
    if (slice == 0) {
        uint2* out = reinterpret_cast<uint2*>(p.out) + (((u64)row * heads + h) * LANES + c) * FOURS;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            y[4 * k + 0] = fmaf(we, exact[k].x, y[4 * k + 0]) * r, y[4 * k + 1] = fmaf(we, exact[k].y, y[4 * k + 1]) * r;
            y[4 * k + 2] = fmaf(we, exact[k].z, y[4 * k + 2]) * r, y[4 * k + 3] = fmaf(we, exact[k].w, y[4 * k + 3]) * r;
            out[k] = make_uint2(p.two(y[4 * k], y[4 * k + 1]), p.two(y[4 * k + 2], y[4 * k + 3]));
        }
    }
}

// The same with a warp for every row and head, for many rows: slices one after another, in the order in which `reduce` adds them up.
template <int D>
DEVICE void reduce_many(const ReduceParams& p) {
    constexpr int LANES = RowLanes<D>::LANES, SLICES = REDUCE_THREADS / LANES, PER = (MAX_PARTS + SLICES - 1) / SLICES;
    static_assert(RowLanes<D>::VALUES == 4, "four numbers of a lane");
    const int heads = p.kv_heads * p.group, index = blockIdx.x * (REDUCE_THREADS / WARP) + threadIdx.x / WARP, row = index / heads, h = index % heads;
    if (row >= p.rows) return;
    const int lane = threadIdx.x % WARP, c = lane % LANES;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const int closed = slots.y - 1;  // the last one is the exact rows'
    const float logit = p.sink_logits ? __ldg(p.sink_logits + h) * LOG2_E : MINUS_INFINITY;
    pdl_wait();
    pdl_trigger();
    auto part = [&](int s) { return __ldcg(reinterpret_cast<const float4*>(p.part_o) + ((u64)(slots.x + s) * heads + h) * LANES + c); };
    const float4 exact = part(closed);
    const Shares shares(p, slots, heads, h, logit, lane);
    float y[4];
#pragma unroll 1
    for (int slice = 0; slice < SLICES; slice++) {
        float4 x[PER], o = {0.f, 0.f, 0.f, 0.f};
        if (slice * PER < closed) {
#pragma unroll
            for (int i = 0; i < PER; i++) x[i] = slice * PER + i < closed ? part(slice * PER + i) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const float f = shares.of(min(slice * PER + i, MAX_PARTS - 1));
                o.x = fmaf(f, x[i].x, o.x), o.y = fmaf(f, x[i].y, o.y), o.z = fmaf(f, x[i].z, o.z), o.w = fmaf(f, x[i].w, o.w);
            }
        }
        if (slice == 0) y[0] = o.x, y[1] = o.y, y[2] = o.z, y[3] = o.w;
        else y[0] += o.x, y[1] += o.y, y[2] += o.z, y[3] += o.w;  // of slices without partials: zeros
    }
    if (p.signs) {
        walsh_hadamard<4, LANES>(y, lane);
        const float4 sign = __ldg(reinterpret_cast<const float4*>(p.signs) + c);
        y[0] *= sign.x, y[1] *= sign.y, y[2] *= sign.z, y[3] *= sign.w;
    }
    const float we = shares.of(closed), r = 1.f / shares.mass;
    y[0] = fmaf(we, exact.x, y[0]) * r, y[1] = fmaf(we, exact.y, y[1]) * r, y[2] = fmaf(we, exact.z, y[2]) * r, y[3] = fmaf(we, exact.w, y[3]) * r;
    if (lane < LANES) reinterpret_cast<uint2*>(p.out)[((u64)row * heads + h) * LANES + c] = make_uint2(p.two(y[0], y[1]), p.two(y[2], y[3]));
}

// The same for rows that are no power of two, or long: columns of four numbers over the threads, the rotation in shared memory.
template <int D>
DEVICE void reduce_any(const ReduceParams& p) {
    constexpr int COLUMNS = D / 4, SLICES = REDUCE_THREADS / COLUMNS, PER = (MAX_PARTS + SLICES - 1) / SLICES;
    __shared__ float4 sums[SLICES][COLUMNS];
    const int heads = p.kv_heads * p.group, row = blockIdx.x / heads, h = blockIdx.x % heads;
    const int lane = threadIdx.x % WARP, slice = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const int closed = slots.y - 1;  // the last one is the exact rows'
    const float logit = p.sink_logits ? __ldg(p.sink_logits + h) * LOG2_E : MINUS_INFINITY;
    pdl_wait();
    pdl_trigger();
    auto part = [&](int s) { return __ldcg(reinterpret_cast<const float4*>(p.part_o) + ((u64)(slots.x + s) * heads + h) * COLUMNS + c); };
    const bool first = threadIdx.x < COLUMNS;
    float4 exact = {0.f, 0.f, 0.f, 0.f}, o = exact;
    if (first) exact = part(closed);
    const Shares shares(p, slots, heads, h, logit, lane);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int s = slice * PER + i;
        const float f = shares.of(min(s, MAX_PARTS - 1));
        if (slice < SLICES && s < closed) {
            const float4 x = part(s);
            o.x = fmaf(f, x.x, o.x), o.y = fmaf(f, x.y, o.y), o.z = fmaf(f, x.z, o.z), o.w = fmaf(f, x.w, o.w);
        }
    }
    if (slice < SLICES) sums[slice][c] = o;
    const float we = shares.of(closed), r = 1.f / shares.mass;
    __syncthreads();
    if (first) {
#pragma unroll
        for (int i = 1; i < SLICES; i++) {
            const float4 v = sums[i][c];
            o.x += v.x, o.y += v.y, o.z += v.z, o.w += v.w;
        }
        sums[0][c] = o;
    }
    if (p.signs) {
        turn_shared<D, REDUCE_THREADS>(&sums[0][0].x, threadIdx.x, [] { __syncthreads(); });
        if (first) {
            const float4 s = __ldg(reinterpret_cast<const float4*>(p.signs) + c);
            o = sums[0][c];
            o.x *= s.x, o.y *= s.y, o.z *= s.z, o.w *= s.w;
        }
    }
    if (!first) return;
    o.x = fmaf(we, exact.x, o.x) * r, o.y = fmaf(we, exact.y, o.y) * r, o.z = fmaf(we, exact.z, o.z) * r, o.w = fmaf(we, exact.w, o.w) * r;
    reinterpret_cast<uint2*>(p.out)[((u64)row * heads + h) * COLUMNS + c] = make_uint2(p.two(o.x, o.y), p.two(o.z, o.w));
}
