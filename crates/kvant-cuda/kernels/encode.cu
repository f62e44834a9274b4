// Exact pages to pages of codes, bit for bit what kvant-codec writes (`ch4` and `ch8` keys, `rot4g32` and `sym8g32` values), dealt for
// the device's lanes.
//
// A CTA of 256 threads for each side of a page and kv head. How scales are chosen is known to fit.cuh alone.
#include "fit.cuh"
#include "walsh.cuh"

struct EncodeParams {
    u8* pages;           // page memory
    const uint4* jobs;   // (grid along x): half pages by unit: exact keys, exact values; coded keys, coded values
    const float* signs;  // (D) sign / sqrt(D); values of 4 bits alone are turned
    int* refused;        // the largest 1 + job whose numbers cannot be stored
};

constexpr int ENCODE_THREADS = 256;

// Codes of a page [row][along k] as words of A fragments (pages.cuh): a word of 4 bits has steps c, r and e; of 8 bits r and e.
// `in_load` steps along k are neighbours for a lane.
template <int BITS, int IN_LOAD, class Code>
DEVICE void deal(u32* words, int rows, int depth, int tid, Code code) {
    for (int i = tid; i < rows * depth * BITS / 32; i += ENCODE_THREADS) {
        const int per = BITS == 4 ? 1 : 2, steps = depth / 16;  // words of a step; steps along k
        const int c = i % per, step = i / per % IN_LOAD, lane = i / (per * IN_LOAD) % WARP, block = i / (per * IN_LOAD * WARP);
        const int ks = block % (steps / IN_LOAD) * IN_LOAD + step, mt = block / (steps / IN_LOAD), g = lane / 4, t = lane % 4;
        u32 w = 0;
#pragma unroll
        for (int b = 0; b < 32 / BITS; b++) {
            const int r = b & 1, e = BITS == 4 ? b >> 2 : b >> 1, half = BITS == 4 ? b >> 1 & 1 : c;
            w |= (u32)code(16 * mt + 8 * r + g, 16 * ks + 8 * half + 2 * t + e) << (BITS == 4 ? 4 * r + 8 * half + 16 * e : 8 * r + 16 * e);
        }
        words[i] = w;
    }
}

// The same of keys where a load has one step along k of all tiles of tokens.
template <int BITS, class Code>
DEVICE void deal_steps(u32* words, int depth, int tid, Code code) {
    for (int i = tid; i < PAGE_TOKENS * depth * BITS / 32; i += ENCODE_THREADS) {
        const int mt = i % 4, lane = i / 4 % WARP, block = i / (4 * WARP), g = lane / 4, t = lane % 4;
        const int ks = BITS == 4 ? block : block / 2, c = BITS == 4 ? 0 : block % 2;
        u32 w = 0;
#pragma unroll
        for (int b = 0; b < 32 / BITS; b++) {
            const int r = b & 1, e = BITS == 4 ? b >> 2 : b >> 1, half = BITS == 4 ? b >> 1 & 1 : c;
            w |= (u32)code(16 * mt + 8 * r + g, 16 * ks + 8 * half + 2 * t + e) << (BITS == 4 ? 4 * r + 8 * half + 16 * e : 8 * r + 16 * e);
        }
        words[i] = w;
    }
}

// Where the scale of channel (or token) `c` along k lies among D of them, in halves, and its zero.
template <int D>
DEVICE int scale_at(int c) {
    const int ks = c / 16, half = c / 8 % 2, t = c / 2 % 4, e = c % 2;
    return ks / 2 * 32 + (D % 32 && ks == D / 16 - 1 ? t * 4 : t * 8 + ks % 2 * 4) + half * 2 + e;
}
template <int D>
DEVICE int zero_at(int c) {
    const int ks = c / 16, half = c / 8 % 2, t = c / 2 % 4, e = c % 2;
    return ks / 2 * 32 + (D % 32 && ks == D / 16 - 1 ? t * 4 + half * 2 : t * 8 + half * 4 + ks % 2 * 2) + e;
}

template <int D>
struct EncodeShared {
    static constexpr bool LANES = (D & (D - 1)) == 0 && D <= 256;  // rows of values lie in the lanes of a warp
    u16 exact[PAGE_TOKENS * D];
    u8 codes[PAGE_TOKENS][D];
    float rows[ENCODE_THREADS / WARP][LANES ? 4 : D];
};

