// What is done to rows around attention over latents: norm, rotation and append, the order of heads, and full pages to codes.
//
// Half pages are canonical; codes and scales are bit for bit what kvant-codec writes. How scales are chosen is known to fit.cuh alone.
#include "fit.cuh"
#include "functions.cuh"
#include "latent_row.cuh"

constexpr int LATENT_ROW_THREADS = 128, MOST_LATENT = 512;

struct LatentRowParams {
    const float* q;          // (rows, heads, nope + rotated)
    const float* both;       // (rows, latent + rotated): the latent before its norm, the part that is rotated
    const float* norm;       // (latent)
    const float2* turns;     // (rows, pairs): cos, sin of each rotated pair
    const float* gains;      // (rows) multipliers of queries, or null
    u16* plain;              // (rows, heads, nope) f16: what is absorbed
    u8* pages;               // page memory
    const PageEntry* exact;  // (rows of the table, exact_stride)
    const int4* targets;     // (rows): row of the table, which exact page, which token of it
    int* refused;            // the largest 1 + row whose numbers f16 does not hold
    int heads, nope, latent, rotated, pairs, neighbours;
    int exact_stride, sink_tokens;
    float eps;
};
// Grid: (rows, heads + 1): a head's part of the query, then the latent.
extern "C" __global__ void __launch_bounds__(LATENT_ROW_THREADS) latent_rows(const __grid_constant__ LatentRowParams p) {
    __shared__ float scratch[LATENT_ROW_THREADS / WARP];
    const int row = blockIdx.x, head = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (head < p.heads) {
        const float gain = p.gains ? __ldg(p.gains + row) : 1.f;
        const float* q = p.q + ((u64)row * p.heads + head) * (p.nope + p.rotated);
        for (int c = threadIdx.x; c < p.nope; c += blockDim.x)
            p.plain[((u64)row * p.heads + head) * p.nope + c] = marked(gain * q[c], row, p.refused);
        return;
    }
    const float* both = p.both + (u64)row * (p.latent + p.rotated);
    float sum = 0.f;
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) sum = fmaf(both[c], both[c], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.latent + p.eps);
    const int4 target = __ldg(p.targets + row);
    const PageEntry entry = __ldg(p.exact + (u64)target.x * p.exact_stride + target.y);
    const int tokens = target.y == 0 ? p.sink_tokens : PAGE_TOKENS;
    u16 *keys = reinterpret_cast<u16*>(p.pages + (u64)entry.x * UNIT), *values = reinterpret_cast<u16*>(p.pages + (u64)entry.y * UNIT);
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x)
        values[target.z * p.latent + c] = marked(both[c] * r * __ldg(p.norm + c), row, p.refused);
    const float* x = both + p.latent;
    for (int c = threadIdx.x; c < p.rotated; c += blockDim.x) {
        const float y = rotated_at(x, c, p.turns + (u64)row * p.pairs, p.pairs, p.neighbours);
        keys[c * tokens + target.z] = marked(y, row, p.refused);
    }
}

