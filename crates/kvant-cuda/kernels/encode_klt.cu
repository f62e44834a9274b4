// Exact keys to pages of `klt`, of 64 or 128 tokens: the plan's matrix in f32, sums over channels from the first on, as kvant-codec has them; then scales and codes
// channel by channel. One CTA per page and kv head.
#include "fit.cuh"

struct PlannedEncodeParams {
    u8* pages;                // page memory
    const uint4* jobs;        // (grid): half pages by unit: exact keys, -; coded keys, -
    const u32* heads;         // (grid): kv heads
    const float* bases;       // (kv_heads, D + 1, D): for every channel of the model what it adds to those of the basis; the mean
    const KeyWidths* widths;  // (kv_heads)
    int* refused;             // the largest 1 + job whose numbers cannot be stored
};

constexpr int PLANNED_THREADS = 128;

template <int D, int TOKENS>
struct PlannedShared {
    float x[TOKENS * D];  // by 64 tokens (D, tokens) before the product, (tokens, D) after it
    u8 codes[TOKENS][D];
};

// Word k of a row's plane of 4, 2 or 1 bits from bit `shift` on (pages.cuh); code(token, channel) of the row.
template <class Code>
DEVICE u32 plane_word(int k, int plane, int shift, Code code) {
    u32 w = 0;
    auto put = [&](int lane, int mt, u32 mask, int up, int high) {  // channels 2t and 2t+1, `high` bits apart; tokens 8 apart, 4 bits apart
#pragma unroll
        for (int i = 0; i < 4; i++) w |= (code(16 * mt + i / 2 * 8 + lane / 4, lane % 4 * 2 + i % 2) >> shift & mask) << (up + i % 2 * high + i / 2 * 4);
    };
    if (plane == 4) {
        for (int m = 0; m < 2; m++) put(k / 2, 2 * (k % 2) + m, 15u, 8 * m, 16);
    } else if (plane == 2) {
        for (int mt = 0; mt < 4; mt++) put(k, mt, 3u, 8 * (mt / 2) + 2 * (mt % 2), 16);
    } else {
        for (int i = 0; i < 8; i++) put(2 * k + i / 4, i % 4, 1u, 16 * (i / 4) + i % 4, 8);
    }
    return w;
}

template <int D, int TOKENS>
DEVICE void encode_planned(const PlannedEncodeParams& p) {
    constexpr int OWN = PAGE_TOKENS * D / PLANNED_THREADS;  // tokens of a thread's channel, of 64
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<PlannedShared<D, TOKENS>*>(memory);
    float* x = shared.x;
    auto& codes = shared.codes;
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    const int kv = __ldg(p.heads + blockIdx.x);
    const KeyWidths& widths = p.widths[kv];
    const float* basis = p.bases + (u64)kv * (D + 1) * D;
    u8* keys = p.pages + (u64)job.z * UNIT;
    bool bad = false;
    pdl_wait();
    pdl_trigger();

    const u16* exact = reinterpret_cast<const u16*>(half_page(p.pages, job.x));
    for (int i = tid; i < TOKENS * D; i += PLANNED_THREADS) {
        const int token = i % PAGE_TOKENS + i / (PAGE_TOKENS * D) * PAGE_TOKENS, c = i / PAGE_TOKENS % D;
        x[i] = __fadd_rn(f16_to_f32(__ldcg(exact + Exact<D>::key_at(token, c))), -__ldg(basis + D * D + c));
    }
    __syncthreads();
    const int channel = tid % D, first = tid / D * OWN;
#pragma unroll 1
    for (float* half = x; half < x + TOKENS * D; half += PAGE_TOKENS * D) {
        float sums[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) sums[i] = 0.f;
#pragma unroll 1
        for (int j = 0; j < D; j++) {
            const float m = __ldg(basis + j * D + channel);
#pragma unroll
            for (int i = 0; i < OWN; i += 4) {
                const float4 v = *reinterpret_cast<const float4*>(half + j * PAGE_TOKENS + first + i);
                sums[i] = fmaf(v.x, m, sums[i]), sums[i + 1] = fmaf(v.y, m, sums[i + 1]);
                sums[i + 2] = fmaf(v.z, m, sums[i + 2]), sums[i + 3] = fmaf(v.w, m, sums[i + 3]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            bad |= !(fabsf(sums[i]) <= 3.4028235e38f);
            half[(first + i) * D + channel] = sums[i];
        }
        __syncthreads();
    }
    const int rows = __ldg(&widths.rows);
    for (int c = tid; c < 8 * rows; c += PLANNED_THREADS) {
        const int bits = __ldg(&widths.bits[c / 8]);
        const float top = (1 << bits) - 1;
        auto at = [&](int token) { return x[token * D + c]; };
        const Scale s = range_scale<TOKENS>(at, top, bits < 6);
        const float inverse = inverse_of(s.scale);
        for (int token = 0; token < TOKENS; token++) codes[token][c] = code_of((at(token) - s.zero) * inverse, 0.f, top);
        bad |= !storable(s.scale) || !storable(s.zero);
        reinterpret_cast<u16*>(keys)[c] = f32_to_f16(s.scale);
        reinterpret_cast<u16*>(keys)[8 * rows + c] = f32_to_f16(s.zero);
    }
    __syncthreads();
    // Planes in their order: of which widths, how many bits from which one on.
    constexpr int PLANES[7][4] = {{4, 8, 4, 0}, {8, 8, 4, 4}, {6, 6, 2, 4}, {2, 3, 2, 0}, {5, 5, 1, 4}, {3, 3, 1, 2}, {1, 1, 1, 0}};  // least, most, bits, shift
    u32* words = reinterpret_cast<u32*>(keys + PlannedKeyPage<D>::codes(rows));
    for (int half = 0; half < TOKENS; half += PAGE_TOKENS)
        for (int i = 0; i < 7; i++)
            for (int row = 0; row < rows; row++) {
                const int bits = __ldg(&widths.bits[row]), plane = PLANES[i][2];
                if (bits < PLANES[i][0] || bits > PLANES[i][1]) continue;
                if (row % (PLANNED_THREADS / WARP) == warp)
                    for (int k = lane; k < 16 * plane; k += WARP)
                        words[k] = plane_word(k, plane, PLANES[i][3], [&](int token, int c) { return (u32)codes[half + token][8 * row + c]; });
                words += 16 * plane;
            }
    if (bad) atomicMax(p.refused, 1 + (int)blockIdx.x);
}

#define ENCODE_PLANNED(NAME, D, TOKENS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(PLANNED_THREADS) NAME(const __grid_constant__ PlannedEncodeParams p) {       \
        encode_planned<D, TOKENS>(p);                                                                                         \
    }                                                                                                                         \
    extern "C" __device__ const int NAME##_shared = sizeof(PlannedShared<D, TOKENS>);
ENCODE_PLANNED(encode_klt_d64, 64, 64)
ENCODE_PLANNED(encode_klt_d128, 128, 64)
ENCODE_PLANNED(encode_klt_p128_d64, 64, 128)
ENCODE_PLANNED(encode_klt_p128_d128, 128, 128)