// Grid: (pages, sides: keys and values, or values alone where keys have no bits).
template <int D, int KEY_BITS, int VALUE_BITS>
DEVICE void encode(const EncodeParams& p) {
    constexpr int PART = part_of(D);
    using K = KeyPage<PART, KEY_BITS>;
    using V = ValuePage<PART, VALUE_BITS>;
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<EncodeShared<D>*>(memory);
    auto& exact = shared.exact;
    auto& codes = shared.codes;
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    u8 *keys = p.pages + (u64)job.z * UNIT, *values = p.pages + (u64)job.w * UNIT;
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    auto bring = [&](u32 unit) {
        const u8* from = half_page(p.pages, unit);
        for (int i = tid; i < PAGE_TOKENS * D / 8; i += ENCODE_THREADS) reinterpret_cast<uint4*>(exact)[i] = load_coherent(from + 16 * i);
        __syncthreads();
    };
    bool bad = false;
    pdl_wait();
    pdl_trigger();

    if constexpr (KEY_BITS > 0) {
        if (blockIdx.y == 0) {
            bring(job.x);
            for (int c = tid; c < D; c += ENCODE_THREADS) {
                auto x = [&](int token) { return f16_to_f32(exact[Exact<D>::key_at(token, c)]); };
                const Scale s = channel_scale<KEY_BITS>(x);
                const float inverse = inverse_of(s.scale);
                for (int token = 0; token < PAGE_TOKENS; token++) {
                    bad |= !storable(x(token));
                    codes[token][c] = code_of((x(token) - s.zero) * inverse, 0.f, (float)((1 << KEY_BITS) - 1));
                }
                bad |= !storable(s.scale) || !storable(s.zero);
                u8* own = keys + c / PART * K::HALF;
                reinterpret_cast<u16*>(own + K::SCALE)[scale_at<PART>(c % PART)] = f32_to_f16(s.scale);
                reinterpret_cast<u16*>(own + K::ZERO)[zero_at<PART>(c % PART)] = f32_to_f16(s.zero);
            }
            __syncthreads();
            for (int part = 0; part < D / PART; part++) {
                auto key_code = [&](int token, int channel) { return codes[token][part * PART + channel]; };
                u32* key_words = reinterpret_cast<u32*>(keys + part * K::HALF + K::CODES);
                if constexpr (K::BY_STEP) deal_steps<KEY_BITS>(key_words, PART, tid, key_code);
                else deal<KEY_BITS, KEY_BITS == 4 ? 4 : 2>(key_words, PAGE_TOKENS, PART, tid, key_code);
            }
            if (bad) atomicMax(p.refused, 1 + (int)blockIdx.x);
            return;
        }
    }

    bring(job.y);
    auto code = [&](float x, float inverse) {
        return VALUE_BITS == 4 ? code_of(fmaf(x, inverse, 8.f), 0.f, 15.f) : code_of(fmaf(x, inverse, 128.f), 1.f, 255.f);
    };
    auto scale_place = [&](int group, int token) {
        u16* scales = reinterpret_cast<u16*>(values + group / ((PART + 31) / 32) * V::HALF + V::SCALE);
        return scales + group % ((PART + 31) / 32) * 64 + scale_at<PAGE_TOKENS>(token);
    };
    for (int token = warp; token < PAGE_TOKENS; token += ENCODE_THREADS / WARP) {
        if constexpr (EncodeShared<D>::LANES) {
            constexpr int N = D / WARP;
            float x[N];
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = f16_to_f32(exact[Exact<D>::value_at(token, N * lane + i)]);
            if (VALUE_BITS == 4) {  // SRHT
#pragma unroll
                for (int i = 0; i < N; i++) x[i] = __fmul_rn(x[i], p.signs[N * lane + i]);
                walsh_hadamard<N, WARP>(x, lane);
            }
            const float scale = group_scale<VALUE_BITS>(x), inverse = inverse_of(scale);
#pragma unroll
            for (int i = 0; i < N; i++) {
                bad |= !storable(x[i]);
                codes[token][N * lane + i] = code(x[i], inverse);
            }
            bad |= !storable(scale);
            if (lane % (32 / N) == 0) *scale_place(lane / (32 / N), token) = f32_to_f16(scale);
        } else {
            float* row = shared.rows[warp];
            for (int c = lane; c < D; c += WARP) {
                const float x = f16_to_f32(exact[Exact<D>::value_at(token, c)]);
                row[c] = VALUE_BITS == 4 ? __fmul_rn(x, p.signs[c]) : x;
            }
            if (VALUE_BITS == 4) turn_shared<D, WARP>(row, lane, [] { __syncwarp(); });
#pragma unroll 1
            for (int group = 0; group < (D + 31) / 32; group++) {
                const int c = 32 * group + lane;
                const bool counts = D % 32 == 0 || c < D;
                const float x[1] = {counts ? row[counts ? c : 0] : 0.f};
                const float scale = group_scale<VALUE_BITS>(x, counts), inverse = inverse_of(scale);
                bad |= !storable(x[0]) || !storable(scale);
                if (counts) codes[token][c] = code(x[0], inverse);
                if (lane == 0) *scale_place(group, token) = f32_to_f16(scale);
            }
            __syncwarp();
        }
    }
    __syncthreads();
    for (int part = 0; part < D / PART; part++)
        deal<VALUE_BITS, VALUE_BITS == 4 ? 4 : 2>(reinterpret_cast<u32*>(values + part * V::HALF + V::CODES), PART, PAGE_TOKENS, tid,
                                                  [&](int channel, int token) { return codes[token][part * PART + channel]; });
    if (bad) atomicMax(p.refused, 1 + (int)blockIdx.x);
}

#define ENCODE(NAME, D, KEY_BITS, VALUE_BITS)                                                                    \
    extern "C" __global__ void __launch_bounds__(ENCODE_THREADS, 1) NAME(const __grid_constant__ EncodeParams p) {  \
        encode<D, KEY_BITS, VALUE_BITS>(p);                                                                      \
    }                                                                                                            \
    extern "C" __device__ const int NAME##_shared = sizeof(EncodeShared<D>);
#define ENCODE_ALL(D)                \
    ENCODE(encode_int4_d##D, D, 4, 4) \
    ENCODE(encode_int8_d##D, D, 8, 8) \
    ENCODE(encode_k8v4_d##D, D, 8, 4)
ENCODE_ALL(64)
ENCODE_ALL(80)
ENCODE_ALL(96)
ENCODE_ALL(128)
ENCODE_ALL(192)
ENCODE_ALL(256)
ENCODE_ALL(512)
// Values beside keys of a plan.
ENCODE(encode_v4_d64, 64, 0, 4)
ENCODE(encode_v4_d128, 128, 0, 4)