// Rows of attention whose keys are their values times a norm's weights, but for the channels that turn (Gemma 4's global layers): the latent is the
// value, the rotated part the channels of the key that turn. A query takes over the norm's weights where it meets the latent, and has zeros
// there in place of the channels that turn.
struct FoldedRowParams {
    const float* qkv;        // (rows, stride): queries of all heads, then what keys and values of all kv heads are made of
    const float2* turns;     // (rows, pairs): cos, sin of each rotated pair
    const float *q_norm, *k_norm, *v_norm;  // (latent) RMS norms of heads; q_norm and v_norm may be null
    const float* gains;      // (rows) multipliers of queries, or null
    const float* by;         // (latent): what a query is multiplied with where it meets the latent
    const int* turning;      // (rotated): the channels that turn
    const float* signs;      // (latent) sign / sqrt(latent) of the SRHT of closed pages, or null
    u16* to;                 // (rows, heads, latent + rotated) f16
    u16* to_closed;          // the same in the basis of closed pages; not written where there are no signs
    u8* pages;               // page memory
    const PageEntry* exact;  // (rows of the table, kv_heads, exact_stride)
    const int4* targets;     // (rows): row of the table, which exact page, which token of it
    int* refused;            // the largest 1 + row whose numbers f16 does not hold
    int heads, kv_heads, latent, rotated, pairs, neighbours;
    int stride, exact_stride, sink_tokens;
    float q_eps, k_eps, v_eps;
};
// Grid: (rows, heads + kv_heads).
extern "C" __global__ void __launch_bounds__(LATENT_ROW_THREADS) folded_rows(const __grid_constant__ FoldedRowParams p) {
    __shared__ float scratch[LATENT_ROW_THREADS / WARP], x[MOST_LATENT], turned[MOST_LATENT];
    const int row = blockIdx.x, head = blockIdx.y;
    const bool is_query = head < p.heads;
    pdl_wait();
    pdl_trigger();
    const float* own = p.qkv + (u64)row * p.stride + (u64)head * p.latent;  // kv heads lie behind the heads
    float sum = 0.f;
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) sum = fmaf(own[c], own[c], sum);
    const float mean = over_cta(sum, scratch) / p.latent;
    const float* norm = is_query ? p.q_norm : p.k_norm;
    const float r = rsqrtf(mean + (is_query ? p.q_eps : p.k_eps));
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) x[c] = norm ? own[c] * r * __ldg(norm + c) : own[c];
    __syncthreads();
    const float2* turns = p.turns + (u64)row * p.pairs;
    auto rotated = [&](int c) { return rotated_at(x, c, turns, p.pairs, p.neighbours); };
    if (!is_query) {
        const int4 target = __ldg(p.targets + row);
        const PageEntry entry = __ldg(p.exact + ((u64)target.x * p.kv_heads + head - p.heads) * p.exact_stride + target.y);
        const int tokens = target.y == 0 ? p.sink_tokens : PAGE_TOKENS;
        u16 *keys = reinterpret_cast<u16*>(p.pages + (u64)entry.x * UNIT), *values = reinterpret_cast<u16*>(p.pages + (u64)entry.y * UNIT);
        const float rv = rsqrtf(mean + p.v_eps);
        for (int c = threadIdx.x; c < p.latent; c += blockDim.x)
            values[target.z * p.latent + c] = marked(p.v_norm ? own[c] * rv * __ldg(p.v_norm + c) : own[c], row, p.refused);
        for (int i = threadIdx.x; i < p.rotated; i += blockDim.x)
            keys[i * tokens + target.z] = marked(rotated(__ldg(p.turning + i)), row, p.refused);
        return;
    }
    const u64 at = ((u64)row * p.heads + head) * (p.latent + p.rotated);
    const float gain = p.gains ? __ldg(p.gains + row) : 1.f;
    for (int i = threadIdx.x; i < p.rotated; i += blockDim.x) {
        const u16 y = marked(gain * rotated(__ldg(p.turning + i)), row, p.refused);
        p.to[at + p.latent + i] = y;
        if (p.signs) p.to_closed[at + p.latent + i] = y;
    }
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) {
        const float y = gain * rotated(c) * __ldg(p.by + c);
        p.to[at + c] = marked(y, row, p.refused);
        if (p.signs) turned[c] = __fmul_rn(y, __ldg(p.signs + c));
    }
    if (!p.signs) return;
    turn_row(turned, p.latent);
    for (int c = threadIdx.x; c < p.latent; c += blockDim.x) p.to_closed[at + c] = marked(turned[c], row, p.refused);
}

// Values of all heads, which a product gave in the order of heads, as rows. Grid: (rows, heads).
struct LatentValueParams {
    const float* x;  // (heads, rows, width)
    u16* y;          // (rows, heads, width) f16
    int width;
};
extern "C" __global__ void __launch_bounds__(LATENT_ROW_THREADS) latent_values(const __grid_constant__ LatentValueParams p) {
    const u64 row = blockIdx.x, head = blockIdx.y, rows = gridDim.x, heads = gridDim.y;
    pdl_wait();
    pdl_trigger();
    for (int c = threadIdx.x; c < p.width; c += blockDim.x)
        p.y[(row * heads + head) * p.width + c] = f32_to_f16(__ldcg(p.x + (head * rows + row) * p.width + c));
}

// ---- full pages to codes ----
struct LatentEncodeParams {
    u8* pages;           // page memory
    const uint4* jobs;   // (grid): half pages by unit: exact rotated parts, exact latents; coded ones
    const float* signs;  // (latent) sign / sqrt(latent); latents of 4 bits alone are turned
    int* refused;        // the largest 1 + job whose numbers cannot be stored
    int latent, rotated, key_bits, value_bits;
};
constexpr int LATENT_ENCODE_THREADS = 256;
struct LatentEncodeShared {
    u8 codes[PAGE_TOKENS][MOST_LATENT];
    float rows[LATENT_ENCODE_THREADS / WARP][MOST_LATENT];
};

