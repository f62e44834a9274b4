// Entry points: attention over pages of any codec for 16 and 32 columns, its reduce, and queries in the basis of keys.
#include "general.cuh"
#define ATTEND_GENERAL(NAME, MT, PER_SM)                                                                                   \
    extern "C" __global__ void __launch_bounds__(GENERAL_THREADS, PER_SM) NAME(const __grid_constant__ GeneralParams p) { \
        attend_general<MT>(p);                                                                                             \
    }
#if __CUDA_ARCH__ >= 900
ATTEND_GENERAL(attend_general_m1, 1, 2)
#else
ATTEND_GENERAL(attend_general_m1, 1, 1)
#endif
ATTEND_GENERAL(attend_general_m2, 2, 1)

// Tiles of a sequence's coded units for all that reads them in a pass of many tokens, as attention would make them. Grid: (units, kv heads).
struct GeneralTileParams {
    const u8* pages;
    const PageEntry* table;  // (kv_heads, table_stride) of the sequence, from its first unit on
    const PageForm* forms;
    const TrellisTables* tables;
    u16* to;                 // (kv_heads, units): tiles as GeneralParams has them
    int table_stride, unit, key_pages, value_pages, key_width, value_width;
    int first;               // number of the first unit
};
extern "C" __global__ void __launch_bounds__(GENERAL_THREADS) general_tiles(const __grid_constant__ GeneralTileParams p) {
    __shared__ float carry[GENERAL_WIDTH];
    const int unit = blockIdx.x, kv = blockIdx.y, tid = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const PageEntry entry = __ldg(p.table + (u64)kv * p.table_stride + unit);
    const GeneralTile keys{p.to + ((u64)kv * gridDim.x + unit) * p.unit * (p.key_width + p.value_width + 2 * GENERAL_PAD), p.key_width + GENERAL_PAD};
    const GeneralTile values{keys.rows + p.unit * keys.stride, p.value_width + GENERAL_PAD};
    const uint4 none = {0u, 0u, 0u, 0u};
    for (int i = tid; i < p.unit * (keys.stride + values.stride) / 8; i += GENERAL_THREADS) reinterpret_cast<uint4*>(keys.rows)[i] = none;
    __syncthreads();
    const int at = p.first + unit;
    form_tile(p.forms[2 * kv], *p.tables, half_page(p.pages, entry.x), at % p.key_pages * p.unit, p.unit, keys, carry, false, tid, 0);
    form_tile(p.forms[2 * kv + 1], *p.tables, half_page(p.pages, entry.y), at % p.value_pages * p.unit, p.unit, values, carry, false, tid, GENERAL_THREADS / 2);
}

// Merges the partials of a query in their order, turns the sum of coded values back, adds that of exact ones, divides. Grid: (rows, heads).
constexpr int GENERAL_PARTS = 130, GENERAL_REDUCE = 256;
extern "C" __global__ void __launch_bounds__(GENERAL_REDUCE) reduce_general(const __grid_constant__ GeneralParams p) {
    __shared__ float sums[GENERAL_WIDTH], exact[GENERAL_WIDTH], shares[GENERAL_PARTS], masses[GENERAL_PARTS];
    const int row = blockIdx.x, head = blockIdx.y, tid = threadIdx.x;
    const int2 slots = __ldg(reinterpret_cast<const int2*>(p.slots) + row);
    const PageForm& form = p.forms[2 * (head / (p.heads / p.kv_heads)) + 1];
    pdl_wait();
    pdl_trigger();
    auto place = [&](int part) { return (u64)(slots.x + part) * p.heads + head; };
    float2 own = {MINUS_INFINITY, 0.f};
    if (tid < slots.y) own = __ldcg(p.part_ml + place(tid)), shares[tid] = own.x;
    __syncthreads();
    const float logit = p.sink_logits ? __ldg(p.sink_logits + head) * LOG2_E : MINUS_INFINITY;
    float top = logit;
    for (int i = 0; i < slots.y; i++) top = fmaxf(top, shares[i]);
    __syncthreads();
    if (tid < slots.y) {
        const float share = own.x == MINUS_INFINITY ? 0.f : ex2(own.x - top);
        shares[tid] = share, masses[tid] = share * own.y;
    }
    __syncthreads();
    float mass = p.sink_logits ? ex2(logit - top) : 0.f, coded = 0.f;
    for (int i = 0; i < slots.y; i++) {
        mass += fabsf(masses[i]);
        if (masses[i] > 0.f) coded += masses[i];
    }
    for (int c = tid; c < p.value_width; c += GENERAL_REDUCE) {
        float of_coded = 0.f, of_exact = 0.f;
        for (int i = 0; i < slots.y; i++) {
            const float x = __ldcg(p.part_o + place(i) * p.value_width + c);
            if (masses[i] > 0.f) of_coded = fmaf(shares[i], x, of_coded);
            else if (masses[i] < 0.f) of_exact = fmaf(shares[i], x, of_exact);
        }
        sums[c] = of_coded, exact[c] = of_exact;
    }
    __syncthreads();
    for (int c = tid; c < p.dim; c += GENERAL_REDUCE) {
        float y = 0.f;
        if (form.turn)
            for (int j = 0; j < form.width; j++) y = fmaf(sums[j], __ldg(form.turn + (u64)j * p.dim + c), y);
        else y = sums[c];
        if (form.mean) y = fmaf(__ldg(form.mean + c), coded, y);
        p.out[((u64)row * p.heads + head) * p.dim + c] = f32_to_f16((y + exact[c]) / mass);
    }
}

// Queries as they meet coded keys, and their products with the keys' mean. Grid: (rows, heads).
struct GeneralQueryParams {
    const u16* q;           // (rows, heads, dim) f16
    u16* to;                // (rows, heads, width) f16
    float* bias;            // (rows, heads)
    const PageForm* forms;  // (kv_heads, keys and values)
    int* refused;           // the largest 1 + row whose numbers f16 does not hold
    int heads, kv_heads, dim, width;
};
extern "C" __global__ void __launch_bounds__(256) general_queries(const __grid_constant__ GeneralQueryParams p) {
    __shared__ float x[GENERAL_WIDTH], products[8];
    const int row = blockIdx.x, head = blockIdx.y, tid = threadIdx.x;
    const PageForm& form = p.forms[2 * (head / (p.heads / p.kv_heads))];
    pdl_wait();
    pdl_trigger();
    const u64 at = (u64)row * p.heads + head;
    float bias = 0.f;
    for (int c = tid; c < p.dim; c += 256) {
        x[c] = f16_to_f32(__ldcg(p.q + at * p.dim + c));
        if (form.mean) bias = fmaf(x[c], __ldg(form.mean + c), bias);
    }
#pragma unroll
    for (int o = 16; o; o /= 2) bias += __shfl_xor_sync(~0u, bias, o);
    if (tid % WARP == 0) products[tid / WARP] = bias;
    __syncthreads();
    if (tid == 0) {
        for (int w = 1; w < 8; w++) bias += products[w];
        p.bias[at] = bias;
    }
    bool bad = false;
    for (int j = tid; j < p.width; j += 256) {
        float y = 0.f;
        if (form.turn)
            for (int c = 0; c < p.dim; c++) y = fmaf(x[c], __ldg(form.turn + (u64)c * p.width + j), y);
        else if (j < p.dim) y = x[j];
        const u16 half = f32_to_f16(y);
        bad |= !(fabsf(f16_to_f32(half)) <= 65504.f);
        p.to[at * p.width + j] = half;
    }
    if (bad) atomicMax(p.refused, 1 + row);
}
