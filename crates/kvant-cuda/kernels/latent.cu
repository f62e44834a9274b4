// Entry points: attention over latents for 16, 32 and 64 columns, and its reduce.
#include "latent.cuh"
#include "latent_row.cuh"
#define ATTEND_LATENT(NAME, MT, PER_SM)                                                                                  \
    extern "C" __global__ void __launch_bounds__(LATENT_THREADS, PER_SM) NAME(const __grid_constant__ LatentParams p) { \
        attend_latent<MT>(p);                                                                                            \
    }                                                                                                                    \
    extern "C" __device__ const int NAME##_shared = sizeof(LatentShared<MT>);
ATTEND_LATENT(attend_latent_m1, 1, 2)
ATTEND_LATENT(attend_latent_m2, 2, 1)
ATTEND_LATENT(attend_latent_m4, 4, 1)

// Merges the partials of a query: those of closed pages, 32 of them by each of four slices of the CTA, and the slices in order; turned back; then the
// exact rows'. Grid: (rows, heads).
constexpr int LATENT_SLICES = 4, OF_SLICE = 32, LATENT_COLUMNS = LATENT / 4, LATENT_REDUCE_THREADS = LATENT_SLICES * LATENT_COLUMNS;
constexpr int LATENT_PARTS = LATENT_SLICES * OF_SLICE + 1;
extern "C" __global__ void __launch_bounds__(LATENT_REDUCE_THREADS) reduce_latent(const __grid_constant__ LatentParams p) {
    __shared__ float4 sums[LATENT_SLICES][LATENT_COLUMNS];
    __shared__ float shares[LATENT_PARTS], masses[LATENT_PARTS];
    const int row = blockIdx.x, head = blockIdx.y, tid = threadIdx.x;
    const int slice = tid / LATENT_COLUMNS, c = tid % LATENT_COLUMNS, columns = p.latent / 4;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const int closed = slots.y - 1;
    pdl_wait();
    pdl_trigger();
    auto place = [&](int part) { return (u64)(slots.x + part) * p.heads + head; };
    auto part = [&](int i) { return __ldcg(reinterpret_cast<const float4*>(p.part_o) + place(i) * columns + c); };
    float2 own = {MINUS_INFINITY, 0.f};
    if (tid < slots.y) own = __ldcg(p.part_ml + place(tid)), shares[tid] = own.x;
    __syncthreads();
    float top = MINUS_INFINITY;
    for (int i = 0; i < slots.y; i++) top = fmaxf(top, shares[i]);
    __syncthreads();
    if (tid < slots.y) {
        const float share = own.x == MINUS_INFINITY ? 0.f : ex2(own.x - top);
        shares[tid] = share, masses[tid] = share * own.y;
    }
    __syncthreads();
    float4 o = {0.f, 0.f, 0.f, 0.f};
    if (c < columns) {
        const int end = min(closed, (slice + 1) * OF_SLICE);
#pragma unroll 4
        for (int i = slice * OF_SLICE; i < end; i++) {
            const float4 x = part(i);
            const float f = shares[i];
            o.x = fmaf(f, x.x, o.x), o.y = fmaf(f, x.y, o.y), o.z = fmaf(f, x.z, o.z), o.w = fmaf(f, x.w, o.w);
        }
    }
    sums[slice][c] = o;
    __syncthreads();
    const bool first = tid < columns;
    if (first) {
        for (int i = 1; i < LATENT_SLICES; i++) {
            const float4 x = sums[i][c];
            o.x += x.x, o.y += x.y, o.z += x.z, o.w += x.w;
        }
        sums[0][c] = o;
    }
    if (p.signs) {
        turn_row(&sums[0][0].x, p.latent);
        if (first) {
            const float4 s = __ldg(reinterpret_cast<const float4*>(p.signs) + c);
            o = sums[0][c];
            o.x *= s.x, o.y *= s.y, o.z *= s.z, o.w *= s.w;
        }
    }
    if (!first) return;
    float mass = 0.f;
    for (int i = 0; i < slots.y; i++) mass += masses[i];
    const float r = 1.f / mass, we = shares[closed];
    const float4 x = part(closed);
    o.x = fmaf(we, x.x, o.x) * r, o.y = fmaf(we, x.y, o.y) * r, o.z = fmaf(we, x.z, o.z) * r, o.w = fmaf(we, x.w, o.w) * r;
    reinterpret_cast<uint2*>(p.out)[((u64)row * p.heads + head) * columns + c] = make_uint2(pack_f16x2(o.x, o.y), pack_f16x2(o.z, o.w));
}

// What queries meet: the absorbed part, which a product gave in the order of heads, and the rotated one. Grid: (rows, heads).
struct LatentQueryParams {
    const float* q;         // (rows, heads, nope + rotated)
    const float* absorbed;  // (heads, rows, latent)
    const float2* turns;    // (rows, pairs): cos, sin of each rotated pair
    const float* gains;     // (rows) multipliers of queries, or null; the absorbed part has them
    const float* signs;     // (latent), or null: as LatentParams has them
    u16* to;                // (rows, heads, latent + rotated) f16
    u16* to_closed;         // the same in the basis of closed pages; not written where there are no signs
    int* refused;           // the largest 1 + row whose numbers f16 does not hold
    int heads, nope, latent, rotated, pairs;
    int neighbours;         // pairs are channels 2i, 2i+1 instead of i, i + pairs
};
constexpr int LATENT_QUERY_THREADS = 128;

DEVICE bool holds(u16 half) { return fabsf(f16_to_f32(half)) <= 65504.f; }

extern "C" __global__ void __launch_bounds__(LATENT_QUERY_THREADS) latent_queries(const __grid_constant__ LatentQueryParams p) {
    __shared__ float x[LATENT];
    const int row = blockIdx.x, head = blockIdx.y, rows = gridDim.x, width = p.latent + p.rotated;
    pdl_wait();
    pdl_trigger();
    const u64 at = ((u64)row * p.heads + head) * width;
    const float* absorbed = p.absorbed + ((u64)head * rows + row) * p.latent;
    const float* own = p.q + ((u64)row * p.heads + head) * (p.nope + p.rotated) + p.nope;
    const float gain = p.gains ? __ldg(p.gains + row) : 1.f;
    bool bad = false;
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) {
        const float y = __ldcg(absorbed + c);
        p.to[at + c] = f32_to_f16(y), bad |= !holds(f32_to_f16(y));
        if (p.signs) x[c] = __fmul_rn(y, __ldg(p.signs + c));
    }
    for (int c = threadIdx.x; c < p.rotated; c += blockDim.x) {
        const u16 y = f32_to_f16(gain * rotated_at(own, c, p.turns + (u64)row * p.pairs, p.pairs, p.neighbours));
        p.to[at + p.latent + c] = y, bad |= !holds(y);
        if (p.signs) p.to_closed[at + p.latent + c] = y;
    }
    if (p.signs) {
        turn_row(x, p.latent);
        for (int c = threadIdx.x; c < p.latent; c += blockDim.x) p.to_closed[at + c] = f32_to_f16(x[c]), bad |= !holds(f32_to_f16(x[c]));
    }
    if (bad) atomicMax(p.refused, 1 + row);
}