// Rotated parts, as keys are coded: a scale and a zero for every channel.
template <int BITS>
DEVICE bool encode_rotated(u8* page, const u16* exact, u8 (*codes)[MOST_LATENT], int rotated) {
    bool bad = false;
    for (int c = threadIdx.x; c < rotated; c += LATENT_ENCODE_THREADS) {
        auto x = [&](int token) { return f16_to_f32(__ldcg(exact + c * PAGE_TOKENS + token)); };
        const Scale s = channel_scale<BITS>(x);
        const float inverse = inverse_of(s.scale);
#pragma unroll 4
        for (int token = 0; token < PAGE_TOKENS; token++) {
            bad |= !storable(x(token));
            codes[token][c] = code_of((x(token) - s.zero) * inverse, 0.f, (float)((1 << BITS) - 1));
        }
        bad |= !storable(s.scale) || !storable(s.zero);
        reinterpret_cast<u16*>(page)[c] = f32_to_f16(s.scale);
        reinterpret_cast<u16*>(page)[rotated + c] = f32_to_f16(s.zero);
    }
    __syncthreads();
    u8* out = page + 4 * rotated;
    for (int i = threadIdx.x; i < rotated * 8 * BITS; i += LATENT_ENCODE_THREADS) {  // bytes
        const int row = i / (64 * BITS), at = i % (64 * BITS);
        const int token = at / (16 * BITS) * 16 + at / 4 % 16, c = 8 * row + at % 4;
        out[i] = BITS == 4 ? codes[token][c] | codes[token][c + 4] << 4 : codes[token][c + at / 64 % 2 * 4];
    }
    __syncthreads();
    return bad;
}

// Latents, as values are coded: a scale for every token and 32 channels.
template <int BITS>
DEVICE bool encode_latents(u8* page, const u16* exact, LatentEncodeShared& shared, const float* signs, int latent) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float* x = shared.rows[warp];
    bool bad = false;
    for (int token = warp; token < PAGE_TOKENS; token += LATENT_ENCODE_THREADS / WARP) {
        for (int c = lane; c < latent; c += WARP) {
            const float y = f16_to_f32(__ldcg(exact + token * latent + c));
            x[c] = BITS == 4 ? __fmul_rn(y, signs[c]) : y;
        }
        __syncwarp();
        if (BITS == 4) {
            for (int h = 1; h < latent; h *= 2) {
                for (int i = lane; i < latent / 2; i += WARP) {
                    const int low = i / h * 2 * h + i % h;
                    const float a = x[low], b = x[low + h];
                    x[low] = a + b, x[low + h] = a - b;
                }
                __syncwarp();
            }
        }
#pragma unroll 1
        for (int group = 0; group < latent / 32; group++) {
            const float own[1] = {x[32 * group + lane]};
            const float scale = group_scale<BITS>(own), inverse = inverse_of(scale);
            bad |= !storable(own[0]) || !storable(scale);
            shared.codes[token][32 * group + lane] =
                BITS == 4 ? code_of(fmaf(own[0], inverse, 8.f), 0.f, 15.f) : code_of(fmaf(own[0], inverse, 128.f), 1.f, 255.f);
            if (lane == 0) reinterpret_cast<u16*>(page)[64 * group + token] = f32_to_f16(scale);
        }
        __syncwarp();
    }
    __syncthreads();
    u8* out = page + 4 * latent;
    for (int i = threadIdx.x; i < latent * 8 * BITS; i += LATENT_ENCODE_THREADS) {  // bytes
        const int row = i / (128 * BITS), at = i % (128 * BITS), c = 16 * row + at / 4 % 16;
        const int token = at / (16 * BITS) * 8 + at % 4;
        out[i] = BITS == 4 ? shared.codes[token][c] | shared.codes[token + 4][c] << 4 : shared.codes[token + at / 64 % 2 * 4][c];
    }
    return bad;
}

// Grid: pages.
extern "C" __global__ void __launch_bounds__(LATENT_ENCODE_THREADS, 2) encode_latent(const __grid_constant__ LatentEncodeParams p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<LatentEncodeShared*>(memory);
    const uint4 job = __ldg(p.jobs + blockIdx.x);
    auto exact = [&](u32 unit) { return reinterpret_cast<const u16*>(half_page(p.pages, unit)); };
    u8 *keys = p.pages + (u64)job.z * UNIT, *values = p.pages + (u64)job.w * UNIT;
    pdl_wait();
    pdl_trigger();
    bool bad;
    if (p.key_bits == 4) bad = encode_rotated<4>(keys, exact(job.x), shared.codes, p.rotated);
    else bad = encode_rotated<8>(keys, exact(job.x), shared.codes, p.rotated);
    if (p.value_bits == 4) bad |= encode_latents<4>(values, exact(job.y), shared, p.signs, p.latent);
    else bad |= encode_latents<8>(values, exact(job.y), shared, p.signs, p.latent);
    if (bad) atomicMax(p.refused, 1 + (int)blockIdx.x);
}
extern "C" __device__ const int encode_latent_shared = sizeof(LatentEncodeShared);
