// Exact pages to int4 pages, bit for bit what kvant-codec writes (`ch4` keys, `rot4g32` values), dealt for the device's lanes.
//
// One CTA of 128 threads per page and kv head. How scales are chosen is known to fit.cuh alone.
#include "fit.cuh"

DEVICE u8 code_of(float level) { return (u8)__float2int_rn(fminf(fmaxf(level, 0.f), 15.f)); }
DEVICE bool storable(float x) { return fabsf(x) <= 65504.f; }  // false for NaN

struct EncodeParams {
    u8* pages;           // page memory
    const uint4* jobs;   // (grid): half pages by unit: exact keys, exact values; int4 keys, int4 values
    const float* signs;  // (D) sign / sqrt(D)
    int* refused;        // the largest 1 + job whose numbers cannot be stored
};

template <int D>
DEVICE void encode(const EncodeParams& p) {
    constexpr int N = D / WARP, THREADS = 128;
    using P = Int4<D>;
    __shared__ __align__(16) u16 exact[PAGE_TOKENS * D];
    __shared__ u8 codes[PAGE_TOKENS][D];
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    u8 *keys = p.pages + (u64)job.z * UNIT, *values = p.pages + (u64)job.w * UNIT;
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    auto bring = [&](u32 unit) {
        const u8* from = half_page(p.pages, unit);
        for (int i = tid; i < PAGE_TOKENS * D / 8; i += THREADS) reinterpret_cast<uint4*>(exact)[i] = load_coherent(from + 16 * i);
        __syncthreads();
    };
    bool bad = false;
    pdl_wait();
    pdl_trigger();

    bring(job.x);
    for (int c = tid; c < D; c += THREADS) {
        auto x = [&](int token) { return f16_to_f32(exact[Exact<D>::key_at(token, c)]); };
        const Scale s = channel_scale<4>(x);
        const float inverse = inverse_of(s.scale);
        for (int token = 0; token < PAGE_TOKENS; token++) {
            bad |= !storable(x(token));
            codes[token][c] = code_of((x(token) - s.zero) * inverse);
        }
        bad |= !storable(s.scale) || !storable(s.zero);
        const int ks = c / 16, half = c / 8 % 2, t = c / 2 % 4, e = c % 2;
        reinterpret_cast<u16*>(keys + P::K_SCALE)[ks / 2 * 32 + t * 8 + ks % 2 * 4 + half * 2 + e] = f32_to_f16(s.scale);
        reinterpret_cast<u16*>(keys + P::K_ZERO)[ks / 2 * 32 + t * 8 + half * 4 + ks % 2 * 2 + e] = f32_to_f16(s.zero);
    }
    __syncthreads();
    for (int i = tid; i < PAGE_TOKENS * D / 8; i += THREADS) {  // [mt][ks/4][g][t][ks%4]
        const int mt = i / (8 * D / 4), ks = i / 128 % (D / 64) * 4 + i % 4, g = i / 16 % 8, t = i / 4 % 4;
        u32 w = 0;
#pragma unroll
        for (int b = 0; b < 8; b++) {
            const int r = b & 1, c = b >> 1 & 1, e = b >> 2;
            w |= (u32)codes[16 * mt + 8 * r + g][16 * ks + 8 * c + 2 * t + e] << (4 * r + 8 * c + 16 * e);
        }
        reinterpret_cast<u32*>(keys + P::K_CODES)[i] = w;
    }
    __syncthreads();

    bring(job.y);
    float sign[N];
#pragma unroll
    for (int i = 0; i < N; i++) sign[i] = p.signs[N * lane + i];
    for (int token = warp; token < PAGE_TOKENS; token += THREADS / WARP) {
        float x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = __fmul_rn(f16_to_f32(exact[Exact<D>::value_at(token, N * lane + i)]), sign[i]);
#pragma unroll
        for (int h = 1; h < N; h *= 2)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (!(i & h)) {
                    const float a = x[i], b = x[i + h];
                    x[i] = a + b, x[i + h] = a - b;
                }
#pragma unroll
        for (int h = 1; h < WARP; h *= 2)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float other = __shfl_xor_sync(~0u, x[i], h);
                x[i] = lane & h ? other - x[i] : x[i] + other;
            }
        const float scale = group_scale<4>(x), inverse = inverse_of(scale);
#pragma unroll
        for (int i = 0; i < N; i++) {
            bad |= !storable(x[i]);
            codes[token][N * lane + i] = code_of(fmaf(x[i], inverse, 8.f));
        }
        bad |= !storable(scale);
        if (lane % (32 / N) == 0) {
            const int group = lane / (32 / N), ks = token / 16, c = token / 8 % 2, t = token / 2 % 4, e = token % 2;
            reinterpret_cast<u16*>(values + 32 * D)[group * 64 + ks / 2 * 32 + t * 8 + ks % 2 * 4 + c * 2 + e] = f32_to_f16(scale);
        }
    }
    __syncthreads();
    for (int i = tid; i < PAGE_TOKENS * D / 8; i += THREADS) {  // [mt][g][t][ks]
        const int mt = i / 128, g = i / 16 % 8, t = i / 4 % 4, ks = i % 4;
        u32 w = 0;
#pragma unroll
        for (int b = 0; b < 8; b++) {
            const int r = b & 1, c = b >> 1 & 1, e = b >> 2;
            w |= (u32)codes[16 * ks + 8 * c + 2 * t + e][16 * mt + 8 * r + g] << (4 * r + 8 * c + 16 * e);
        }
        reinterpret_cast<u32*>(values)[i] = w;
    }
    if (bad) atomicMax(p.refused, 1 + (int)blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(128) encode_int4_d128(const __grid_constant__ EncodeParams p) { encode<128>(p); }
extern "C" __global__ void __launch_bounds__(128) encode_int4_d64(const __grid_constant__ EncodeParams p) { encode<64>(p); }
