// Strict evaluation: a query reads its own page as it was encoded. Pages are padded before they are encoded, and what their codes stand for goes
// back into the exact page, rounded to f16; the queries of the pass then read that page as they always do. Slow, and for evaluation alone.
#include "pages.cuh"
#include "walsh.cuh"

constexpr int STRICT_THREADS = 128;

struct StrictParams {
    u8* pages;           // page memory
    const uint4* jobs;   // (grid): half pages by unit: exact keys, exact values; coded keys, coded values
    const int* tokens;   // (grid): tokens that the page has
    const float* signs;  // (D) sign / sqrt(D); values of 4 bits alone are turned
};

// The last token of a page again and again, up to its end.
template <int D>
DEVICE void pad(const StrictParams& p) {
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    const int tokens = __ldg(p.tokens + blockIdx.x);
    u16 *keys = reinterpret_cast<u16*>(p.pages + (u64)job.x * UNIT), *values = reinterpret_cast<u16*>(p.pages + (u64)job.y * UNIT);
    pdl_wait();
    pdl_trigger();
    for (int i = threadIdx.x; i < (PAGE_TOKENS - tokens) * D; i += STRICT_THREADS) {
        const int token = tokens + i / D, c = i % D;
        keys[Exact<D>::key_at(token, c)] = keys[Exact<D>::key_at(tokens - 1, c)];
        values[Exact<D>::value_at(token, c)] = values[Exact<D>::value_at(tokens - 1, c)];
    }
}

// The code of a row and a place along k, as `deal` of encode.cu puts it.
template <int BITS>
DEVICE u32 code_at(const u8* codes, int row, int k, int depth) {
    constexpr int PER = BITS == 4 ? 1 : 2, IN_LOAD = BITS == 4 ? 4 : 2;
    const int mt = row / 16, r = row / 8 % 2, g = row % 8, ks = k / 16, c = k / 8 % 2, t = k / 2 % 4, e = k % 2;
    const int block = mt * (depth / 16 / IN_LOAD) + ks / IN_LOAD;
    const u32 word = reinterpret_cast<const u32*>(codes)[((block * WARP + 4 * g + t) * IN_LOAD + ks % IN_LOAD) * PER + (BITS == 4 ? 0 : c)];
    return BITS == 4 ? word >> (4 * r + 8 * c + 16 * e) & 15 : word >> (8 * r + 16 * e) & 255;
}

template <int D, int KEY_BITS, int VALUE_BITS>
DEVICE void unpack_page(const StrictParams& p) {
    constexpr int N = D / WARP;
    using K = KeyPage<D, KEY_BITS>;
    using V = ValuePage<D, VALUE_BITS>;
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    u16 *exact_keys = reinterpret_cast<u16*>(p.pages + (u64)job.x * UNIT), *exact_values = reinterpret_cast<u16*>(p.pages + (u64)job.y * UNIT);
    const u8 *keys = half_page(p.pages, job.z), *values = half_page(p.pages, job.w);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    for (int i = threadIdx.x; i < PAGE_TOKENS * D; i += STRICT_THREADS) {
        const int token = i / D, channel = i % D, ks = channel / 16, c = channel / 8 % 2, t = channel / 2 % 4, e = channel % 2;
        const float scale = f16_to_f32(reinterpret_cast<const u16*>(keys + K::SCALE)[ks / 2 * 32 + t * 8 + ks % 2 * 4 + c * 2 + e]);
        const float zero = f16_to_f32(reinterpret_cast<const u16*>(keys + K::ZERO)[ks / 2 * 32 + t * 8 + c * 4 + ks % 2 * 2 + e]);
        exact_keys[Exact<D>::key_at(token, channel)] = f32_to_f16(fmaf(scale, (float)code_at<KEY_BITS>(keys + K::CODES, token, channel, D), zero));
    }
    for (int token = warp; token < PAGE_TOKENS; token += STRICT_THREADS / WARP) {
        const int ks = token / 16, c = token / 8 % 2, t = token / 2 % 4, e = token % 2;
        float x[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int channel = N * lane + i;
            const float scale = f16_to_f32(reinterpret_cast<const u16*>(values + V::SCALE)[channel / 32 * 64 + ks / 2 * 32 + t * 8 + ks % 2 * 4 + c * 2 + e]);
            x[i] = scale * ((float)code_at<VALUE_BITS>(values + V::CODES, channel, token, PAGE_TOKENS) - (VALUE_BITS == 4 ? 8.f : 128.f));
        }
        if (VALUE_BITS == 4) {  // the SRHT is its own inverse but for the place of the signs
            walsh_hadamard<N, WARP>(x, lane);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= p.signs[N * lane + i];
        }
#pragma unroll
        for (int i = 0; i < N; i++) exact_values[Exact<D>::value_at(token, N * lane + i)] = f32_to_f16(x[i]);
    }
}

#define PAD(D) \
    extern "C" __global__ void __launch_bounds__(STRICT_THREADS) pad_d##D(const __grid_constant__ StrictParams p) { pad<D>(p); }
PAD(64)
PAD(128)
PAD(256)
#define DECODE(CODEC, D, KEY_BITS, VALUE_BITS)                                                                              \
    extern "C" __global__ void __launch_bounds__(STRICT_THREADS) decode_##CODEC##_d##D(const __grid_constant__ StrictParams p) { \
        unpack_page<D, KEY_BITS, VALUE_BITS>(p);                                                                              \
    }
DECODE(int4, 64, 4, 4)
DECODE(int4, 128, 4, 4)
DECODE(int4, 256, 4, 4)
DECODE(int8, 64, 8, 8)
DECODE(int8, 128, 8, 8)
DECODE(int8, 256, 8, 8)
DECODE(k8v4, 64, 8, 4)
DECODE(k8v4, 128, 8, 4)
DECODE(k8v4, 256, 8, 4)
